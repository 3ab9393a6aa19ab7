//! The rows of the table: each facility with its rungs.
use rustix::thread::CapabilitySet;

use super::{
    super::{LimitArgument, words},
    rules::{
        Seen, Stand, by_choice, capability, cgroup2, controller, controllers, ebpf, fact, memory_lock,
        oom_victims, programs, psi, release,
    },
};

/// One facility.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// What is used on each rung and what is lost there, best first.
    pub(super) rungs: &'static [(&'static str, &'static str)],
    /// How to get to the best rung.
    pub(super) remedy: &'static str,
    pub(super) stand: fn(&Seen<'_>) -> Stand,
    /// The text if the rung is unknown.
    pub(super) unknown: &'static str,
    /// The names of its losses in events, if not the row's own.
    pub(super) words: &'static [&'static str],
    /// The last rung means that the facility is missing.
    pub(super) last_is_nothing: bool,
    /// The programs that provide it.
    pub(super) programs: &'static [&'static str],
    /// There is one program for each rung but the last; otherwise all belong to the first.
    pub(super) program_a_rung: bool,
    /// Without any program it is on its last rung.
    pub(super) needs_programs: bool,
}

/// The facility without which nothing can be enforced.
pub const CGROUP2: &str = "cgroup2";

const NOTHING: &str = "nothing";
const NEEDS_ROOT: &str = "unknown; run as root to find out";

/// The defaults of a row.
const ROW: Row = Row {
    name: "",
    rungs: &[],
    remedy: "",
    stand: |_| Stand::Unknown,
    unknown: NEEDS_ROOT,
    words: &[],
    last_is_nothing: true,
    programs: &[],
    program_a_rung: false,
    needs_programs: false,
};

