//! Reads and writes cgroup v2, below one directory handle and never outside it.
//!
//! The desired state comes from [`policy::Plan`](crate::policy::Plan). [`observe`] reads what is there, [`diff`] says as
//! data what has to be done, [`apply`] does it; [`Reconciler`] drives the three, removes what was retired, keeps scores
//! and feeds the [`Index`].

mod apply;
mod controller;
mod desired;
mod diff;
mod dir;
mod index;
mod knob;
mod ledger;
mod limits;
mod observe;
mod permit;
mod population;
mod reconciler;
mod remove;
mod report;
mod score;
mod step;
mod units;

pub use self::{
    apply::{ApplyError, Fate, Outcome, apply},
    controller::Controller,
    diff::{Diff, diff},
    dir::{CgroupDir, Error},
    index::{Index, Resolved},
    knob::{Knob, PageSize},
    ledger::Ledger,
    limits::{CgroupsRs, LimitWriter, MemoryFile},
    observe::{Observed, Snapshot, observe},
    permit::Permit,
    population::{PopulationEvent, PopulationEvents, PopulationWatch, population_watch},
    reconciler::{Reconciler, StartError},
    remove::{Removal, remove},
    report::{Applied, Failure, FileChange, Report},
    score::{ScoreChange, ScoreError, ScoreKeeper, Sweep},
    step::{Missing, Reason, Step, Withheld, Write},
    units::{
        Absent, Blocking, Driver, Property, Systemd, SystemdDriver, UnitError, UnitKind, UnitName, Units,
        is_there,
    },
};

/// Where cgroup v2 is mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";
