//! The programs of a choice, their hooks, and what is lost without each.
use std::{collections::BTreeSet, fmt};

use enforcer_common::{incident::watched, offsets::ABSENT};

use crate::sense::{Choice, LimitArgument, MarkProgram, Sight, btf::Kind, probe::OVER_HIGH};

/// An attach point in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// A tracepoint whose argument types the verifier knows.
    BtfTracepoint(&'static str),
    /// The entry of a function.
    Fentry(&'static str),
    /// The return from a function.
    Fexit(&'static str),
    /// A tracepoint with its arguments as numbers.
    RawTracepoint(&'static str),
    /// A tracepoint's record: category and name.
    Tracepoint(&'static str, &'static str),
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BtfTracepoint(name) => write!(f, "tp_btf/{name}"),
            Self::Fentry(function) => write!(f, "fentry/{function}"),
            Self::Fexit(function) => write!(f, "fexit/{function}"),
            Self::RawTracepoint(name) => write!(f, "raw_tp/{name}"),
            Self::Tracepoint(category, name) => write!(f, "tp/{category}/{name}"),
        }
    }
}

impl Hook {
    /// The type in the kernel's BTF that it is attached by.
    fn attach_type(self) -> Option<(String, Kind)> {
        match self {
            Self::BtfTracepoint(name) => Some((format!("btf_trace_{name}"), Kind::Typedef)),
            Self::Fentry(function) | Self::Fexit(function) => Some((function.to_owned(), Kind::Func)),
            Self::RawTracepoint(_) | Self::Tracepoint(..) => None,
        }
    }
}

/// A program to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) program: &'static str,
    pub(super) hook: Hook,
    pub(super) consequence: &'static str,
}

const KILL_WATCHER: &str = "oom_signal";

/// The index in the `KILL_WATCH` map that says that a program is attached, if its silence is conclusive.
pub(super) fn watcher_of(program: &str) -> Option<u32> {
    match program {
        KILL_WATCHER => Some(watched::KILLS),
        "oom_over" => Some(watched::ENDS),
        "memory_back" => Some(watched::MEMORY),
        _ => None,
    }
}

const NO_MARKS: &str = "OOM kills are reported from counters alone, without victim or trigger";
const NO_RECLAIM: &str = "stalls in reclaim are not counted";
const NO_EDGES: &str = "falling memory is noticed by sampling alone";

const OUT_OF_MEMORY: Wanted = Wanted {
    program: "out_of_memory",
    hook: Hook::Fentry("out_of_memory"),
    consequence: "the limit owner is taken from counters, which is a guess in a burst",
};

const OOM_OVER: Wanted = Wanted {
    program: "oom_over",
    hook: Hook::Fexit("out_of_memory"),
    consequence: "kills are assigned to one OOM by the time between them",
};

const MEMORY_BACK: Wanted = Wanted {
    program: "memory_back",
    hook: Hook::Fexit("exit_mmap"),
    consequence: "the time when a victim's memory was freed is taken from its exit, or missing",
};

const NO_NAMES: &str = "an OOM kill in a short-lived cgroup is reported without its name";

/// The life of cgroups, both programs or neither: otherwise names are kept for removed cgroups, or the reverse.
const LIFE: [(&str, &str, &str); 2] =
    [("cgroup_gone", "cgroup_rmdir", NO_NAMES), ("cgroup_made", "cgroup_mkdir", NO_NAMES)];

const RAW: [(&str, &str, &str); 8] = [
    (KILL_WATCHER, "signal_generate", "counters alone distinguish a mark of a dying task from a kill"),
    ("process_exit", "sched_process_exit", "the exit time of a victim is unknown"),
    ("process_freed", "sched_process_free", "a victim's exit may be missing where many exit at once"),
    ("direct_reclaim_begin", "mm_vmscan_direct_reclaim_begin", NO_EDGES),
    ("direct_reclaim_end", "mm_vmscan_direct_reclaim_end", NO_RECLAIM),
    ("reclaim_throttled", "mm_vmscan_throttled", NO_RECLAIM),
    ("memcg_reclaim_end", "mm_vmscan_memcg_reclaim_end", NO_RECLAIM),
    ("kswapd_wake", "mm_vmscan_kswapd_wake", NO_EDGES),
];

/// The begin of a reclaim against a cgroup's limit: by the event, or by the function around it if only that has the
/// limit owner.
const fn memcg_begin(limit: LimitArgument) -> Wanted {
    let (program, hook) = match limit {
        LimitArgument::Event(_) | LimitArgument::None => {
            ("memcg_reclaim_begin", Hook::RawTracepoint("mm_vmscan_memcg_reclaim_begin"))
        }
        LimitArgument::Function => ("memcg_reclaim_entered", Hook::Fentry("try_to_free_mem_cgroup_pages")),
    };
    Wanted { program, hook, consequence: NO_RECLAIM }
}

