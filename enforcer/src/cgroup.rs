//! Reads and writes cgroup v2, below one directory handle and never outside it.
//!
//! The desired state comes from [`policy::Plan`](crate::policy::Plan). [`observe`] reads the current state, [`diff`]
//! computes the steps, [`apply`] carries them out. [`Reconciler`] drives the three, removes retired cgroups, keeps
//! scores and feeds the [`Index`].

mod apply;
mod audit;
mod cleanup;
mod components;
mod controller;
mod desired;
mod diff;
mod dir;
mod drift;
mod failing;
pub(crate) mod guard;
mod handle;
mod held;
mod host_program;
mod index;
mod kubelet;
mod ledger;
mod limits;
mod live;
mod lowering;
mod making;
mod mark;
mod moving;
mod observe;
mod permit;
mod pod_cgroups;
mod process;
mod recent;
mod reconciler;
mod remove;
mod report;
mod sandbox;
mod score;
mod score_record;
mod step;
mod temporary;
mod throttled;
mod units;
mod watch;
mod watches;

pub use self::{
    apply::{ApplyError, Fate, Outcome, apply},
    cleanup::{
        Cleanup, DROP_INS, Left, Marked, Scored, Survey, Temporarily, Trouble, Undo, Undone, carry_out,
        cleanup, drop_ins, survey,
    },
    components::{ComponentError, ComponentReport, ComponentScore, Components, Member, Members, ScoreFate},
    controller::Controller,
    desired::holders,
    diff::{Diff, diff},
    dir::{CgroupDir, Error},
    drift::{Author, Drift, DriftAction, DriftPolicy, KeptFile, OnDrift},
    guard::{COMPONENTS, Forbidden, Guard, Origin, Unseen},
    handle::{Handles, Sought},
    held::{Held, PageSize},
    host_program::HostProgram,
    index::{Index, Resolved},
    kubelet::{KubeletProcess, KubeletSearch, hosts_root, kubelets},
    ledger::Ledger,
    limits::{CgroupsRs, LimitWriter},
    lowering::{Abandoned, Lowering},
    making::Making,
    mark::Mark,
    moving::MoveError,
    observe::{Observed, Snapshot, observe},
    permit::Permit,
    pod_cgroups::{ContainerCgroup, PodCgroup, pod_cgroups},
    reconciler::{Guarded, Reconciler, ScoreSeen, StartError},
    remove::{Removal, remove},
    report::{Applied, Failure, FileChange, Moved, Problem, Report, Written},
    score::{Correction, ScoreChange, ScoreError, ScoreKeeper, ScoreSuspect, Sweep},
    score_record::{ComponentRecord, ScoreRecord},
    step::{Missing, Reason, Step, Withheld, Write},
    temporary::{Temporary, restore},
    throttled::Throttled,
    units::{
        Absent, Blocking, Driver, Property, Systemd, SystemdDriver, UnitError, UnitKind, UnitName, Units,
        is_there,
    },
    watch::{Changes, Sight, Watch, WatchEvents, watch},
    watches::{WatchId, Watches},
};

/// Where cgroup v2 is mounted.
pub const MOUNT: &str = "/sys/fs/cgroup";
