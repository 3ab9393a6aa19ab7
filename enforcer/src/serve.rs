//! The daemon's HTTP servers: the observe and admin sockets, and metrics over TCP.

mod accept;
mod admin;
mod allocatable;
mod brief;
mod config;
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
mod query;
mod ranking;
mod routes;
mod secured;
mod server;
mod socket;
mod spare;
mod usages;
mod wake_throttle;

pub(crate) use self::orders::{now, rfc3339};
pub use self::{
    admin::{Admin, Asked},
    allocatable::{AllocatableView, AmountsView, Requested, ReservationView},
    config::{Build, ConfigView},
    containers::{ContainerMemory, Memories, MemoryView, PodMemory, StallView},
    doctor::{Doctor, Programs, Refused},
    headroom::{Foresight, HeadroomView, Headrooms, SignalView, SliceView, ThresholdView},
    hosts::Hosts,
    metrics::{MetricsListener, Scrape},
    orders::{AdminRequest, Done, No, OrderRequest, OrderView, ReservationRequest},
    peer::{Peer, PeerError},
    pods::{ContainerView, ControllerView, PodState, PodView, ReadTime, SpecView, SpecsView, View},
    query::Query,
    ranking::{ExcludedView, RankedView, Ranker, RankingView, ranked_signal},
    secured::{MetricsFiles, SecureMetrics, VERB as SECURE_METRICS_VERB, main as secure_metrics_main},
    server::{Error, Observe, Sources, Vital},
    socket::{Access, Account, Sockets},
    usages::{UsageView, Usages},
};
