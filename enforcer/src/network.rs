//! HTTP requests to other machines, made by a process of its own.
//!
//! Everything that speaks TLS or parses what comes from a network runs in that process, without privileges
//! ([`helper`](crate::helper)).

mod back_off;
mod client;
mod connection;
#[cfg(test)]
pub(crate) mod fake;
mod message;
mod process;
mod tls;

pub(crate) use self::{
    back_off::{BackOff, Bounds, fraction, retry_after},
    connection::{Connection, ConnectionError},
    tls::{TlsError, certificates, roots},
};
pub use self::{
    client::Network,
    message::{Answer, Certificates, Endpoint, Exchange, Identity, Security, Trust},
    process::{VERB, main},
};
pub use crate::helper::HelperError as NetworkError;
