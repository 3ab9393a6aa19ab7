//! The maps, and the globals that the daemon sets before the programs are loaded.
use aya_ebpf::{
    Global,
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use enforcer_common::{
    counter::{drops, seen},
    guard::{self, Guarded, Own, Wanted},
    incident::{Awaited, Marking, Ooming, watched},
    life,
    offsets::{ABSENT, Offsets},
    plain::PlainFormat,
    reclaim::{self, ReclaimTotals, TaskReclaim},
    record,
    stall::{self, StallKey, StallLimits, StallTotals},
};

/// Offsets of the fields that we read in the running kernel.
#[unsafe(no_mangle)]
pub(crate) static OFFSETS: Global<Offsets> = Global::new(Offsets::NONE);

/// Offsets of the classic tracepoint's fields; used only without BTF.
#[unsafe(no_mangle)]
pub(crate) static PLAIN_FORMAT: Global<PlainFormat> = Global::new(PlainFormat::NONE);

/// 1 if the memory controller is on the unified hierarchy, so that the helper for the current task's cgroup returns
/// the right one.
#[unsafe(no_mangle)]
pub(crate) static UNIFIED: Global<u32> = Global::new(1);

/// The daemon, whose own actions are not reported.
#[unsafe(no_mangle)]
pub(crate) static OWN: Global<Own> = Global::new(Own::NOBODY);

/// OOM records. Room for about 3,000 marks until the daemon runs and reads them.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(512 * 1024, 0);

/// Wake-ups, in a separate ring: the reflex thread reads it, and a storm of them costs no OOM record.
#[map]
pub(crate) static EDGES: RingBuf = RingBuf::with_byte_size(16 * 1024, 0);

/// Wrong scores and foreign writes, in a separate ring: flooding it costs no OOM record. Room for about 600.
#[map]
pub(crate) static GUARD: RingBuf = RingBuf::with_byte_size(64 * 1024, 0);

/// The containers whose processes' scores are guarded, by cgroup id.
#[map]
pub(crate) static WANTED: HashMap<u64, Wanted> = HashMap::with_max_entries(guard::MAX_WANTED, 0);

/// The cgroups whose files are guarded, by cgroup id.
#[map]
pub(crate) static GUARDED: HashMap<u64, Guarded> = HashMap::with_max_entries(guard::MAX_GUARDED, 0);

/// Counts of what the guard saw and of what it did not report.
#[map]
static GUARD_COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(guard::counts::COUNT, 0);

/// Lost records, by stage.
#[map]
pub(crate) static DROPS: PerCpuArray<u64> = PerCpuArray::with_max_entries(drops::COUNT, 0);

/// Observed events, by kind.
#[map]
pub(crate) static SEEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(seen::COUNT, 0);

/// Reclaim totals by kind.
#[map]
pub(crate) static RECLAIM: PerCpuArray<ReclaimTotals> = PerCpuArray::with_max_entries(reclaim::KINDS, 0);

/// Tasks in reclaim, by thread id. A task that is killed in reclaim never ends it, so the map is LRU.
#[map]
pub(crate) static RECLAIMING: LruHashMap<u32, TaskReclaim> = LruHashMap::with_max_entries(4096, 0);

/// Stalls by cgroup and kind. Not preallocated: few cgroups ever stall, and only those take memory.
#[map]
pub(crate) static STALLS: HashMap<StallKey, StallTotals> =
    HashMap::with_max_entries(stall::MAX_STALLS, BPF_F_NO_PREALLOC);

/// Stalls that exceed the limits, in a separate ring: thrashing costs no OOM record. Room for about 180; each cgroup
/// emits at most about one a second.
#[map]
pub(crate) static STALL_RECORDS: RingBuf = RingBuf::with_byte_size(16 * 1024, 0);

/// When a stall is reported.
#[unsafe(no_mangle)]
pub(crate) static STALL_LIMITS: Global<StallLimits> = Global::new(StallLimits::DEFAULT);

/// The index of the memory cgroup among the arguments of `mm_vmscan_memcg_reclaim_begin`; `ABSENT` if it has none.
#[unsafe(no_mangle)]
pub(crate) static RECLAIMED_ARGUMENT: Global<u32> = Global::new(ABSENT);

/// When an edge of each kind was last emitted.
#[map]
pub(crate) static EDGE_LAST: Array<u64> = Array::with_max_entries(record::EDGES, 0);

/// State of each task's OOM in progress, by thread id.
#[map]
pub(crate) static OOMS: LruHashMap<u32, Ooming> = LruHashMap::with_max_entries(1024, 0);

/// 1 once the program that watches kills, ends of OOMs or memory is attached. This is a map because globals cannot be
/// set after loading.
#[map]
pub(crate) static KILL_WATCH: Array<u32> = Array::with_max_entries(watched::COUNT, 0);

/// The task that was just sent the kernel's own SIGKILL, by the sender's thread id.
#[map]
pub(crate) static KILLS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(1024, 0);

/// Victims whose exit is awaited, by process id (by thread id where only that is known).
#[map]
pub(crate) static MARKED: LruHashMap<u32, Awaited> = LruHashMap::with_max_entries(8192, 0);

/// The latest mark of a task's OOM in progress, by the task's thread id.
#[map]
pub(crate) static MARKING: LruHashMap<u32, Marking> = LruHashMap::with_max_entries(1024, 0);

/// Memory of marked victims that is not freed yet: when its latest victim was marked, by address of the `mm_struct`.
#[map]
pub(crate) static MEMORIES: LruHashMap<u64, u64> = LruHashMap::with_max_entries(8192, 0);

/// Tasks that the OOM killer killed after a victim and did not mark, by address, with the time and victim of that mark.
/// Used only if `task_struct.mm` cannot be read.
#[map]
pub(crate) static SHARERS: LruHashMap<u64, Marking> = LruHashMap::with_max_entries(256, 0);

/// Cgroups created and removed, in a separate ring: a storm of them costs no OOM record. Room for about 1,000.
#[map]
pub(crate) static LIFE: RingBuf = RingBuf::with_byte_size(128 * 1024, 0);

/// Counts of cgroups created and removed, and of those that were not reported.
#[map]
static LIFE_COUNTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(life::counts::COUNT, 0);

/// Whether the program that watches this is attached.
#[inline(always)]
pub(crate) fn is_watched(index: u32) -> bool {
    KILL_WATCH.get(index).is_some_and(|attached| *attached == 1)
}

/// Counts a cgroup created or removed, or its loss.
#[inline(always)]
pub(crate) fn life_counted(index: u32) {
    count(&LIFE_COUNTS, index);
}

/// Adds one to a per-CPU counter.
#[inline(always)]
fn count(map: &PerCpuArray<u64>, index: u32) {
    if let Some(counter) = map.get_ptr_mut(index) {
        // SAFETY: the pointer is to this CPU's slot, which lives as long as the map. A program that preempts
        // this one here can cost one count; it cannot corrupt the counter.
        unsafe { *counter = (*counter).wrapping_add(1) }
    }
}

/// Counts a record lost at this stage.
#[inline(always)]
pub(crate) fn dropped(stage: u32) {
    count(&DROPS, stage);
}

/// Counts an event of this kind as seen.
#[inline(always)]
pub(crate) fn saw(kind: u32) {
    count(&SEEN, kind);
}

/// Counts something that the guard saw or did not report.
#[inline(always)]
pub(crate) fn guard_counted(index: u32) {
    count(&GUARD_COUNTS, index);
}

/// Puts a record into a ring, or counts its loss under `stage`.
#[inline(always)]
pub(crate) fn emit<T: 'static>(ring: &RingBuf, record: &T, stage: u32) {
    if ring.output::<T>(record, 0).is_err() {
        dropped(stage);
    }
}
