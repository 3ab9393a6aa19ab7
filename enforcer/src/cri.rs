//! The container runtime of this node, asked over its CRI which pod and container an id belongs to.
//!
//! The daemon connects to the runtime's socket, which takes root. Everything that parses what the runtime says runs in a
//! process of its own, without privileges, whose standard output is that connection ([`helper`](crate::helper)). It is
//! another process than the one that speaks to the network: who may speak to a container runtime is as good as root.

mod client;
#[cfg(test)]
mod fake;
mod message;
mod process;
mod proto;
mod socket;

pub use self::{
    client::{CriError, Runtime},
    message::{Container, Listed, Listing, MOST_WANTED, Sandbox},
    process::{VERB, main},
    socket::{CANDIDATES, find},
};
