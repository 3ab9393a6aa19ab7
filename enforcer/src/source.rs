//! Sources of pods. Each converts what it reads to [`crate::model`] at its edge.

mod files;
mod folder;
mod given;
mod kept;
mod loaded;
pub mod manifest;
mod placed;
mod reader;
mod roster;
mod snapshot;
mod specified;
mod static_dir;
mod watcher;

pub(crate) use self::watcher::Watcher;
pub use self::{
    folder::{Absence, Replaced, Writable},
    given::{Gathered, Given, Selection, Wrong, gather, gather_objects},
    loaded::{Content, FileContent, Loaded, SourceError, merge},
    placed::{Identities, Kubelet, PlacedPods, SourceKnows},
    roster::{Active, Change, CpuGrounds, Decisions, EndedPod, Entry, Grounds, HeldBack, Roster, State, Why},
    snapshot::{AdmittedBy, Health, Snapshot, SourceName, SourcePod, Sources},
    specified::{EvictedPod, Provenance, SpecifiedPods},
    static_dir::{Answer, News, StaticDir},
};
