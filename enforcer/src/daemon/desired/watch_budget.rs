//! What the kernel told of, and when it is looked at: at once, unless it is told of without end.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    Desired,
    emit::{Writer, Writers},
};
use crate::{
    cgroup::{Author, Changes},
    model::CgroupPath,
    sense::GuardEvent,
};

/// So often within a turn a thing is looked at as soon as something is told of it. One foreign write is told of by the
/// programs and by inotify, and so is what undoes it.
const CREDIT: u32 = 8;
/// How long a turn is. What is told of once the credit is used up is looked at when the turn ends.
const TURN: Duration = Duration::from_millis(50);
/// The same of a file. A look costs more the more pods there are, some milliseconds with hundreds of them, so that none uses
/// its credit up in a shorter turn; and a value that is written so often is not written back sooner than after a second.
const FILE_TURN: Duration = Duration::from_millis(500);
/// So often the turn is doubled of what uses up one after the other.
const MOST_DOUBLINGS: u32 = 3;
/// The same of a look at everything, which costs as much as there are pods.
const WHOLE_TURN: Duration = Duration::from_millis(100);
const WHOLE_DOUBLINGS: u32 = 5;
/// What is due within so long is looked at together.
const TOGETHER: Duration = Duration::from_millis(25);
/// So many turns are kept before those that are over are dropped.
const MOST_TURNS: usize = 64;

/// A thing that is looked at by itself.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Watched {
    /// A file of a cgroup.
    File(CgroupPath, String),
    /// Whether there are processes in a cgroup.
    Population(CgroupPath),
    /// The cgroups right below one.
    Children(CgroupPath),
    /// All that is planned: something was lost.
    Everything,
}

/// Each thing has a credit of looks, which it gets back after a moment. One that is told of without end is looked at a
/// few times a second, and costs no other thing its look.
#[derive(Debug, Default)]
pub(super) struct WatchBudget {
    turns: BTreeMap<Watched, Turn>,
    /// Those that were told of beyond their credit, by the ends of their turns.
    owed: BTreeSet<(Instant, Watched)>,
}

#[derive(Debug)]
struct Turn {
    end: Instant,
    looks: u32,
    /// How many turns right before this one were used up.
    used_up: u32,
    is_owed: bool,
    writer: Option<Writer>,
}

impl Watched {
    fn turn(&self, used_up: u32) -> Duration {
        match self {
            Self::File(..) => FILE_TURN,
            Self::Population(_) | Self::Children(_) => TURN * (1 << used_up.min(MOST_DOUBLINGS)),
            Self::Everything => WHOLE_TURN * (1 << used_up.min(WHOLE_DOUBLINGS)),
        }
    }

    fn credit(&self) -> u32 {
        match self {
            Self::File(..) | Self::Population(_) | Self::Children(_) => CREDIT,
            Self::Everything => 1,
        }
    }
}

impl WatchBudget {
    /// Whether a thing that was told of is to be looked at now; else it is when its turn ends.
    pub(super) fn admit(&mut self, thing: Watched, writer: Option<Writer>, now: Instant) -> bool {
        if self.turns.len() > MOST_TURNS {
            self.turns.retain(|_, turn| turn.is_owed || now < turn.end);
        }
        if let Some(turn) = self.turns.get_mut(&thing).filter(|turn| turn.is_owed || now < turn.end) {
            if turn.used_up == 0 && !turn.is_owed && turn.looks < thing.credit() {
                turn.looks += 1;
                return true;
            }
            turn.writer = writer.or_else(|| turn.writer.take());
            if !std::mem::replace(&mut turn.is_owed, true) {
                self.owed.insert((turn.end, thing));
            }
            return false;
        }
        let end = now + thing.turn(0);
        self.turns.insert(thing, Turn { end, looks: 1, used_up: 0, is_owed: false, writer: None });
        true
    }

