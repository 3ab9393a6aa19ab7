//! Readers of the log that push events to journald and to webhooks.
//!
//! A sink is a position in the log with its own cursor on the disk and its own thread. The log never waits for a sink,
//! and one that is slow, hangs or is removed costs the others nothing. The cursor moves after the receiver took an
//! event, so every event arrives at least once, in the log's order.

mod cursor;
mod feed;
mod health;
mod journald;
mod run;
mod settings;
mod thread;
mod webhook;

pub use self::{
    health::{Health, Healths, Kind},
    settings::{BatchSettings, InvalidUrl, JournaldSettings, SinkSettings, Url, WebhookSettings},
    thread::{Ground, Sink, Wanted},
};
