//! What is done at the Kubernetes API server with pods that were evicted here.
//!
//! A kubelet restarts containers that are killed. The API server's eviction is what removes the pod for good, and has its
//! controller make another. What has to be asked for is read from the journal, so that nothing is lost or done twice over
//! a crash ([`Outbox`]); a kill is handed on before ([`Kills`]). Requests are made by a process of its own, without privileges ([`helper`](crate::helper)).

mod answering;
mod api;
mod client;
mod disk;
mod evictions;
mod exchange;
mod message;
mod node;
mod outbox;
mod pace;
mod process;
mod soft;
#[cfg(test)]
mod tests;
mod trouble;

pub use self::{
    client::{Access, ApiServer, Named, NodeName},
    disk::DiskPressure,
    evictions::{Evictions, Kills},
    message::{
        About, Action, Call, ContainerList, ContainerRef, FoundPod, Lane, Outcome, PodRef, Report,
        TaintEffect,
    },
    node::{NodeMarks, NodeSettings},
    outbox::{ApiSettings, Now, OnPdb, OpenEviction, Outbox, Owner, Removal},
    process::{VERB, main},
    soft::{SoftEvictions, SoftOutcome},
};
