//! HTTP over unix sockets: what the daemon tells to whom it may.

mod accept;
mod admin;
mod brief;
mod connections;
mod containers;
mod credit;
mod doctor;
mod events;
mod follower;
mod guarded;
mod headroom;
mod hosts;
mod metrics;
mod orders;
mod peer;
mod pods;
mod pulse;
mod query;
mod ranking;
mod routes;
mod server;
mod socket;
mod spare;
mod usages;

pub(crate) use self::orders::{now, rfc3339};
pub use self::{
    admin::{Admin, Asked},
    containers::{ContainerMemory, Memories, MemoryView, PodMemory, StallView},
    doctor::{Doctor, Programs, Refused},
    headroom::{Foresight, HeadroomView, Headrooms, SignalView, SliceView, ThresholdView},
    hosts::Hosts,
    metrics::{MetricsListener, Scrape},
    orders::{Done, No, OrderView, Wish},
    peer::{Peer, Stranger},
    pods::{ContainerView, PodState, PodView, View},
    query::Query,
    ranking::{ExcludedView, RankedView, Ranker, RankingView, ranked_signal},
    server::{Error, Observe, Sources, Vital},
    socket::{Access, Account, Sockets},
    usages::{UsageView, Usages},
};
