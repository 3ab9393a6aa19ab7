//! Stall times of each cgroup's tasks, summed up in the kernel; reported only if they exceed the limits.
use aya_ebpf::{bindings::BPF_NOEXIST, helpers::bpf_get_current_pid_tgid};
use enforcer_common::{
    counter::{drops, seen},
    stall::{BUCKETS, StallKey, StallRecord, StallTotals, bucket},
};

use crate::{
    atomic::Word,
    kernel::{current_comm, is_own},
    maps::{STALL_LIMITS, STALL_RECORDS, STALLS, dropped, emit, saw},
};

/// The initial value of an entry: static, because the stack is small.
static EMPTY: StallTotals = StallTotals::EMPTY;

/// Adds a finished stall to the totals, and reports it if it or the current window exceeds the limits.
#[inline(always)]
pub(crate) fn stalled(key: &StallKey, took_ns: u64, now_ns: u64) {
    let Some(totals) = entry(key) else {
        dropped(drops::STALL_MAP);
        return;
    };
    // SAFETY: the entry stays in memory while the program runs, even if it is removed from the map meanwhile.
    let (count, total, max, since, window) = unsafe {
        (
            Word::new(&raw mut (*totals).count),
            Word::new(&raw mut (*totals).total_ns),
            Word::new(&raw mut (*totals).max_ns),
            Word::new(&raw mut (*totals).window_since_ns),
            Word::new(&raw mut (*totals).window_ns),
        )
    };
    count.add(1);
    total.add(took_ns);
    // Another CPU may raise it at the same moment, and the shorter value may win: so check again.
    for _ in 0..2 {
        if took_ns > max.load() {
            max.store(took_ns);
        }
    }
    let index = bucket(took_ns);
    if index < BUCKETS {
        // SAFETY: as above; the index is within the array.
        unsafe { Word::new((&raw mut (*totals).buckets).cast::<u64>().add(index)) }.add(1);
    }

    let limits = STALL_LIMITS.load();
    // The CPU that begins a window discards what others add at that moment: this is a threshold, not an account.
    let window_ns = if now_ns.saturating_sub(since.load()) >= limits.window_ns {
        since.store(now_ns);
        window.store(took_ns);
        took_ns
    } else {
        window.add(took_ns);
        window.load()
    };
    if limits.are_exceeded(took_ns, window_ns) {
        much(totals, key, took_ns, window_ns, now_ns, limits.gap_ns);
    }
}

/// The entry of a key, created if absent.
#[inline(always)]
fn entry(key: &StallKey) -> Option<*mut StallTotals> {
    if let Some(totals) = STALLS.get_ptr_mut(key) {
        return Some(totals);
    }
    // Another CPU may have inserted it first; that is fine.
    let _ = STALLS.insert(key, &EMPTY, u64::from(BPF_NOEXIST));
    STALLS.get_ptr_mut(key)
}

/// Emits a record, unless one was emitted for this key just before.
#[inline(always)]
fn much(totals: *mut StallTotals, key: &StallKey, stall_ns: u64, window_ns: u64, now_ns: u64, gap_ns: u64) {
    // SAFETY: the entry stays in memory while the program runs.
    let (reported, held) =
        unsafe { (Word::new(&raw mut (*totals).reported_ns), Word::new(&raw mut (*totals).held)) };
    let before = reported.load();
    let is_due = before == 0 || now_ns.saturating_sub(before) >= gap_ns;
    if !is_due {
        held.add(1);
        return;
    }
    // Two CPUs may pass at once, and then both emit.
    reported.store(now_ns);
    // The daemon reclaims from others by its own writes: those stalls are not reported.
    if is_own() {
        return;
    }
    let pid_tgid = bpf_get_current_pid_tgid();
    let mut record = StallRecord::EMPTY;
    record.time_ns = now_ns;
    record.key = *key;
    record.stall_ns = stall_ns;
    record.window_ns = window_ns;
    record.tid = pid_tgid as u32;
    record.tgid = (pid_tgid >> 32) as u32;
    record.comm = current_comm();
    saw(seen::STALL);
    emit(&STALL_RECORDS, &record, drops::STALL);
}