/// The sleeps of `memory.high`. The end is attached first: a begin without an end would last for ever.
const fn over_high(function: &'static str) -> [Wanted; 2] {
    const NO_SLEEPS: &str = "the sleeps of memory.high are not reported as stalls";
    [
        Wanted { program: "memory_high_end", hook: Hook::Fexit(function), consequence: NO_SLEEPS },
        Wanted { program: "memory_high_begin", hook: Hook::Fentry(function), consequence: NO_SLEEPS },
    ]
}

const NO_SCORES: &str = "a process that enters a container gets its score within seconds, not at once";

/// The guard of scores: without one of them, a change of a score can go unseen.
const SCORES: [(&str, &str, &str); 4] = [
    ("score_attached", "cgroup_attach_task", NO_SCORES),
    ("score_forked", "sched_process_fork", NO_SCORES),
    ("score_executed", "sched_process_exec", NO_SCORES),
    ("score_written", "oom_score_adj_update", "foreign writes to a score are found by sweeps alone"),
];

const WRITES: Wanted = Wanted {
    program: "cgroup_written",
    hook: Hook::Fexit("cgroup_file_write"),
    consequence: "foreign writes to cgroup files are found by sweeps alone, without the writer",
};

const MARKS: [(MarkProgram, Wanted); 3] = [
    (MarkProgram::Task, mark("mark_victim_task", Hook::BtfTracepoint("mark_victim"))),
    (MarkProgram::Pid, mark("mark_victim_pid", Hook::BtfTracepoint("mark_victim"))),
    (MarkProgram::Plain, mark("mark_victim_plain", Hook::Tracepoint("oom", "mark_victim"))),
];

const fn mark(program: &'static str, hook: Hook) -> Wanted {
    Wanted { program, hook, consequence: NO_MARKS }
}

/// The types that the programs of any choice are attached by.
pub(super) fn attach_types() -> impl Iterator<Item = (String, Kind)> {
    let all = [OUT_OF_MEMORY, OOM_OVER, MEMORY_BACK, WRITES, memcg_begin(LimitArgument::Function)];
    let marks = MARKS.map(|(_, wanted)| wanted);
    let all = all.into_iter().chain(OVER_HIGH.into_iter().flat_map(over_high)).chain(marks);
    // A function that two programs are attached to is one type.
    let types: BTreeSet<_> = all.filter_map(|wanted| wanted.hook.attach_type()).collect();
    types.into_iter()
}

/// The programs of a choice, in the order of attaching: those that explain a mark come before marks.
pub(super) fn wanted(choice: &Choice) -> Vec<Wanted> {
    let mut all = Vec::new();
    let raw = |(program, name, consequence)| Wanted { program, hook: Hook::RawTracepoint(name), consequence };
    if choice.raw {
        all.extend(RAW.map(raw));
        all.push(memcg_begin(choice.reclaim.limit));
        all.extend(choice.reclaim.over_high.map(over_high).into_iter().flatten());
    }
    if choice.sight.scores {
        all.extend(SCORES.map(raw));
    }
    if choice.sight.writes {
        all.push(WRITES);
    }
    if choice.explained.life {
        all.extend(LIFE.map(raw));
    }
    if choice.limit_owner {
        all.push(OUT_OF_MEMORY);
        all.push(OOM_OVER);
    }
    if choice.explained.memory_back {
        all.push(MEMORY_BACK);
    }
    all.extend(MARKS.iter().filter(|(mark, _)| choice.mark == Some(*mark)).map(|(_, wanted)| *wanted));
    all
}

/// The index of the cgroup in the arguments of the event that begins a reclaim, for the program.
pub(super) const fn reclaimed_argument(choice: &Choice) -> u32 {
    match choice.reclaim.limit {
        LimitArgument::Event(argument) => argument,
        LimitArgument::Function | LimitArgument::None => ABSENT,
    }
}

