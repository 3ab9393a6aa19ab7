//! Names for the parts of an incident.
use super::{
    Detected, LimitSource, MAX_LEVELS, MemoryBackSource, Place, Scope, SharedBy, Timeline, Trigger, Victim,
    World,
    event::{self, Ended, place_of, scope_of},
    open::{Back, Marked, Open, Shared},
};
use crate::{
    model::{CgroupId, Instance, Owner, OwnerLevel},
    sense::record::{Limited, Task},
};

/// The cgroups above one, nearest first.
pub(super) fn ancestors(cgroup: CgroupId, world: &impl World) -> impl Iterator<Item = CgroupId> {
    std::iter::successors(Some(cgroup), |cgroup| world.parent(*cgroup)).skip(1).take(MAX_LEVELS)
}

/// The scope and path of a limit.
pub(super) fn scope(limit: Option<Limited>, world: &impl World) -> (Option<Scope>, Option<String>) {
    match limit {
        None => (None, None),
        Some(Limited::Machine) => (Some(Scope::Node), Some("/".to_owned())),
        Some(Limited::Cgroup(cgroup)) => {
            let owner = world.owner(cgroup);
            let path = owner.as_ref().map(|owner| owner.path.clone()).or_else(|| world.path(cgroup));
            // A limit without a known path does not count as the system's.
            let scope = path.is_some().then(|| scope_of(owner.as_ref()));
            (scope, path.map(|path| path.to_string()))
        }
    }
}

pub(super) fn place(cgroup: Option<CgroupId>, world: &impl World) -> Place {
    let owner = cgroup.and_then(|cgroup| world.owner(cgroup));
    let path = cgroup.and_then(|cgroup| world.path(cgroup));
    let Instance { kind, attempt } = match &owner {
        Some(Owner { path, level: OwnerLevel::Container { .. } }) => world.instance(path),
        Some(_) | None => Instance::default(),
    };
    let container_kind = kind.map(|kind| kind.as_str().into());
    Place { container_kind, attempt, ..place_of(owner.as_ref(), path) }
}

pub(super) fn trigger(task: &Task, world: &impl World) -> Trigger {
    event::trigger(task, place(task.cgroup, world))
}

pub(super) fn victim(marked: &Marked, world: &impl World) -> Victim {
    event::marked_victim(&marked.mark, place(marked.cgroup(), world), Ended::of(marked.exit.as_ref()))
}

fn sharer(shared: &Shared, world: &impl World) -> Victim {
    let cgroup = shared.sharer.cgroup.or_else(|| shared.exit.and_then(|exit| exit.cgroup));
    let by = if shared.sharer.by_exit { SharedBy::Exit } else { SharedBy::Kill };
    event::sharing_victim(&shared.sharer, by, place(cgroup, world), Ended::of(shared.exit.as_ref()))
}

/// All killed processes: victims in the order of their marks, then those that shared their memory.
pub(super) fn victims(open: &Open, world: &impl World) -> Vec<Victim> {
    let marked = open.victims.iter().map(|marked| victim(marked, world));
    marked.chain(open.sharers.iter().map(|shared| sharer(shared, world))).collect()
}

pub(super) fn detected(open: &Open, victim: Victim, world: &impl World) -> Detected {
    let (scope, limit_owner) = scope(open.limit, world);
    Detected {
        incident_id: open.id,
        scope,
        limit_owner,
        trigger: Some(trigger(&open.trigger, world)),
        victim: Some(victim),
        place: None,
        reconstructed: false,
    }
}

/// How the limit owner was found.
pub(super) fn source(traced: bool, limit: Option<Limited>) -> LimitSource {
    match limit {
        Some(_) if traced => LimitSource::Traced,
        Some(_) => LimitSource::Counters,
        None => LimitSource::Unknown,
    }
}

pub(super) fn timeline(open: &Open) -> Timeline {
    let marked_ns = open.marked_ns();
    let reclaim_ns = open.victims.first().and_then(|victim| victim.mark.reclaim_since_ns);
    let zero_ns = reclaim_ns.unwrap_or(marked_ns);
    let ms = |at_ns: u64| at_ns.saturating_sub(zero_ns) / 1_000_000;
    let (back_ns, source) = match open.back_ns() {
        Some(Back::Traced(at_ns)) => (Some(at_ns), Some(MemoryBackSource::Traced)),
        Some(Back::ByExit(at_ns)) => (Some(at_ns), Some(MemoryBackSource::Exit)),
        None => (None, None),
    };
    Timeline {
        first_reclaim: reclaim_ns.map(|_| 0),
        marked: Some(ms(marked_ns)),
        // The exit may be recorded a moment before the mark, but counts from the mark at the earliest.
        exited: open.exited_ns().map(|exited_ns| ms(exited_ns.max(marked_ns))),
        memory_back: back_ns.map(ms),
        memory_back_source: source,
    }
}
