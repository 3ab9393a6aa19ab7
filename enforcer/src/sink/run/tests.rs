use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard},
};

use serde_json::{Value, json};

use super::*;
use crate::journal::{Cursor, EventType, Filter, RawEvent};

/// An outlet that gives the set results, and takes everything after them.
#[derive(Clone, Debug, Default)]
struct Fake {
    says: Arc<Mutex<VecDeque<Result<usize, Trouble>>>>,
    /// The first sequence of each item that it took, in that order.
    taken: Arc<Mutex<Vec<u64>>>,
    attempts: Arc<Mutex<usize>>,
    hangs: Arc<Mutex<bool>>,
}

impl Outlet for Fake {
    const BACK_OFF: Bounds = Bounds { least: Duration::from_millis(20), most: Duration::from_millis(80) };

    fn limits(&self) -> (usize, usize) {
        (10, usize::MAX)
    }

    async fn deliver(&mut self, items: &[Item]) -> Result<usize, Trouble> {
        *self.attempts.lock().unwrap() += 1;
        let hangs = *self.hangs.lock().unwrap();
        if hangs {
            std::future::pending::<()>().await;
        }
        let say = self.says.lock().unwrap().pop_front().unwrap_or(Ok(usize::MAX));
        let taken = say?.min(items.len());
        self.taken.lock().unwrap().extend(items[..taken].iter().map(|item| item.first));
        Ok(taken)
    }
}

impl Fake {
    fn saying(says: impl IntoIterator<Item = Result<usize, Trouble>>) -> Self {
        Self { says: Arc::new(Mutex::new(says.into_iter().collect())), ..Self::default() }
    }

    fn taken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.taken.lock().unwrap()
    }
}

fn later() -> Trouble {
    Trouble::Later { why: String::from("not now"), after: None }
}

fn in_a_while() -> Trouble {
    Trouble::Later { why: String::from("in a while"), after: Some(Duration::from_millis(400)) }
}

fn never() -> Trouble {
    Trouble::Never { why: String::from("too large") }
}

fn gone() -> Trouble {
    Trouble::Gone { why: String::from("gone") }
}

struct Scene {
    dir: tempfile::TempDir,
    journal: Journal,
    health: Arc<Health>,
    fake: Fake,
    stop: watch::Sender<bool>,
}

impl Scene {
    fn new(fake: Fake) -> Self {
        let (stop, _) = watch::channel(false);
        let dir = tempfile::tempdir().unwrap();
        Self { dir, journal: Journal::new("n", "b"), health: Arc::default(), fake, stop }
    }

    fn append(&self, count: usize) {
        for _ in 0..count {
            let event = RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data: json!({}) };
            self.journal.append_raw(event);
        }
    }

    /// The sink's work, from where it was.
    fn work(&self, failing: Duration) -> impl Future<Output = ()> + use<> {
        let mut cursor = CursorFile::new(self.dir.path(), "fake");
        let after = cursor
            .read()
            .unwrap()
            .map_or(0, |cursor| crate::journal::resume(&self.journal, &cursor).unwrap());
        let run = Run {
            shown: String::from("fake"),
            feed: Feed::new(self.journal.clone(), after, Filter::default(), Arc::clone(&self.health)),
            journal: self.journal.clone(),
            cursor,
            outlet: self.fake.clone(),
            progress: self.health.add("fake"),
            health: Arc::clone(&self.health),
            failing,
        };
        run.run(self.stop.subscribe())
    }

    /// Waits until so many were taken, then stops it.
    async fn until_taken(&self, count: usize, failing: Duration) {
        let work = self.work(failing);
        let watch = async {
            let start = Instant::now();
            while self.fake.taken().len() < count {
                assert!(start.elapsed() < Duration::from_secs(20), "{:?}", self.fake.taken());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.stop.send_replace(true);
        };
        tokio::join!(work, watch);
    }

    fn kept(&self) -> Option<Cursor> {
        CursorFile::new(self.dir.path(), "fake").read().unwrap()
    }

    /// The messages of the events about sinks.
    fn reported(&self) -> Vec<(EventType, String)> {
        let mut reader = self.journal.reader(None, Filter::default());
        let mut reported = Vec::new();
        while let Some(crate::journal::Batch::Records(records)) = reader.read() {
            reported.extend(records.into_iter().filter_map(|record| {
                let event: Value = serde_json::from_slice(&record.line).unwrap();
                let message = event["data"]["message"].as_str()?.to_owned();
                Some((record.kind, message))
            }));
        }
        reported
    }
}

const LONG: Duration = Duration::from_hours(1);

#[tokio::test]
async fn everything_arrives_in_order_whatever_fails() {
    let scene = Scene::new(Fake::saying([Ok(3), Err(later()), Ok(1), Err(Trouble::Less), Err(later())]));
    scene.append(25);
    scene.until_taken(25, LONG).await;
    assert_eq!(*scene.fake.taken(), (1..=25).collect::<Vec<_>>());
    assert_eq!(scene.kept(), Some(scene.journal.cursor(25)));
    assert_eq!((scene.health.delivered(), scene.health.failures()), (25, 2));
    assert_eq!((scene.health.lag_records(25), scene.reported().len()), (0, 0));
    assert!(scene.health.last_success_ms().is_some());
}

