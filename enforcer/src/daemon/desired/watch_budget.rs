//! When changes that the kernel reported are looked at: at once, unless they are reported without end.
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    Desired, Extent,
    emit::{Writer, Writers},
};
use crate::{
    cgroup::{Author, Changes, KeptFile, Reconciler},
    model::CgroupPath,
    sense::GuardEvent,
};

/// How often within a window a reported change leads to a look at once. The programs and inotify each report a foreign
/// write, and its reversal.
const CREDIT: u32 = 8;
/// The length of a window. Once the credit is used up, a reported change is looked at when the window ends.
const WINDOW: Duration = Duration::from_millis(50);
/// The same for a file. A look takes some milliseconds with hundreds of pods, so that no file uses up its credit in a
/// shorter window; and a value written so often is not written back sooner than after a second.
const FILE_WINDOW: Duration = Duration::from_millis(500);
/// How often the window is doubled when consecutive windows are used up.
const MOST_DOUBLINGS: u32 = 3;
/// The same for a look at everything, whose cost grows with the number of pods.
const WHOLE_WINDOW: Duration = Duration::from_millis(100);
const WHOLE_DOUBLINGS: u32 = 5;
/// Looks that are due within this time are done together.
const TOGETHER: Duration = Duration::from_millis(25);
/// How many windows are kept before ended ones are dropped.
const MOST_WINDOWS: usize = 64;

/// A thing that is looked at by itself.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Watched {
    /// A file of a cgroup.
    File(CgroupPath, String),
    /// Whether a cgroup has processes.
    Population(CgroupPath),
    /// The direct children of a cgroup.
    Children(CgroupPath),
    /// Everything planned: events were lost.
    Everything,
}

/// Each thing has a credit of looks, which is renewed after a moment. A thing that is reported without end is looked at
/// a few times a second, and costs no other thing its look.
#[derive(Debug, Default)]
pub(super) struct WatchBudget {
    windows: BTreeMap<Watched, Window>,
    /// Things reported beyond their credit, by the ends of their windows.
    deferred: BTreeSet<(Instant, Watched)>,
}

#[derive(Debug)]
struct Window {
    end: Instant,
    looks: u32,
    /// How many windows right before this one were used up.
    used_up: u32,
    is_deferred: bool,
    writer: Option<Writer>,
}

impl Watched {
    fn window(&self, used_up: u32) -> Duration {
        match self {
            Self::File(..) => FILE_WINDOW,
            Self::Population(_) | Self::Children(_) => WINDOW * (1 << used_up.min(MOST_DOUBLINGS)),
            Self::Everything => WHOLE_WINDOW * (1 << used_up.min(WHOLE_DOUBLINGS)),
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
    /// Drops ended windows: a thing that is reported again begins another.
    pub(super) fn forget_ended(&mut self, now: Instant) {
        self.windows.retain(|_, window| window.is_deferred || now < window.end);
    }

    /// Whether a reported thing is to be looked at now; otherwise it is when its window ends.
    pub(super) fn admit(&mut self, thing: Watched, writer: Option<Writer>, now: Instant) -> bool {
        if self.is_large() {
            self.forget_ended(now);
        }
        if let Some(window) =
            self.windows.get_mut(&thing).filter(|window| window.is_deferred || now < window.end)
        {
            if window.used_up == 0 && !window.is_deferred && window.looks < thing.credit() {
                window.looks += 1;
                return true;
            }
            window.writer = writer.or_else(|| window.writer.take());
            if !std::mem::replace(&mut window.is_deferred, true) {
                self.deferred.insert((window.end, thing));
            }
            return false;
        }
        let end = now + thing.window(0);
        self.windows.insert(thing, Window { end, looks: 1, used_up: 0, is_deferred: false, writer: None });
        true
    }

    /// When [`take`](Self::take) is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.deferred.first().map(|(due, _)| *due)
    }

    /// Takes what is to be looked at now, and who wrote to it, where that is known.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Changes, Writers)> {
        self.due().filter(|due| *due <= now)?;
        let (mut changes, mut writers) = (Changes::default(), Writers::default());
        while let Some((_, thing)) = self.deferred.first().filter(|(due, _)| *due <= now + TOGETHER).cloned()
        {
            self.deferred.pop_first();
            if let Some(window) = self.windows.get_mut(&thing) {
                window.used_up = window.used_up.saturating_add(1);
                window.end = now + thing.window(window.used_up);
                window.is_deferred = false;
                if let (Watched::File(path, file), Some(writer)) = (&thing, window.writer.take()) {
                    changes.authors.insert((path.clone(), file.clone()), author(&writer));
                    if let Some(kept) = KeptFile::named(file) {
                        writers.note(path.clone(), kept, writer);
                    }
                }
            }
            note(thing, &mut changes);
        }
        Some((changes, writers))
    }

