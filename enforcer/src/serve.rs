//! HTTP over unix sockets: what the daemon tells to whom it may.

mod admin;
mod containers;
mod doctor;
mod events;
mod headroom;
mod orders;
mod peer;
mod pods;
mod ranking;
mod server;
mod usages;

pub(crate) use self::orders::{now, rfc3339};
pub use self::{
    admin::{Admin, Asked},
    containers::{ContainerMemory, Memories, MemoryView, PodMemory, StallView},
    doctor::{Doctor, Programs, Refused},
    headroom::{Foresight, HeadroomView, Headrooms, SignalView, SliceView, ThresholdView},
    orders::{Done, No, OrderView, Wish},
    peer::{Peer, Stranger},
    pods::{ContainerView, PodState, PodView, View},
    ranking::{ExcludedView, RankedView, Ranker, RankingView, ranked_signal},
    server::{Error, Observe, Sources},
    usages::{UsageView, Usages},
};
