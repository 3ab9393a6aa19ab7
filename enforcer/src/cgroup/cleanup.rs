//! Undoes what a daemon has left on the hierarchy, without knowing any pod: by what the cgroups themselves say.
//!
//! [`survey`] collects the facts, [`cleanup`] decides from them and touches nothing, and [`carry_out`] does it. So a dry run
//! prints what the other would do.

mod carry_out;
mod drop_ins;
mod plan;
mod survey;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use self::{
    carry_out::{Undone, carry_out},
    drop_ins::{DROP_INS, drop_ins},
    plan::{Cleanup, Undo, cleanup},
    survey::{Marked, Scored, Survey, Temporarily, survey},
};

/// Something that stays on purpose, or of which nothing can be known.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Left {
    /// The cgroup, file or folder.
    pub path: String,
    /// Why it stays.
    pub why: String,
}

/// Something that could not be undone.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Trouble {
    /// The cgroup, file or folder.
    pub path: String,
    /// What happened.
    pub error: String,
    /// What to do about it.
    pub remedy: String,
}

/// What to do after an error that may not come again.
const AGAIN: &str = "run enforcer cleanup again";

impl Trouble {
    /// An error after which another attempt may help.
    #[must_use]
    pub fn again(path: impl Into<String>, error: &(dyn std::error::Error + 'static)) -> Self {
        Self { path: path.into(), error: crate::chain(error), remedy: String::from(AGAIN) }
    }
}