/// Facilities that need programs in the kernel.
pub(super) const TRACING: &[Row] = &[
    Row {
        name: "ebpf",
        rungs: &[("eBPF programs and ring buffers", ""), (NOTHING, words::NO_EBPF)],
        remedy: "Linux 5.8 with CONFIG_BPF_SYSCALL=y; CAP_BPF and CAP_PERFMON; a seccomp profile that allows bpf(2); no lockdown=confidentiality",
        stand: ebpf,
        words: &["ringBuffer", "capBpf", "capPerfmon", "bpfCall", "lockdown"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "oomVictims",
        rungs: &[
            ("the event mark_victim with the victim's task", ""),
            ("the event mark_victim with a thread id, by BTF", words::PID_ALONE),
            ("the event mark_victim with a thread id, by its format", words::CLASSIC_EVENT),
            ("counters alone", words::NO_MARKS),
        ],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y, and Linux 6.9 or a backport of its event mark_victim; at the least, mount -t tracefs tracefs /sys/kernel/tracing",
        stand: oom_victims,
        words: &["markVictim", "markVictimTask", "btf"],
        last_is_nothing: false,
        programs: &["mark_victim_task", "mark_victim_pid", "mark_victim_plain"],
        program_a_rung: true,
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "oomKills",
        rungs: &[
            ("the event of the signal, and of the victim's end", ""),
            (
                "counters",
                "counters decide whether a marked task was killed or was dying already; its exit time is unknown",
            ),
        ],
        remedy: "what ebpf needs",
        stand: |seen| {
            programs(
                seen,
                "the kernel has the events signal_generate, sched_process_exit and sched_process_free",
            )
        },
        last_is_nothing: false,
        programs: &["oom_signal", "process_exit", "process_freed"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "limitOwner",
        rungs: &[("the entry of out_of_memory", ""), ("counters", words::LIMIT_BY_COUNTERS)],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.limit_owner,
                &["limitOwner"],
                "the kernel has out_of_memory and fentry",
            )
        },
        last_is_nothing: false,
        programs: &["out_of_memory", "oom_over"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "memoryBack",
        rungs: &[("the return from exit_mmap", ""), ("the victim's exit", words::BACK_BY_EXIT)],
        remedy: "what limitOwner needs",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.explained.memory_back,
                &["memoryBack"],
                "the kernel has exit_mmap and fentry",
            )
        },
        last_is_nothing: false,
        programs: &["memory_back"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "cgroupLife",
        rungs: &[
            ("the events cgroup_mkdir and cgroup_rmdir", ""),
            ("scans of the hierarchy", words::NAMES_BY_LOOKS),
        ],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y, and memory on the unified hierarchy",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.explained.life,
                &["cgroupLife"],
                "the kernel has cgroup_mkdir and cgroup_rmdir",
            )
        },
        last_is_nothing: false,
        programs: &["cgroup_made", "cgroup_gone"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "victimDetails",
        rungs: &[("all details of a victim", ""), ("those in the kernel's BTF", words::FIELDS_MISSING)],
        remedy: "a kernel whose types this release knows: report the names that are missing",
        stand: |seen| {
            let whole = seen.choice.mark.is_some()
                && seen.facts.resolved.as_ref().is_some_and(|resolved| resolved.absent.is_empty());
            by_choice(seen, whole, &["offsets", "btf", "markVictim"], "the kernel's BTF has all fields")
        },
        words: &["offsets"],
        last_is_nothing: false,
        ..ROW
    },
    Row {
        name: "scoreEdge",
        rungs: &[
            ("the events of attaching, forking, executing and writing scores", ""),
            ("a scan of each container", words::NO_SCORE_EDGE),
        ],
        remedy: "what ebpf needs, and a kernel with CONFIG_DEBUG_INFO_BTF=y",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.sight.scores,
                &["scoreEdge"],
                "BTF describes a task's score and cgroup",
            )
        },
        last_is_nothing: false,
        programs: &["score_attached", "score_forked", "score_executed", "score_written"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "writeEdge",
        rungs: &[("the exit of cgroup_file_write", ""), ("file events and sweeps", words::NO_WRITE_EDGE)],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.sight.writes,
                &["writeEdge"],
                "the kernel has cgroup_file_write and fentry",
            )
        },
        last_is_nothing: false,
        programs: &["cgroup_written"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "processIds",
        rungs: &[("the machine's own process ids", ""), ("scans of whole containers", words::OTHER_PIDS)],
        remedy: "run it in the machine's own PID namespace (hostPID: true, --pid=host)",
        stand: |seen| match seen.facts.pid_namespace.map(super::super::PidNamespace::is_initial) {
            Some(true) => Stand::On(0, String::from("the machine's own PID namespace")),
            Some(false) => Stand::On(1, String::from("not in the machine's own PID namespace")),
            None => Stand::Unknown,
        },
        words: &["pidNamespace"],
        last_is_nothing: false,
        ..ROW
    },
    Row {
        name: "reclaimEdges",
        rungs: &[
            ("the events of reclaim and of kswapd", ""),
            (
                "the remaining events, and sampling",
                "falling memory is noticed later, and not all reclaim is counted",
            ),
        ],
        remedy: "what ebpf needs",
        stand: |seen| programs(seen, "the kernel has the events of vmscan"),
        last_is_nothing: false,
        programs: &[
            "direct_reclaim_begin",
            "direct_reclaim_end",
            "memcg_reclaim_begin",
            "memcg_reclaim_entered",
            "memcg_reclaim_end",
            "kswapd_wake",
        ],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "stalls",
        rungs: &[
            ("the waits within reclaim, added up by cgroup", ""),
            ("reclaim alone, added up by cgroup", "the waits of reclaiming tasks are not counted separately"),
        ],
        remedy: "what ebpf needs",
        stand: |seen| programs(seen, "the kernel has the event mm_vmscan_throttled"),
        last_is_nothing: false,
        programs: &["reclaim_throttled"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "reclaimLimit",
        rungs: &[("what the kernel passes where reclaim begins", ""), ("a guess", words::LIMIT_BY_TASK)],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y, and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y or Linux 7.1",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.reclaim.limit != LimitArgument::None,
                &["reclaimLimit"],
                "the kernel passes the reclaimed cgroup",
            )
        },
        last_is_nothing: false,
        programs: &["memcg_reclaim_begin", "memcg_reclaim_entered"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: "memoryHigh",
        rungs: &[("entry and exit of the function in which tasks sleep", ""), (NOTHING, words::NO_SLEEPS)],
        remedy: "a kernel with CONFIG_DEBUG_INFO_BTF=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y",
        stand: |seen| {
            by_choice(
                seen,
                seen.choice.reclaim.over_high.is_some(),
                &["memoryHigh"],
                "the kernel names the function in which tasks sleep for memory.high",
            )
        },
        programs: &["memory_high_begin", "memory_high_end"],
        needs_programs: true,
        ..ROW
    },
    Row {
        name: PINS,
        rungs: &[("programs pinned in /sys/fs/bpf", ""), (NOTHING, words::NO_PINS)],
        remedy: "mount -t bpf bpf /sys/fs/bpf",
        stand: |seen| match seen.facts.bpffs {
            Some(true) => Stand::On(0, String::from("bpffs at /sys/fs/bpf")),
            Some(false) => Stand::On(1, String::from("no bpffs at /sys/fs/bpf")),
            None => Stand::Unknown,
        },
        ..ROW
    },
];

