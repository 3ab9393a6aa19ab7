//! Readers of the log that push what they read: to journald, and to webhooks.
//!
//! A sink is a position in the log with a cursor of its own on the disk and a thread of its own: the log never waits for
//! one, and one that is slow, hangs or is taken away costs the others nothing. What a receiver was given is noted after
//! it took it, so everything arrives at least once, in the log's order.

mod back_off;
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
