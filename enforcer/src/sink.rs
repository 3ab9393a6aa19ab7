//! Readers of the log that push events to journald, to webhooks, and to the Kubernetes API server.
//!
//! A sink is a position in the log with its own cursor on the disk and its own thread. The log never waits for a sink,
//! and one that is slow, hangs or is removed costs the others nothing. The cursor moves after the receiver took an
//! event, so every event arrives at least once, in the log's order.

mod feed;
mod health;
mod journald;
mod kubernetes;
mod run;
mod settings;
mod thread;
mod webhook;

pub use self::{
    health::{Health, Healths, Kind},
    settings::{
        BatchSettings, InvalidUrl, JournaldSettings, KubernetesSettings, SinkSettings, Url, WebhookSettings,
    },
    thread::{Ground, Sink, Wanted},
};
