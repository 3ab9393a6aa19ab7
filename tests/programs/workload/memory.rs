//! Memory that is held, taken at a rate, or taken at once.
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::report::{Clock, EverySecond, State, micros};

/// What the kernel hands out.
const PAGE_BYTES: usize = 4096;

/// How much of it is taken at a time: a signal or a report waits for no more.
const PIECE_BYTES: u64 = 4 << 20;

/// How much of it the kernel mostly gives as huge pages, which an emulated machine takes a fraction of the time for.
const HUGE_PIECE_BYTES: u64 = 64 << 20;

/// What fills it: no zeros, or the kernel could share or compress it away.
const FILLING: u8 = 0xa5;

/// How many pages a tick of `hold` writes: with a tick every 2 ms, 256 MiB are gone through in about two seconds.
const PAGES_A_TICK: usize = 64;

/// How often `ramp` catches up with the clock.
const RAMP_STEP: Duration = Duration::from_millis(5);

/// How much of a pause it makes up for where it is not to catch up.
const RAMP_PAUSE: Duration = Duration::from_millis(20);

/// Memory of which every page has been written.
#[derive(Debug)]
pub(crate) struct Held {
    pieces: Vec<Vec<u8>>,
    /// What each of them has, but for the last one.
    piece_bytes: u64,
    /// Whether a piece has its whole address space from the start, and is filled little by little.
    is_filled_up: bool,
    bytes: u64,
}

impl Default for Held {
    fn default() -> Self {
        Self::in_pieces_of(PIECE_BYTES)
    }
}

impl Held {
    fn in_pieces_of(piece_bytes: u64) -> Self {
        Self { pieces: Vec::new(), piece_bytes, is_filled_up: false, bytes: 0 }
    }

    /// One that grows within its pieces: what grows by pieces of its own, of less than a huge page, gets none.
    fn filling_up(piece_bytes: u64) -> Self {
        Self { is_filled_up: true, ..Self::in_pieces_of(piece_bytes) }
    }

