//! The specs of a kubelet's pods, from its Pods API, its HTTPS server, or the API server.
//!
//! Everything that speaks to them and parses what they say runs in a process of its own, without privileges
//! ([`helper`](crate::helper)). It keeps the pods, cut to what decides here, and the daemon asks what has changed. Each
//! source has a process to itself. The one for the Pods API has the connection to the kubelet's socket as its standard
//! output: that socket takes root.

mod api_server;
mod client;
mod configz;
mod credentials;
#[cfg(test)]
mod fake;
#[cfg(test)]
pub(crate) mod fake_api;
mod https;
mod items;
mod kept;
mod kubelet;
mod message;
mod metadata;
mod pod;
mod pods_api;
mod process;
mod proto;
mod reader;
mod store;

#[cfg(test)]
pub(crate) use self::api_server::watch_requests;
pub use self::{
    client::{SpecError, Specs},
    configz::{KubeletConfigz, KubeletHard},
    credentials::{ClusterAccess, CredentialsError, KeptCredentials, KubeletFolders},
    kept::KeptPod,
    kubelet::kubelet_rest,
    message::{ApiServerFeed, Change, Feed, HttpsFeed, Look, Update},
    pod::{ApiPod, DISRUPTED_BY_ENFORCER, DISRUPTION_TARGET, InvalidPod},
    process::{VERB, main},
    reader::{CredentialsHang, CredentialsReader},
};
