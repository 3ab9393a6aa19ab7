//! HTTP over unix sockets: what the daemon tells to whom it may.

mod events;
mod pods;
mod server;

pub use self::{
    pods::{ContainerView, PodState, PodView, View},
    server::{Error, Observe},
};