    /// Takes more memory until there are `bytes`, or the load is over.
    pub(crate) fn grow_to(&mut self, bytes: u64, clock: &Clock) -> anyhow::Result<()> {
        while self.bytes < bytes && !clock.is_over() {
            // None has room left when what there is comes to whole pieces.
            let room_bytes = if self.is_filled_up {
                self.piece_bytes - self.bytes % self.piece_bytes
            } else {
                self.piece_bytes
            };
            let taken_bytes = (bytes - self.bytes).min(room_bytes);
            if room_bytes == self.piece_bytes {
                let space_bytes = if self.is_filled_up { self.piece_bytes } else { taken_bytes };
                let mut piece = Vec::new();
                piece
                    .try_reserve_exact(usize::try_from(space_bytes)?)
                    .with_context(|| format!("no address space left after {} bytes", self.bytes))?;
                self.pieces.push(piece);
            }
            let piece = self.pieces.last_mut().context("there is no piece")?;
            piece.resize(piece.len() + usize::try_from(taken_bytes)?, FILLING);
            self.bytes += taken_bytes;
        }
        Ok(())
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes to one page; they are numbered from 0, and the numbers begin anew at the end.
    fn touch(&mut self, page: usize) {
        let pages_a_piece = usize::try_from(self.piece_bytes).unwrap_or(PAGE_BYTES) / PAGE_BYTES;
        let (piece, page) = (page / pages_a_piece, page % pages_a_piece);
        let pieces = self.pieces.len().max(1);
        if let Some(byte) =
            self.pieces.get_mut(piece % pieces).and_then(|piece| piece.get_mut(page * PAGE_BYTES))
        {
            *byte = byte.wrapping_add(2) | 1;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stalls {
    held_bytes: u64,
    /// Ticks that came to their end.
    ticks: u64,
    /// The most that a tick ended after its time, since all memory was there.
    longest_stall_us: u64,
    /// The same since the last report.
    recent_stall_us: u64,
}

/// Keeps memory in use and reports how late the latest write was.
pub(crate) fn hold(clock: &Clock, bytes: u64, huge: bool, every: Duration) -> anyhow::Result<()> {
    let mut held = Held::in_pieces_of(if huge { HUGE_PIECE_BYTES } else { PIECE_BYTES });
    held.grow_to(bytes, clock)?;
    let mut stalls = Stalls { held_bytes: held.bytes, ..Stalls::default() };
    clock.report("hold", State::Ready, stalls)?;
    let mut second = EverySecond::after(clock.elapsed());
    let mut due = clock.elapsed() + every;
    let mut page = 0_usize;
    while clock.wait_until(due) {
        for _ in 0..PAGES_A_TICK {
            held.touch(page);
            page = page.wrapping_add(1);
        }
        let now = clock.elapsed();
        let late_us = micros(now.saturating_sub(due));
        stalls.ticks += 1;
        stalls.recent_stall_us = stalls.recent_stall_us.max(late_us);
        stalls.longest_stall_us = stalls.longest_stall_us.max(late_us);
        // Ticks that a stall has swallowed are not made up for.
        due = (due + every).max(now);
        if second.is_due(now) {
            clock.report("hold", State::Running, stalls)?;
            stalls.recent_stall_us = 0;
        }
    }
    clock.report("hold", State::Done, stalls)
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Growth {
    held_bytes: u64,
    /// How far behind its rate it is: the kernel gives no more.
    behind_bytes: u64,
}

/// Takes memory at a steady rate, by the clock: what a stall has held up is made up for, if that is wanted.
pub(crate) fn ramp(
    clock: &Clock,
    bytes_per_second: u64,
    to: Option<u64>,
    catch_up: bool,
    huge: bool,
) -> anyhow::Result<()> {
    let mut held = if huge { Held::filling_up(HUGE_PIECE_BYTES) } else { Held::default() };
    let limit = to.unwrap_or(u64::MAX);
    let mut second = EverySecond::after(Duration::ZERO);
    let mut next = Duration::ZERO;
    // The clock without what is not made up for.
    let (mut stalled, mut before) = (Duration::ZERO, Duration::ZERO);
    while held.bytes < limit && clock.wait_until(next) {
        let now = clock.elapsed();
        if !catch_up {
            stalled += now.saturating_sub(before).saturating_sub(RAMP_PAUSE);
            before = now;
        }
        let target = due_bytes(bytes_per_second, now.saturating_sub(stalled)).min(limit);
        // A piece at a time, so that reports come even when the kernel is slow.
        held.grow_to(target.min(held.bytes + PIECE_BYTES), clock)?;
        let now = clock.elapsed();
        if second.is_due(now) {
            let due = due_bytes(bytes_per_second, now.saturating_sub(stalled)).min(limit);
            let growth = Growth { held_bytes: held.bytes, behind_bytes: due.saturating_sub(held.bytes) };
            clock.report("ramp", State::Growing, growth)?;
        }
        next = if held.bytes < target { Duration::ZERO } else { now + RAMP_STEP };
    }
    keep("ramp", clock, held.bytes, held.bytes >= limit)
}

/// What a rate comes to, in whole pages.
fn due_bytes(bytes_per_second: u64, elapsed: Duration) -> u64 {
    let bytes = u128::from(bytes_per_second) * elapsed.as_nanos() / 1_000_000_000;
    let page_bytes = u128::try_from(PAGE_BYTES).unwrap_or(1);
    u64::try_from(bytes / page_bytes * page_bytes).unwrap_or(u64::MAX)
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    held_bytes: u64,
}

/// Takes memory at once.
pub(crate) fn spike(clock: &Clock, bytes: u64) -> anyhow::Result<()> {
    let mut held = Held::default();
    held.grow_to(bytes, clock)?;
    keep("spike", clock, held.bytes, held.bytes >= bytes)
}

/// Reports until the end; the caller still holds the memory.
pub(crate) fn keep(
    workload: &'static str,
    clock: &Clock,
    held_bytes: u64,
    complete: bool,
) -> anyhow::Result<()> {
    let kept = Kept { held_bytes };
    if complete {
        clock.report(workload, State::Ready, kept)?;
    }
    let mut second = EverySecond::after(clock.elapsed());
    while clock.wait_until(second.next()) {
        second = EverySecond::after(clock.elapsed());
        clock.report(workload, State::Running, kept)?;
    }
    clock.report(workload, State::Done, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_written_and_not_zero() {
        let clock = Clock::start(None).unwrap();
        let mut held = Held::default();
        let bytes = PIECE_BYTES + 3 * 4096;
        held.grow_to(bytes, &clock).unwrap();
        assert_eq!(held.bytes, bytes);
        assert_eq!(held.pieces.len(), 2);
        for page in 0..5000 {
            held.touch(page);
        }
        assert!(held.pieces.iter().flatten().all(|byte| *byte != 0));
        let changed = held.pieces.iter().flatten().filter(|byte| **byte != FILLING).count();
        assert_eq!(changed, 1024 + 3, "each page once or twice, at its first byte");
    }

    #[test]
    fn what_fills_up_its_pieces_begins_another_when_one_is_full() {
        let clock = Clock::start(None).unwrap();
        let mut held = Held::filling_up(3 * 4096);
        for (bytes, lengths) in [
            (4096, &[4096][..]),
            (2 * 4096, &[2 * 4096]),
            (5 * 4096, &[3 * 4096, 2 * 4096]),
            (6 * 4096, &[3 * 4096, 3 * 4096]),
            (7 * 4096, &[3 * 4096, 3 * 4096, 4096]),
        ] {
            held.grow_to(bytes, &clock).unwrap();
            assert_eq!(held.bytes, bytes);
            assert_eq!(held.pieces.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        }
        assert!(held.pieces.iter().flatten().all(|byte| *byte == FILLING));
    }

    #[test]
    fn growth_stops_when_the_load_is_over() {
        let clock = Clock::start(Some(Duration::from_nanos(1))).unwrap();
        let mut held = Held::default();
        held.grow_to(1 << 50, &clock).unwrap();
        assert_eq!(held.bytes, 0);
    }

    #[test]
    fn rate_is_held_by_the_clock() {
        assert_eq!(due_bytes(100 << 20, Duration::from_millis(2500)), 250 << 20);
        assert_eq!(due_bytes(1000, Duration::from_secs(4)), 0, "not yet a page");
        assert_eq!(due_bytes(u64::MAX, Duration::from_secs(10)), u64::MAX);
    }
}
