//! Where pods come from. Each source converts what it reads to [`crate::model`] at its edge.

mod files;
mod given;
mod loaded;
pub mod manifest;
mod roster;
mod static_dir;

pub use self::{
    given::{Gathered, Given, Wrong, gather},
    loaded::{Content, FileContent, Loaded, SourceError, merge},
    roster::{Active, Change, Decisions, EndedPod, Entry, Grounds, HeldBack, Roster, State, Why},
    static_dir::StaticDir,
};
