//! What an operator loses without something, and why, in the words that every place uses: events, `enforcer doctor`.

pub(super) const NO_EBPF: &str = "no eBPF: OOM kills are told from counters alone, without victim or trigger";
pub(super) const NO_MARKS: &str = "OOM kills are told from counters alone, without victim or trigger";
pub(super) const PID_ALONE: &str = "a victim's cgroup is known only when it exits, its memory not at all";
pub(super) const CLASSIC_EVENT: &str = "a victim's cgroup is known only when it exits";
pub(super) const FIELDS_MISSING: &str = "what these fields tell of a victim is missing from its event";
pub(super) const LIMIT_BY_COUNTERS: &str =
    "whose limit was hit is told from counters, which is a guess in a burst";
pub(super) const NO_FENTRY: &str = "programs cannot be attached to the entries of functions";
pub(super) const NO_SCORE_EDGE: &str =
    "a process that comes into a container gets its score within seconds, not at once";
pub(super) const NO_WRITE_EDGE: &str =
    "what others write to cgroup files is noticed by looking alone, without the writer";
pub(super) const OTHER_PIDS: &str = "a process with a wrong score is found by a look at its whole container";
pub(super) const LIMIT_BY_TASK: &str =
    "of a stall in reclaim, the stalled task's own cgroup is told as the owner of the limit";
pub(super) const NO_SLEEPS: &str = "the sleeps of memory.high are not told as stalls";
pub(super) const NO_PINS: &str =
    "programs cannot be pinned: OOM kills while the daemon restarts are told from counters";
pub(super) const BACK_BY_EXIT: &str = "when a victim's memory was back is taken from its exit, or not told";
pub(super) const NAMES_BY_LOOKS: &str =
    "an OOM kill in a cgroup that is gone within moments is told without its name";
