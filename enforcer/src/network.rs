//! HTTP requests to other machines, made by a process of its own.
//!
//! Everything that speaks TLS or parses what comes from a network runs in that process: another instance of this program,
//! without privileges, joined by a socket pair on its standard input. If it crashes it is started again with the next
//! request; if it hangs it is killed. Either way the request fails, and nothing else in the daemon notices.

mod broker;
mod connection;
mod frame;
mod message;
mod process;
mod tls;

pub use self::{
    broker::{Network, NetworkError},
    message::{Answer, Certificates, Endpoint, Exchange},
    process::{VERB, main},
};