    /// Returns the reported changes that are to be looked at now.
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

    /// Whether changes are reported without end, so that further ones should gather first.
    pub(super) fn is_flooded(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Whether it holds so many windows that [dropping](Self::forget_ended) them frees much.
    fn is_large(&self) -> bool {
        self.windows.len() > MOST_WINDOWS
    }
}

impl Desired {
    /// Looks at the cgroups that the kernel reported; `None` means that it no longer reports any. The guard's reports
    /// come first: they are older, and name the writer.
    pub(in crate::daemon) async fn changed(
        &mut self,
        changes: Option<Changes>,
        reported: Vec<GuardEvent>,
    ) -> anyhow::Result<()> {
        self.settle();
        self.guarded(reported).await?;
        let Some(changes) = changes else {
            self.candidates.note_branches(None);
            self.schedule.files_are_reported(false, Instant::now());
            if let Some(placing) = &mut self.placing {
                placing.is_unreported();
            }
            return Ok(());
        };
        match self.watch_budget.sift(changes, Instant::now()) {
            Some(changes) => {
                self.candidates.note_branches(Some(&changes));
                self.look_at(changes, &Writers::default()).await
            }
            None => Ok(()),
        }
    }

    pub(super) async fn look_at(&mut self, changes: Changes, writers: &Writers) -> anyhow::Result<()> {
        if let Some(placing) = &mut self.placing
            && (changes.overflow || !changes.children.is_empty())
        {
            placing.request_look();
        }
        let permit = self.permit.clone();
        let is_values = !changes.overflow && changes.populated.is_empty() && changes.children.is_empty();
        let extent = if is_values { Extent::Values } else { Extent::Cgroups };
        let look = move |reconciler: &mut Reconciler| reconciler.look_at(&changes, permit.as_deref());
        self.change_by(extent, writers, look).await?;
        self.fill_room().await
    }

    /// Whether changes are reported without end, so that further ones should gather for a moment.
    pub(in crate::daemon) fn is_flooded(&self) -> bool {
        self.watch_budget.is_flooded()
    }

    /// Whether the next [look](Self::look) frees much of what is held about reported changes.
    pub(in crate::daemon) fn can_free(&self) -> bool {
        self.watch_budget.is_large()
    }
}

/// The writer, for the reconciler.
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
            // A write, another notification of it, and the write that undoes it.
            for _ in 0..3 {
                assert!(watch_budget.admit(file("memory.max"), None, now));
            }
            assert_eq!(watch_budget.due(), None, "and nothing wakes for it");
            now += FILE_WINDOW;
        }
    }

    #[test]
    fn what_was_reported_of_many_takes_memory_until_the_next_look() {
        let (mut watch_budget, now) = (WatchBudget::default(), Instant::now());
        for number in 0..500 {
            watch_budget.admit(file(&number.to_string()), None, now);
        }
        assert!(watch_budget.is_large());
        watch_budget.forget_ended(now + FILE_WINDOW);
        assert!(!watch_budget.is_large() && watch_budget.windows.is_empty());
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
        assert!(due <= latest.unwrap() + FILE_WINDOW);
        assert!(watch_budget.take(due).is_some());
        assert_eq!(watch_budget.due(), None);
        let later = due + FILE_WINDOW;
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
            now += FILE_WINDOW;
        }
        assert!(watch_budget.windows.len() <= MOST_WINDOWS + 1);
    }
}
