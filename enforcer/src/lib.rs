//! Quality of service for the pods of one Linux node.
//!
//! `ARCHITECTURE.md` describes the modules, and what each may touch.

pub mod cgroup;
mod chain;
pub mod cli;
mod clock;
pub mod config;
pub mod cri;
pub mod daemon;
mod durable;
pub mod evict;
mod grpc;
mod helper;
pub mod journal;
mod keeper;
pub mod kube;
pub mod logging;
pub mod metrics;
mod nearest;
pub mod network;
mod privilege;
mod raw;
#[cfg(test)]
mod recorded;
pub mod recorder;
mod regular;
mod render;
mod retry;
#[cfg(test)]
mod sample;
pub mod sense;
pub mod serve;
pub mod sink;
pub mod source;
pub mod specs;
mod stamp;
mod threads;
mod trust;
mod waker;
mod yaml;

use chain::chain;
pub use enforcer_policy::{self as policy, model};
pub use raw::Heap;
pub use threads::abort_on_panic;

/// The `User-Agent` of all requests.
const USER_AGENT: &str = concat!("enforcer/", env!("CARGO_PKG_VERSION"));