/// The row of the pins, which survive the daemon.
pub(super) const PINS: &str = "bpffs";

/// Facilities of the host and the process with which values are written and pods evicted, those without which the least
/// works first.
pub(super) const HOST: &[Row] = &[
    Row {
        name: CGROUP2,
        rungs: &[("cgroup v2", ""), (NOTHING, "nothing can be enforced and no pod evicted")],
        remedy: "boot with systemd.unified_cgroup_hierarchy=1, when no program of this machine needs cgroup v1 any more; \
                 without systemd and cgroup v1, mount -t cgroup2 none /sys/fs/cgroup",
        stand: cgroup2,
        ..ROW
    },
    Row {
        name: "controllers",
        rungs: &[
            ("the controllers cpu, memory and pids", ""),
            ("the available ones", "limits of the missing controllers are not enforced"),
            (
                "the available ones, without pids",
                "limits of the missing controllers are not enforced; how many tasks a pod has is unknown, and no pod is \
                 evicted for pid.available",
            ),
            (
                "the available ones, without memory",
                "limits of the missing controllers are not enforced; how much memory a pod uses is unknown, and no pod is \
                 evicted for memory.available or allocatableMemory.available",
            ),
            (
                "the available ones, without memory and pids",
                "limits of the missing controllers are not enforced; what pods use is unknown, and no pod is evicted except \
                 by order",
            ),
        ],
        remedy: "boot without cgroup_disable=; if cgroup v1 has the controller, what cgroup2 needs",
        stand: controllers,
        unknown: NO_CGROUP2,
        last_is_nothing: false,
        ..ROW
    },
    Row {
        name: "root",
        rungs: &[("root", ""), (NOTHING, "scores and cgroups cannot be written, nor eBPF programs loaded")],
        remedy: "run as root",
        stand: |seen| fact(seen.host.root, "running as root", "not running as root"),
        ..ROW
    },
    Row {
        name: "cgroupKill",
        rungs: &[("cgroup.kill", ""), (NOTHING, "no pod can be evicted")],
        remedy: "Linux 5.14",
        stand: |seen| fact(seen.host.kill, "cgroups have cgroup.kill", "cgroups have no cgroup.kill"),
        unknown: "unknown: no cgroup but the root",
        ..ROW
    },
    Row {
        name: "psi",
        rungs: &[
            ("pressure triggers with windows of 500 ms", ""),
            ("pressure triggers with windows of 2 s", "pressure is noticed within 200 ms, not within 50"),
            (NOTHING, "pressure is sensed by sampling and eBPF alone"),
        ],
        remedy: "boot with psi=1, on a kernel with CONFIG_PSI=y; grant CAP_SYS_RESOURCE",
        stand: psi,
        ..ROW
    },
    Row {
        name: "memoryLock",
        rungs: &[("locked memory", ""), (NOTHING, "the daemon may react late when memory is short")],
        remedy: "grant CAP_IPC_LOCK, or set LimitMEMLOCK=infinity",
        stand: memory_lock,
        ..ROW
    },
    Row {
        name: "release",
        rungs: &[
            ("process_mrelease", ""),
            ("the victim's own exit", "a victim's memory is freed later, by half of the time or more"),
        ],
        remedy: "Linux 5.15; a seccomp profile that allows pidfd_open(2) and process_mrelease(2)",
        stand: release,
        last_is_nothing: false,
        ..ROW
    },
    Row {
        name: "capSysResource",
        rungs: &[("CAP_SYS_RESOURCE", ""), (NOTHING, "an oom_score_adj cannot be lowered")],
        remedy: "grant CAP_SYS_RESOURCE",
        stand: |seen| capability(seen, CapabilitySet::SYS_RESOURCE, "CAP_SYS_RESOURCE"),
        ..ROW
    },
    Row {
        name: "capKill",
        rungs: &[
            ("CAP_KILL", ""),
            (NOTHING, "processes of other users cannot be asked to end within their grace period"),
        ],
        remedy: "grant CAP_KILL",
        stand: |seen| capability(seen, CapabilitySet::KILL, "CAP_KILL"),
        ..ROW
    },
    Row {
        name: "capDacOverride",
        rungs: &[
            ("CAP_DAC_OVERRIDE", ""),
            (
                NOTHING,
                "scores of other users' processes cannot be written, nor cgroups that belong to others",
            ),
        ],
        remedy: "grant CAP_DAC_OVERRIDE",
        stand: |seen| capability(seen, CapabilitySet::DAC_OVERRIDE, "CAP_DAC_OVERRIDE"),
        ..ROW
    },
    Row {
        name: "capSysPtrace",
        rungs: &[
            ("CAP_SYS_PTRACE", ""),
            (
                NOTHING,
                "node components are not recognised by their executables, nor a container's init by its namespace",
            ),
        ],
        remedy: "grant CAP_SYS_PTRACE",
        stand: |seen| capability(seen, CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
        ..ROW
    },
    Row {
        name: "capDacReadSearch",
        rungs: &[
            ("CAP_DAC_READ_SEARCH", ""),
            (
                NOTHING,
                "cgroups that are no pod's have no path in reports, and an eviction by a daemon that was killed is \
                 waited for to its deadline",
            ),
        ],
        remedy: "grant CAP_DAC_READ_SEARCH",
        stand: |seen| capability(seen, CapabilitySet::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
        ..ROW
    },
    Row {
        name: "oomGroup",
        rungs: &[
            ("memory.oom.group", ""),
            (NOTHING, "one process of a container that runs out of memory is killed, not all"),
        ],
        remedy: "Linux 4.19",
        stand: |seen| {
            fact(seen.host.oom_group, "cgroups have memory.oom.group", "cgroups have no memory.oom.group")
        },
        unknown: NO_MEMORY_CGROUP,
        ..ROW
    },
    Row {
        name: "localEvents",
        rungs: &[
            ("memory.events.local", ""),
            (NOTHING, "OOM kills are not compared with the kernel's own counters"),
        ],
        remedy: "Linux 5.2",
        stand: |seen| {
            fact(
                seen.host.local_events,
                "cgroups have memory.events.local",
                "cgroups have no memory.events.local",
            )
        },
        unknown: NO_MEMORY_CGROUP,
        ..ROW
    },
    Row {
        name: "reclaim",
        rungs: &[
            ("memory.reclaim", ""),
            ("memory.high", "lowering a memory limit takes longer, and fails more often"),
        ],
        remedy: "Linux 5.19",
        stand: |seen| {
            fact(seen.host.reclaim, "cgroups have memory.reclaim", "cgroups have no memory.reclaim")
        },
        unknown: NO_MEMORY_CGROUP,
        last_is_nothing: false,
        ..ROW
    },
    Row {
        name: "swapLimit",
        rungs: &[
            ("memory.swap.max", ""),
            (NOTHING, "swapping is not limited: every container may swap, whatever memorySwap says"),
        ],
        remedy: "boot without swapaccount=0, on a kernel with CONFIG_SWAP=y",
        stand: |seen| {
            fact(seen.host.swap_max, "cgroups have memory.swap.max", "cgroups have no memory.swap.max")
        },
        unknown: NO_MEMORY_CGROUP,
        ..ROW
    },
    Row {
        name: "cpuset",
        rungs: &[
            ("the controller cpuset", ""),
            (NOTHING, "containers cannot be kept to certain processors or memory nodes"),
        ],
        remedy: "boot without cgroup_disable=cpuset; if cgroup v1 has cpuset, what cgroup2 needs",
        stand: |seen| controller(seen, "cpuset"),
        unknown: NO_CGROUP2,
        ..ROW
    },
    Row {
        name: "hugetlb",
        rungs: &[
            ("the controller hugetlb", ""),
            (NOTHING, "huge pages are not limited: a pod may take more than it requests"),
        ],
        remedy: "boot without cgroup_disable=hugetlb, on a kernel with CONFIG_CGROUP_HUGETLB=y; if cgroup v1 has hugetlb, what \
                 cgroup2 needs",
        stand: |seen| match seen.host.huge_pages {
            Some(false) => Stand::On(0, String::from("this kernel has no huge pages to limit")),
            Some(true) | None => controller(seen, "hugetlb"),
        },
        unknown: NO_CGROUP2,
        ..ROW
    },
];

/// Facilities that confine the daemon's own processes.
pub(super) const CONFINEMENT: &[Row] = &[
    Row {
        name: "callFilters",
        rungs: &[
            ("filters of system calls", ""),
            (
                NOTHING,
                "the daemon, and its processes that read what a network sends, may make any system call",
            ),
        ],
        remedy: "a kernel with CONFIG_SECCOMP_FILTER=y",
        stand: |seen| {
            fact(
                seen.host.filters,
                "the kernel has filters of system calls",
                "the kernel has no filters of system calls",
            )
        },
        ..ROW
    },
    Row {
        name: "landlock",
        rungs: &[
            ("Landlock", ""),
            (
                NOTHING,
                "processes that read what a network sends are kept from files by user and filter alone",
            ),
        ],
        remedy: "Linux 5.13 with CONFIG_SECURITY_LANDLOCK=y, and landlock in lsm= if the kernel's command line has that; a \
                 seccomp profile that allows landlock_create_ruleset(2)",
        stand: |seen| fact(seen.host.landlock, "the kernel has Landlock", "the kernel has no Landlock"),
        ..ROW
    },
];

const NO_CGROUP2: &str = "unknown: there is no cgroup v2";
const NO_MEMORY_CGROUP: &str = "unknown: no cgroup but the root has the memory controller, and only there would the file be; a \
                                daemon with mode enforce makes one at its start, `doctor --here` looks again";

/// All rows, in the order of what matters: what enforces, what traces, what confines.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    HOST.iter().chain(TRACING).chain(CONFINEMENT)
}

/// The row with this name.
pub(super) fn of_name(name: &str) -> Option<&'static Row> {
    all().find(|row| row.name == name)
}

/// The row with this word of an event.
pub(super) fn of_word(word: &str) -> Option<&'static Row> {
    of_name(word).or_else(|| all().find(|row| row.words.contains(&word)))
}

/// The first row that a program belongs to.
pub(super) fn of_program(program: &str) -> Option<&'static Row> {
    TRACING.iter().find(|row| row.programs.contains(&program))
}
