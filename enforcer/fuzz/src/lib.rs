//! What must hold of whatever the readers are given: the oracles of the fuzz targets.
//!
//! The same code is a module of `enforcer/tests/seeds.rs`, which replays the seeds in every `cargo test`.

pub mod btf;
pub mod configuration;
pub mod event;
pub mod intent;
pub mod journal;
pub mod kernel_text;
pub mod manifest;
pub mod plan;
pub mod quantity;
pub mod query;
pub mod recording;
pub mod records;
pub mod reference;
mod scratch;
mod text;