    /// When [`take`](Self::take) is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.owed.first().map(|(due, _)| *due)
    }

    /// What is to be looked at now, and who wrote to it, as far as that is known.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Changes, Writers)> {
        self.due().filter(|due| *due <= now)?;
        let (mut changes, mut writers) = (Changes::default(), Writers::default());
        while let Some((_, thing)) = self.owed.first().filter(|(due, _)| *due <= now + TOGETHER).cloned() {
            self.owed.pop_first();
            if let Some(turn) = self.turns.get_mut(&thing) {
                turn.used_up = turn.used_up.saturating_add(1);
                turn.end = now + thing.turn(turn.used_up);
                turn.is_owed = false;
                if let (Watched::File(path, file), Some(writer)) = (&thing, turn.writer.take()) {
                    changes.authors.insert((path.clone(), file.clone()), author(&writer));
                    writers.note(path.clone(), file, writer);
                }
            }
            note(thing, &mut changes);
        }
        Some((changes, writers))
    }

    /// Leaves of what the kernel told of that which is to be looked at now.
    pub(super) fn sift(&mut self, changes: Changes, now: Instant) -> Option<Changes> {
        let Changes { populated, written, authors: _, children, overflow } = changes;
        let things = written.into_iter().map(|(path, file)| Watched::File(path, file));
        let things = things.chain(populated.into_iter().map(Watched::Population));
        let things = things.chain(children.into_iter().map(Watched::Children));
        let things = things.chain(overflow.then_some(Watched::Everything));
        let (mut left, mut is_any) = (Changes::default(), false);
        for thing in things {
            if self.admit(thing.clone(), None, now) {
                note(thing, &mut left);
                is_any = true;
            }
        }
        is_any.then_some(left)
    }

    /// Whether something is told of without end, so that what more is told of it is best left to gather.
    pub(super) fn is_flooded(&self) -> bool {
        !self.owed.is_empty()
    }
}

impl Desired {
    /// Looks at the cgroups that the kernel told of; without any, it tells of none any longer. What the guard has told
    /// comes first: it told of it before, and knows who it was.
    pub(in crate::daemon) async fn changed(
        &mut self,
        changes: Option<Changes>,
        reported: Vec<GuardEvent>,
    ) -> anyhow::Result<()> {
        self.settle();
        self.guarded(reported).await?;
        let Some(changes) = changes else {
            self.note_branches(None);
            self.schedule.files_are_reported(false, Instant::now());
            return Ok(());
        };
        match self.watch_budget.sift(changes, Instant::now()) {
            Some(changes) => {
                self.note_branches(Some(&changes));
                self.look_at(changes, &Writers::default()).await
            }
            None => Ok(()),
        }
    }

    pub(super) async fn look_at(&mut self, changes: Changes, writers: &Writers) -> anyhow::Result<()> {
        let permit = self.permit.clone();
        self.change_by(writers, move |reconciler| reconciler.look_at(&changes, permit.as_deref())).await?;
        self.fill_room().await
    }

    /// Whether something is told of without end, so that the rest of it is best left to gather for a moment.
    pub(in crate::daemon) fn is_flooded(&self) -> bool {
        self.watch_budget.is_flooded()
    }
}

/// Who wrote.
pub(super) fn author(writer: &Writer) -> Author {
    Author { pid: writer.by.pid, comm: writer.by.comm.clone() }
}

