//! Quality of service for the pods of one Linux node.
//!
//! `ARCHITECTURE.md` tells which room holds what, and what each may touch.

pub mod cgroup;
mod chain;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod evict;
pub mod journal;
pub mod model;
mod nearest;
pub mod policy;
mod raw;
pub mod recorder;
pub mod sense;
pub mod serve;
pub mod source;
mod yaml;

use chain::chain;