/// What the guard reports with these programs.
pub(super) fn sight(attached: &[&'static str]) -> Sight {
    Sight {
        scores: SCORES.iter().all(|(program, ..)| attached.contains(program)),
        writes: attached.contains(&WRITES.program),
    }
}

/// Whether these programs report the life of cgroups.
pub(super) fn reports_life(attached: &[&'static str]) -> bool {
    LIFE.iter().all(|(program, ..)| attached.contains(program))
}

/// The classic tracepoint, if a BTF program was wanted, is not attached, and the format is known.
pub(super) fn fallback(choice: &Choice, attached: &[&'static str]) -> Option<Wanted> {
    let by_btf = matches!(choice.mark, Some(MarkProgram::Task | MarkProgram::Pid));
    let none_attached = attached.iter().all(|name| mark_of(name).is_none());
    (by_btf && none_attached && choice.plain_format.is_some()).then_some(())?;
    MARKS.iter().find(|(mark, _)| *mark == MarkProgram::Plain).map(|(_, wanted)| *wanted)
}

/// The kind of mark that a program reports.
pub(super) fn mark_of(program: &str) -> Option<MarkProgram> {
    MARKS.iter().find(|(_, wanted)| wanted.program == program).map(|(mark, _)| *mark)
}

#[cfg(test)]
mod tests {
    use enforcer_common::{offsets::Offsets, plain::PlainFormat, stall::StallLimits};

    use super::*;
    use crate::sense::{AttachTypes, Explained, ReclaimChoice};

    fn choice(mark: Option<MarkProgram>) -> Choice {
        Choice {
            mark,
            plain_format: Some(PlainFormat::NONE),
            limit_owner: true,
            raw: true,
            sight: Sight { scores: true, writes: true },
            explained: Explained { memory_back: true, life: true },
            reclaim: ReclaimChoice {
                limit: LimitArgument::Event(2),
                over_high: Some("mem_cgroup_handle_over_high"),
            },
            stall_limits: StallLimits::DEFAULT,
            pid_namespace: None,
            unified_memory: true,
            offsets: Offsets::NONE,
            attach_types: AttachTypes::default(),
            lost: Vec::new(),
        }
    }

    /// Every choice that attaches by type, so that a new program is not forgotten.
    #[test]
    fn every_program_that_is_attached_by_type_has_it_looked_up() {
        let types: Vec<_> = attach_types().collect();
        for mark in MARKS.map(|(mark, _)| mark) {
            for over_high in OVER_HIGH {
                let reclaim = ReclaimChoice { limit: LimitArgument::Function, over_high: Some(over_high) };
                for wanted in wanted(&Choice { reclaim, ..choice(Some(mark)) }) {
                    let attach_type = wanted.hook.attach_type();
                    assert!(attach_type.is_none_or(|one| types.contains(&one)), "{wanted:?}");
                }
            }
        }
        assert_eq!(types.len(), 7);
    }

    fn names(choice: &Choice) -> Vec<&'static str> {
        wanted(choice).iter().map(|wanted| wanted.program).collect()
    }

    #[test]
    fn marks_come_last_and_only_the_chosen_one() {
        let names = names(&choice(Some(MarkProgram::Pid)));
        assert_eq!(names.last(), Some(&"mark_victim_pid"));
        assert_eq!(names.iter().filter(|name| mark_of(name).is_some()).count(), 1);
        assert_eq!(names.len(), RAW.len() + SCORES.len() + LIFE.len() + 8);
        assert!(reports_life(&names) && !reports_life(&["cgroup_made"]));
        assert_eq!(sight(&names), Sight { scores: true, writes: true });
    }

    #[test]
    fn nothing_is_wanted_where_nothing_can_be() {
        let none = Choice {
            mark: None,
            limit_owner: false,
            raw: false,
            sight: Sight::default(),
            explained: Explained::default(),
            ..choice(None)
        };
        assert_eq!(names(&none), Vec::<&str>::new());
    }

    #[test]
    fn memcg_reclaim_begins_once_wherever_its_limit_is_reported() {
        let hook = |limit| {
            let choice = Choice { reclaim: ReclaimChoice { limit, over_high: None }, ..choice(None) };
            let begins = wanted(&choice)
                .into_iter()
                .filter(|one| ["memcg_reclaim_begin", "memcg_reclaim_entered"].contains(&one.program));
            begins.map(|one| one.hook.to_string()).collect::<Vec<_>>()
        };
        let event = ["raw_tp/mm_vmscan_memcg_reclaim_begin"];
        assert_eq!(hook(LimitArgument::Event(0)), event);
        assert_eq!(hook(LimitArgument::None), event);
        assert_eq!(hook(LimitArgument::Function), ["fentry/try_to_free_mem_cgroup_pages"]);
    }

    #[test]
    fn scores_are_seen_by_all_four_or_not() {
        let three: Vec<_> = SCORES.iter().skip(1).map(|(program, ..)| *program).collect();
        assert_eq!(sight(&three), Sight::default());
    }

    #[test]
    fn falls_back_only_from_btf_and_only_if_that_failed() {
        let task = choice(Some(MarkProgram::Task));
        assert_eq!(fallback(&task, &["process_exit"]).map(|w| w.program), Some("mark_victim_plain"));
        assert_eq!(fallback(&task, &["mark_victim_task"]), None);
        assert_eq!(fallback(&Choice { plain_format: None, ..task }, &[]), None);
        assert_eq!(fallback(&choice(Some(MarkProgram::Plain)), &[]), None);
        assert_eq!(fallback(&choice(None), &[]), None);
    }
}
