//! Indices of the per-CPU counters.

/// Lost records, by the stage that lost them: `DROPS` map.
pub mod drops {
    /// No room in the ring buffer for a [`MarkVictim`](crate::record::MarkVictim).
    pub const MARK_VICTIM: u32 = 0;
    /// No room in the ring buffer for a [`ProcessExit`](crate::record::ProcessExit).
    pub const PROCESS_EXIT: u32 = 1;
    /// No room in the ring buffer for an [`Edge`](crate::record::Edge).
    pub const EDGE: u32 = 2;
    /// A marked victim could not be stored, so its exit will not be reported.
    pub const MARKED_MAP: u32 = 3;
    /// The limit owner of an OOM could not be stored.
    pub const OOM_MAP: u32 = 4;
    /// The start of a reclaim could not be stored.
    pub const RECLAIM_MAP: u32 = 5;
    /// A SIGKILL by the OOM killer could not be stored.
    pub const KILL_MAP: u32 = 6;
    /// No room in the ring buffer for a [`StallRecord`](crate::stall::StallRecord).
    pub const STALL: u32 = 7;
    /// No room in the map for a cgroup's stalls, which then count only in the totals.
    pub const STALL_MAP: u32 = 8;
    /// No room in the ring buffer for a [`Sharer`](crate::incident::Sharer).
    pub const SHARER: u32 = 9;
    /// No room in the ring buffer for a [`MemoryBack`](crate::incident::MemoryBack), or the memory could not be stored.
    pub const MEMORY_BACK: u32 = 10;
    /// No room in the ring buffer for an [`OomOver`](crate::incident::OomOver).
    pub const OOM_OVER: u32 = 11;
    /// Number of counters.
    pub const COUNT: u32 = 12;
    /// Names of the counters in metrics.
    pub const NAMES: [&str; COUNT as usize] = [
        "mark_victim",
        "process_exit",
        "edge",
        "marked_map",
        "oom_map",
        "reclaim_map",
        "kill_map",
        "stall",
        "stall_map",
        "sharer",
        "memory_back",
        "oom_over",
    ];
}

/// Observed events, by kind: `SEEN` map. `seen = delivered + dropped` for the first three and [`STALL`](seen::STALL).
pub mod seen {
    /// Victims marked.
    pub const MARK_VICTIM: u32 = 0;
    /// Exits of marked victims.
    pub const PROCESS_EXIT: u32 = 1;
    /// Edges that passed the rate limit.
    pub const EDGE: u32 = 2;
    /// Wake-ups of kswapd, reported or not.
    pub const KSWAPD_WAKE: u32 = 3;
    /// Stall records that passed the rate limit.
    pub const STALL: u32 = 4;
    /// Number of counters.
    pub const COUNT: u32 = 5;
    /// Names of the counters in metrics.
    pub const NAMES: [&str; COUNT as usize] = ["mark_victim", "process_exit", "edge", "kswapd_wake", "stall"];
}