fn note(thing: Watched, changes: &mut Changes) {
    match thing {
        Watched::File(path, file) => drop(changes.written.insert((path, file))),
        Watched::Population(path) => drop(changes.populated.insert(path)),
        Watched::Children(path) => drop(changes.children.insert(path)),
        Watched::Everything => changes.overflow = true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::Process;

    fn file(name: &str) -> Watched {
        Watched::File(CgroupPath::parse("/kubepods/pod1").unwrap(), name.to_owned())
    }

    fn writer(pid: u32) -> Writer {
        Writer { by: Process { pid, start_ns: None, comm: String::from("sh") }, of: None }
    }

    #[test]
    fn what_is_reported_of_now_and_then_is_looked_at_at_once() {
        let (mut watch_budget, mut now) = (WatchBudget::default(), Instant::now());
        for _ in 0..100 {
            // A write, what tells of it again, and what undoes it.
            for _ in 0..3 {
                assert!(watch_budget.admit(file("memory.max"), None, now));
            }
            assert_eq!(watch_budget.due(), None, "and nothing wakes for it");
            now += FILE_TURN;
        }
    }

    #[test]
    fn a_flood_is_looked_at_a_few_times_a_second_and_hides_nothing_else() {
        let (mut watch_budget, start) = (WatchBudget::default(), Instant::now());
        let (mut looks, mut latest) = (0, None);
        for emit in 0..100_000_u32 {
            let now = start + Duration::from_micros(100) * emit;
            looks += u32::from(watch_budget.admit(file("memory.max"), Some(writer(emit)), now));
            if let Some((changes, writers)) = watch_budget.take(now) {
                looks += 1;
                assert_eq!(changes.written.len(), 1);
                let (_, author) = changes.authors.first_key_value().unwrap();
                assert_eq!(author.pid, emit, "the latest counts");
                assert!(!writers.is_empty());
            }
            if emit % 1_000 == 0 {
                assert!(watch_budget.admit(file("cpu.max"), None, now), "another file of the same cgroup");
            }
            latest = Some(now);
        }
        assert!((10..40).contains(&looks), "{looks} in ten seconds");
        // Its end is seen, and a moment later it is as at first.
        let due = watch_budget.due().unwrap();
        assert!(due <= latest.unwrap() + FILE_TURN);
        assert!(watch_budget.take(due).is_some());
        assert_eq!(watch_budget.due(), None);
        let later = due + FILE_TURN;
        assert!(watch_budget.admit(file("memory.max"), None, later));
        assert!(watch_budget.admit(file("memory.max"), None, later));
    }

    #[test]
    fn a_flood_is_looked_at_as_seldom_where_a_look_takes_its_time() {
        let (mut watch_budget, mut now) = (WatchBudget::default(), Instant::now());
        let (end, mut looks) = (now + Duration::from_secs(10), 0);
        while now < end {
            let looked =
                watch_budget.admit(file("memory.max"), None, now) || watch_budget.take(now).is_some();
            looks += u32::from(looked);
            now += Duration::from_millis(if looked { 8 } else { 1 });
        }
        assert!((10..40).contains(&looks), "{looks} in ten seconds");
    }

    #[test]
    fn what_is_due_about_the_same_time_is_looked_at_together() {
        let (mut watch_budget, now) = (WatchBudget::default(), Instant::now());
        for number in 0..1_000_u32 {
            for _ in 0..=CREDIT {
                watch_budget.admit(file(&number.to_string()), None, now + Duration::from_micros(20) * number);
            }
        }
        let due = watch_budget.due().unwrap();
        let (changes, _) = watch_budget.take(due).unwrap();
        assert_eq!(changes.written.len(), 1_000);
    }

    #[test]
    fn everything_is_looked_at_ever_more_seldom() {
        let (mut watch_budget, start) = (WatchBudget::default(), Instant::now());
        let overflow = Changes { overflow: true, ..Changes::default() };
        let mut looks = 0;
        for ms in 0..60_000 {
            let now = start + Duration::from_millis(ms);
            looks += u32::from(watch_budget.sift(overflow.clone(), now).is_some());
            looks += u32::from(watch_budget.take(now).is_some_and(|(changes, _)| changes.overflow));
        }
        assert!((18..25).contains(&looks), "{looks} in a minute");
    }

    #[test]
    fn turns_that_are_over_are_not_kept() {
        let (mut watch_budget, mut now) = (WatchBudget::default(), Instant::now());
        for number in 0..10_000 {
            watch_budget.admit(file(&number.to_string()), None, now);
            now += FILE_TURN;
        }
        assert!(watch_budget.turns.len() <= MOST_TURNS + 1);
    }
}
