//! How stalls in reclaim can be traced: their limit owners, and the sleeps of `memory.high`.
use super::words;
use crate::sense::{
    Facts,
    btf::{Btf, Kind, TypeId},
};

/// What this kernel offers for stalls. `None`: not offered, or not described.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimFacts {
    /// Index of the memory cgroup in the arguments of `mm_vmscan_memcg_reclaim_begin`, from 0 (Linux 7.1).
    pub event_argument: Option<u32>,
    /// The function `try_to_free_mem_cgroup_pages`, which surrounds that event, takes the memory cgroup first.
    pub function_argument: Option<bool>,
    /// The function in which a task is throttled for exceeding `memory.high`.
    pub over_high: Option<&'static str>,
}

impl ReclaimFacts {
    /// Reads them from the kernel's BTF.
    #[must_use]
    pub fn of(btf: &Btf) -> Self {
        let event = btf
            .find("btf_trace_mm_vmscan_memcg_reclaim_begin", Kind::Typedef)
            .and_then(|typedef| btf.parameters(btf.pointee(typedef)?));
        // The prototype begins with `void *__data`.
        let argument = event.and_then(|all| all.iter().skip(1).position(|one| is_memory_cgroup(btf, *one)));
        let function = btf.find("try_to_free_mem_cgroup_pages", Kind::Func);
        let first = function.and_then(|function| btf.parameters(btf.prototype(function)?)?.first().copied());
        Self {
            event_argument: argument
                .and_then(|index| u32::try_from(index).ok())
                .filter(|index| *index <= LAST),
            function_argument: Some(first.is_some_and(|first| is_memory_cgroup(btf, first))),
            over_high: OVER_HIGH.into_iter().find(|name| btf.find(name, Kind::Func).is_some()),
        }
    }
}

/// The function in which a task sleeps for `memory.high`. The second name since Linux 6.16, where the first became an inline
/// short-cut.
pub(in crate::sense) const OVER_HIGH: [&str; 2] =
    ["mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high"];

/// The last argument that the program supports.
const LAST: u32 = 2;

fn is_memory_cgroup(btf: &Btf, parameter: TypeId) -> bool {
    let pointee = btf.resolve(parameter).and_then(|pointer| btf.resolve(btf.pointee(pointer)?));
    pointee.and_then(|pointee| btf.name(pointee)) == Some("mem_cgroup")
}

/// The source of the limit that a task reclaims against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitArgument {
    /// This argument of the event.
    Event(u32),
    /// The first argument of the function around it.
    Function,
    /// No source: only the reclaiming task's cgroup is known.
    #[default]
    None,
}

/// How stalls are traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimChoice {
    /// The source of the limit owner.
    pub limit: LimitArgument,
    /// The function in which tasks sleep for `memory.high`; `None`: those sleeps are not reported.
    pub over_high: Option<&'static str>,
}

/// Chooses, if tracing works at all, and reports what is missing.
pub(super) fn choose(
    facts: &Facts,
    raw: bool,
    missing: &mut impl FnMut(&'static str, String, &'static str),
) -> ReclaimChoice {
    if !raw {
        return ReclaimChoice::default();
    }
    let ReclaimFacts { event_argument, function_argument, over_high } = facts.reclaim;
    let fentry = facts.fentry != Some(false);
    let limit = match (event_argument, function_argument) {
        (Some(argument), _) => LimitArgument::Event(argument),
        (None, Some(true)) if fentry => LimitArgument::Function,
        (None, _) => LimitArgument::None,
    };
    if limit == LimitArgument::None {
        let why = match function_argument {
            Some(true) => words::NO_FENTRY,
            Some(false) | None => "BTF does not show where the kernel passes the reclaimed cgroup",
        };
        missing("reclaimLimit", why.to_owned(), words::LIMIT_BY_TASK);
    }
    let can_see_sleeps = over_high.filter(|_| fentry);
    if can_see_sleeps.is_none() {
        let why = match over_high {
            Some(_) => words::NO_FENTRY,
            None => "BTF does not name the function in which tasks sleep for memory.high",
        };
        missing("memoryHigh", why.to_owned(), words::NO_SLEEPS);
    }
    ReclaimChoice { limit, over_high: can_see_sleeps }
}
