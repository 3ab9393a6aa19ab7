//! HTTP over unix sockets: what the daemon tells to whom it may.

mod doctor;
mod events;
mod pods;
mod server;
mod usages;

pub use self::{
    doctor::{Doctor, Programs, Refused},
    pods::{ContainerView, PodState, PodView, View},
    server::{Error, Observe, Sources},
    usages::{UsageView, Usages},
};