#[tokio::test]
async fn the_next_goes_on_where_the_last_was() {
    let scene = Scene::new(Fake::default());
    scene.append(5);
    scene.until_taken(5, LONG).await;
    scene.append(5);
    scene.stop.send_replace(false);
    scene.until_taken(10, LONG).await;
    assert_eq!(*scene.fake.taken(), (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_cursor_is_on_the_disk_while_a_receiver_hangs() {
    let scene = Scene::new(Fake::default());
    scene.append(1);
    let work = scene.work(LONG);
    let watch = async {
        while scene.fake.taken().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        *scene.fake.hangs.lock().unwrap() = true;
        scene.append(1);
        let start = Instant::now();
        while scene.kept() != Some(scene.journal.cursor(1)) {
            assert!(start.elapsed() < Duration::from_mins(1), "{:?}", scene.kept());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let start = Instant::now();
        scene.stop.send_replace(true);
        start
    };
    let ((), start) = tokio::join!(work, watch);
    assert!(start.elapsed() < GOODBYE + Duration::from_secs(20), "a hanging receiver delays the shutdown");
    assert_eq!(scene.kept(), Some(scene.journal.cursor(1)));
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_has_it() {
    let scene = Scene::new(Fake::saying([Err(in_a_while())]));
    scene.append(1);
    let start = Instant::now();
    scene.until_taken(1, LONG).await;
    assert!(start.elapsed() >= Duration::from_millis(400));
    assert_eq!(*scene.fake.attempts.lock().unwrap(), 2);
}

#[tokio::test]
async fn long_failure_is_reported_once_and_its_end() {
    let scene = Scene::new(Fake::saying(std::iter::repeat_n(Err(later()), 12)));
    scene.append(1);
    // The event itself, and those that tell of it.
    scene.until_taken(3, Duration::from_millis(150)).await;
    let reported = scene.reported();
    assert_eq!(reported.len(), 2, "{reported:?}");
    assert_eq!(reported[0].0, EventType::DegradedEntered);
    assert!(
        reported[0].1.contains("fake takes no events") && reported[0].1.contains("not now"),
        "{reported:?}"
    );
    assert_eq!(reported[1].0, EventType::DegradedLeft);
}

#[tokio::test]
async fn short_failures_are_not_reported() {
    let says = (0..30).flat_map(|_| [Err(later()), Ok(1)]);
    let scene = Scene::new(Fake::saying(says));
    scene.append(30);
    scene.until_taken(30, Duration::from_secs(1)).await;
    assert_eq!(scene.reported(), []);
}

/// The event that reports a passed-over event is passed over as well, which no further event reports.
#[tokio::test]
async fn what_is_never_taken_makes_no_storm() {
    let scene = Scene::new(Fake::saying(std::iter::repeat_n(Err(never()), 50)));
    scene.append(49);
    let work = scene.work(LONG);
    let watch = async {
        while *scene.fake.attempts.lock().unwrap() < 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        scene.stop.send_replace(true);
    };
    tokio::join!(work, watch);
    assert_eq!(scene.reported().len(), 1, "{:?}", scene.reported());
    assert_eq!((scene.health.passed_over(), scene.journal.range().newest), (50, 50));
    assert_eq!(*scene.fake.attempts.lock().unwrap(), 50, "nothing is tried twice");
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_left_alone() {
    let scene = Scene::new(Fake::saying([Ok(1), Err(gone())]));
    scene.append(3);
    // It ends by itself.
    scene.work(LONG).await;
    assert_eq!((scene.fake.taken().len(), *scene.fake.attempts.lock().unwrap()), (1, 2));
    assert_eq!(scene.kept(), Some(scene.journal.cursor(1)), "what it did not take is there for another");
    let reported = scene.reported();
    assert!(reported.len() == 1 && reported[0].1.contains("its configuration changes"), "{reported:?}");
}

#[tokio::test]
async fn a_disk_that_takes_no_cursor_is_reported_once() {
    let scene = Scene::new(Fake::default());
    std::fs::write(scene.dir.path().join("sinks"), "no folder").unwrap();
    // Reading finds no folder either; it is as if there were no cursor.
    scene.append(2);
    let mut cursor = CursorFile::new(scene.dir.path(), "fake");
    assert!(cursor.read().is_err());
    let run = Run {
        shown: String::from("fake"),
        feed: Feed::new(scene.journal.clone(), 0, Filter::default(), Arc::clone(&scene.health)),
        journal: scene.journal.clone(),
        cursor,
        outlet: scene.fake.clone(),
        progress: scene.health.add("fake"),
        health: Arc::clone(&scene.health),
        failing: LONG,
    };
    let (work, watch) = (run.run(scene.stop.subscribe()), async {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        scene.stop.send_replace(true);
    });
    tokio::join!(work, watch);
    let reported = scene.reported();
    assert!(reported.len() == 1 && reported[0].1.contains("cannot write"), "{reported:?}");
    assert_eq!(scene.fake.taken().len(), 3, "events go on");
}

/// Whether what it has not delivered comes later or never: the next process begins with what comes then if it finds no
/// cursor.
#[tokio::test]
async fn what_follows_from_a_cursor_that_cannot_be_written_is_reported() {
    for (is_there, then) in [
        (false, "does not deliver pending events after a restart"),
        (true, "delivers events again after a restart"),
    ] {
        let scene = Scene::new(Fake::default());
        scene.append(1);
        if is_there {
            scene.until_taken(1, LONG).await;
            scene.stop.send_replace(false);
            scene.append(1);
        }
        // The new cursor has no place, for root either.
        std::fs::create_dir_all(scene.dir.path().join("sinks/.fake.cursor.new")).unwrap();
        scene.until_taken(1 + usize::from(is_there), LONG).await;
        let reported = scene.reported();
        assert!(reported.len() == 1 && reported[0].1.contains(then), "{reported:?}");
    }
}
