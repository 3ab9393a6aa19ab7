//! Takes over the programs and records that another version of the daemon left.
//!
//! The new programs are attached already, beside the old ones: from here on the new ring has everything, and the old
//! one has everything until it is detached. A record in both is reported once, as [`Again`](super::Again) recognises
//! it. So a program is attached at every moment, and the times that two programs see need not be equal.
use std::{path::PathBuf, thread, time::Duration};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use enforcer_common::{counter::drops, incident::Awaited};

use super::pins::{PinsError, VersionDir};
use crate::sense::record::{Undecodable, decode};

/// How long a program that was running when the new ones were attached may take to end. It takes microseconds.
const RUNNING: Duration = Duration::from_millis(20);

/// `BPF_NOEXIST` of linux/bpf.h: an existing entry stays.
const NO_EXIST: u64 = 1;

/// The stage of records lost because this daemon does not know their layout.
const OTHER_VERSION: &str = "other_version";

/// What earlier daemons left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The programs that were attached, and are taken on.
    pub programs: Vec<&'static str>,
    /// Folders of other versions that were read to their end and removed.
    pub versions: Vec<PathBuf>,
    /// Records that were in their rings.
    pub records: u64,
    /// Their losses that were not reported, by stage.
    pub drops: Vec<(&'static str, u64)>,
}

/// The map of victims whose exit is awaited.
const MARKED: &str = "MARKED";

/// A value of that map, an [`Awaited`], as the kernel stores it.
pub(super) type Victim = [u8; size_of::<Awaited>()];

/// Why another version was not taken over; it stays unchanged.
#[derive(Debug, thiserror::Error)]
pub(super) enum TakeoverError {
    #[error("cannot read {}", path.display())]
    Map {
        path: PathBuf,
        #[source]
        source: MapError,
    },
    #[error(transparent)]
    Pins(#[from] PinsError),
}

/// Gives `take` every record of another version's ring, hands the awaited victims of the old programs to the new ones,
/// and removes the old version.
pub(super) fn take_over(
    old: &VersionDir,
    marked: &mut HashMap<MapData, u32, Victim>,
    take: &mut dyn FnMut(&[u8]),
    inherited: &mut Inherited,
) -> Result<Vec<PathBuf>, TakeoverError> {
    copy_marked(old, marked)?;
    thread::sleep(RUNNING);
    copy_marked(old, marked)?;
    if let Some(mut ring) = open(old, "EVENTS", RingBuf::try_from)? {
        let mut unreadable = 0;
        while let Some(record) = ring.next() {
            inherited.records += 1;
            if matches!(decode(&record), Err(Undecodable::OtherVersion(_))) {
                unreadable += 1;
            } else {
                take(&record);
            }
        }
        if unreadable > 0 {
            inherited.drops.push((OTHER_VERSION, unreadable));
        }
    }
    if let Some(drops) = open(old, "DROPS", PerCpuArray::<_, u64>::try_from)? {
        let reported = open(old, DROPS_TOLD, Array::<_, u64>::try_from)?;
        for (stage, lost) in unreported_drops(&drops, reported.as_ref()) {
            match inherited.drops.iter_mut().find(|(name, _)| *name == stage) {
                Some((_, sum)) => *sum += lost,
                None => inherited.drops.push((stage, lost)),
            }
        }
    }
    let foreign = old.remove(&mut Vec::new())?;
    inherited.versions.push(old.path.clone());
    Ok(foreign)
}

/// Copies victims that are marked and have not exited: from now on the new programs report their exits.
fn copy_marked(old: &VersionDir, marked: &mut HashMap<MapData, u32, Victim>) -> Result<(), TakeoverError> {
    let before = match open(old, MARKED, HashMap::<_, u32, Victim>::try_from) {
        Err(TakeoverError::Map { path: _, source: MapError::InvalidValueSize { size, expected: _ } })
            if size == size_of::<u64>() =>
        {
            return copy_marks(old, marked);
        }
        before => before?,
    };
    let Some(before) = before else { return Ok(()) };
    // An entry that disappears during the iteration has exited.
    for (pid, victim) in before.iter().flatten() {
        // A victim that the new programs have marked is theirs.
        if marked.insert(pid, victim, NO_EXIST).is_ok()
            && matches!(before.get(&pid, 0), Err(MapError::KeyNotFound))
        {
            // It exited meanwhile, which the old programs reported. The new ones would report it when it is freed.
            let _gone = marked.remove(&pid);
        }
    }
    Ok(())
}

/// The first versions stored only the time of the mark.
fn copy_marks(old: &VersionDir, marked: &mut HashMap<MapData, u32, Victim>) -> Result<(), TakeoverError> {
    let before = open(old, MARKED, HashMap::<_, u32, [u8; size_of::<u64>()]>::try_from)?;
    for (pid, marked_ns) in before.iter().flat_map(|before| before.iter().flatten()) {
        let _known = marked.insert(pid, awaited(marked_ns), NO_EXIST);
    }
    Ok(())
}

/// A victim with a known time of its mark and no more: the first member of [`Awaited`].
fn awaited(marked_ns: [u8; size_of::<u64>()]) -> Victim {
    let mut victim = [0; size_of::<Awaited>()];
    let (time, _unknown) = victim.split_at_mut(marked_ns.len());
    time.copy_from_slice(&marked_ns);
    victim
}

/// The reported losses of each stage: a map of the daemon's own, which lives as long as the counters.
pub(super) const DROPS_TOLD: &str = "DROPS_TOLD";

/// The losses that have not been reported, by stage.
fn unreported_drops(
    drops: &PerCpuArray<MapData, u64>,
    reported: Option<&Array<MapData, u64>>,
) -> Vec<(&'static str, u64)> {
    let stages = (0..).zip(drops::NAMES);
    stages
        // An earlier version may lack this stage.
        .filter_map(|(index, name)| {
            let lost: u64 = drops.get(&index, 0).ok()?.iter().sum();
            let reported = reported.and_then(|reported| reported.get(&index, 0).ok()).unwrap_or(0);
            Some((name, lost.saturating_sub(reported)))
        })
        .filter(|(_, lost)| *lost > 0)
        .collect()
}

/// A map of that version; `None` if it has none of that name.
fn open<T>(
    version: &VersionDir,
    name: &str,
    convert: impl FnOnce(Map) -> Result<T, MapError>,
) -> Result<Option<T>, TakeoverError> {
    let path = version.map(name);
    if !path.exists() {
        return Ok(None);
    }
    let map = MapData::from_pin(&path).and_then(Map::from_map_data).and_then(convert);
    map.map(Some).map_err(|source| TakeoverError::Map { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_of_the_first_versions_is_awaited_from_then_on() {
        let victim = awaited(7_u64.to_ne_bytes());
        let (marked_ns, start_boottime_ns) =
            victim.split_at(std::mem::offset_of!(Awaited, start_boottime_ns));
        assert_eq!((marked_ns, start_boottime_ns), (7_u64.to_ne_bytes().as_slice(), [0; 8].as_slice()));
    }
}
