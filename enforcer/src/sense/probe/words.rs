//! Consequences and causes of missing facilities, in the words of all events and of `enforcer doctor`.

pub(super) const NO_EBPF: &str =
    "no eBPF: OOM kills are reported from counters alone, without victim or trigger";
pub(super) const NO_MARKS: &str = "OOM kills are reported from counters alone, without victim or trigger";
pub(super) const PID_ALONE: &str = "a victim's cgroup is known only when it exits, its memory not at all";
pub(super) const CLASSIC_EVENT: &str = "a victim's cgroup is known only when it exits";
pub(super) const FIELDS_MISSING: &str = "a victim's event lacks these fields";
pub(super) const LIMIT_BY_COUNTERS: &str =
    "the limit owner is taken from counters, which is a guess in a burst";
pub(super) const NO_FENTRY: &str = "programs cannot be attached to the entries of functions";
pub(super) const NO_SCORE_EDGE: &str =
    "a process that enters a container gets its score within seconds, not at once";
pub(super) const NO_WRITE_EDGE: &str =
    "foreign writes to cgroup files are found by sweeps alone, without the writer";
pub(super) const OTHER_PIDS: &str = "a process with a wrong score is found by a scan of its whole container";
pub(super) const LIMIT_BY_TASK: &str =
    "a stall in reclaim names the stalled task's own cgroup as the limit owner";
pub(super) const NO_SLEEPS: &str = "the sleeps of memory.high are not reported as stalls";
pub(super) const NO_PINS: &str =
    "programs cannot be pinned: OOM kills while the daemon restarts are reported from counters";
pub(super) const BACK_BY_EXIT: &str =
    "the time when a victim's memory was freed is taken from its exit, or missing";
pub(super) const NAMES_BY_LOOKS: &str = "an OOM kill in a short-lived cgroup is reported without its name";
