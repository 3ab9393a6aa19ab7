//! What lies between diff and apply: changes as data, which a dry run prints.

use std::fmt;

use super::{Controller, Held};
use crate::model::{CgroupFile, CgroupPath, CgroupValue};

/// One operation on the hierarchy, as data until [`apply`](super::apply) carries it out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Make a cgroup.
    Create(CgroupPath),
    /// Hand controllers on to a cgroup's children (`cgroup.subtree_control`).
    Enable {
        /// The cgroup.
        path: CgroupPath,
        /// The controllers that are not enabled yet.
        controllers: Vec<Controller>,
    },
    /// Write a file.
    Write(Write),
    /// Move every process of a pod's cgroup into another one of the same pod, which takes its place.
    Move {
        /// Where the processes are.
        from: CgroupPath,
        /// Where they should be.
        to: CgroupPath,
    },
}

impl Step {
    /// The cgroup that it concerns.
    #[must_use]
    pub fn path(&self) -> &CgroupPath {
        match self {
            Self::Create(path) | Self::Enable { path, .. } | Self::Move { to: path, .. } => path,
            Self::Write(write) => &write.path,
        }
    }
}

/// A value to be written to a cgroup's file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Write {
    /// The cgroup.
    pub path: CgroupPath,
    /// The value, which names its file.
    pub value: CgroupValue,
    /// What the file held before; `None` for a cgroup that is yet to be made.
    pub old: Option<Held>,
    /// Why it is written.
    pub reason: Reason,
}

impl Write {
    /// The file.
    #[must_use]
    pub fn file(&self) -> CgroupFile {
        self.value.file()
    }
}

/// Why a file is written.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Reason {
    /// It was not written before: a new cgroup, or the first look after a start.
    Initial,
    /// The plan has another value than before.
    PlanChanged,
    /// Another process wrote another value.
    Drifted,
    /// The plan no longer names the file, which gets the kernel's default back.
    Released,
    /// The ranking changed, and scores follow it.
    Ranked,
    /// An earlier process of the daemon had changed it, and ended before it could undo that.
    Interrupted,
}

impl Reason {
    /// Its name in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::PlanChanged => "planChanged",
            Self::Drifted => "drifted",
            Self::Released => "released",
            Self::Ranked => "ranked",
            Self::Interrupted => "interrupted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A write that is withheld, as it would do harm.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("usage above the new limit: {}/{} stays, as {usage_bytes} bytes are in use and {} would make the kernel kill", .write.path, .write.file(), .write.value)]
pub struct Withheld {
    /// The write.
    pub write: Write,
    /// `memory.current` of the cgroup when it was judged.
    pub usage_bytes: u64,
}

/// A planned file that the kernel does not have.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
#[error("{path}/{file} does not exist: {}", match .controller {
    Some(controller) => format!("the {controller} controller is not available there"),
    None => String::from("this kernel does not offer it"),
})]
pub struct Missing {
    /// The cgroup.
    pub path: CgroupPath,
    /// The file.
    pub file: CgroupFile,
    /// The missing controller; `None` if it is there and the file is not.
    pub controller: Option<Controller>,
}
