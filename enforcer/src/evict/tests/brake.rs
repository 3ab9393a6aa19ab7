//! Holding a candidate back and letting go of it: what is written where, and what is left behind.

use std::{fs, sync::mpsc, time::Duration};

use super::node::{MIB, Node, Pod};
use crate::{
    cgroup::Throttled,
    evict::{
        BrakeBook, Report,
        brake::{self, Braking},
        queue::{self, queue},
    },
    journal::{Intent, Intents},
    model::CgroupFile,
    policy::engine::{BrakeRefusal, Outcome},
};

/// The helper thread, with a book of its own.
struct Helper {
    node: Node,
    run_dir: tempfile::TempDir,
    throttled: Throttled,
    work: Option<queue::Sender<Braking>>,
    outcomes: mpsc::Receiver<Outcome>,
    reports: mpsc::Receiver<Report>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Helper {
    fn new(high: &str) -> Self {
        let helper = Self::with_book(true);
        helper.node.add(&Pod::new("a"), 100 * MIB);
        helper.node.write("a", "memory.high", high);
        helper
    }

    fn with_book(has_book: bool) -> Self {
        let (node, run_dir) = (Node::new(0), tempfile::tempdir().unwrap());
        let throttled = Throttled::default();
        let book = has_book.then(|| {
            let slots = Intents::open_lasting(run_dir.path(), "b").unwrap().brakes;
            BrakeBook::new(slots, throttled.clone())
        });
        let (work, received) = queue(4).unwrap();
        let (sender, outcomes) = mpsc::channel();
        let (reporter, reports) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let answer = |outcome| sender.send(outcome).unwrap();
            brake::run(&received, book, answer, |report| reporter.send(report).unwrap());
        });
        Self { node, run_dir, throttled, work: Some(work), outcomes, reports, thread: Some(thread) }
    }

    fn ask(&self, work: Braking) -> Outcome {
        self.work.as_ref().unwrap().offer(work).unwrap();
        self.outcomes.recv_timeout(Duration::from_secs(10)).expect("an answer")
    }

    fn hold(&self, brake: u64, high_bytes: u64) -> Outcome {
        let candidate = self.node.candidate(&Pod::new("a"));
        self.ask(Braking::Hold { brake, candidate, high_bytes })
    }

    fn ease(&self, brake: u64) -> Outcome {
        self.ask(Braking::Ease { brake })
    }

    fn high(&self) -> String {
        self.node.read("a", "memory.high")
    }

    /// The error in the next report of a file that cannot be restored; none once it is restored.
    fn stuck(&self) -> Option<String> {
        match self.reports.recv_timeout(Duration::from_secs(10)).expect("a report") {
            Report::Stuck(stuck) => stuck.error.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// What another process would find on the intent page: the old and the new value.
    fn left(&self) -> Vec<(String, String)> {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(self.run_dir.path().join("intent"), copy.path().join("intent")).unwrap();
        let left = Intents::open_lasting(copy.path(), "b").unwrap().left;
        left.into_iter()
            .map(|intent| match intent {
                Intent::Value { value, .. } if value.file() == CgroupFile::MemoryHigh => {
                    (value.original().to_string(), value.temporary().to_string())
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn stop(&mut self) {
        self.work = None;
        self.thread.take().unwrap().join().unwrap();
    }
}

fn refused(outcome: Outcome) -> Option<BrakeRefusal> {
    match outcome {
        Outcome::Uncontained { reason, .. } => Some(reason),
        _ => None,
    }
}

#[test]
fn it_is_written_down_held_and_given_back() {
    let mut helper = Helper::new("max\n");
    let id = helper.node.candidate(&Pod::new("a")).facts().cgroup;
    assert!(matches!(helper.hold(1, 90 * MIB), Outcome::Contained { brake: 1, .. }));
    assert!(helper.high().starts_with("94371840"), "{}", helper.high());
    assert_eq!(helper.left(), [(String::from("max"), String::from("94371840"))]);
    assert!(helper.throttled.holds(id));

    // The file of a real cgroup holds one value only.
    helper.node.write("a", "memory.high", "94371840\n");
    assert!(matches!(helper.ease(1), Outcome::Eased { brake: 1, given_back: true, .. }));
    assert!(helper.high().starts_with("max"), "{}", helper.high());
    assert_eq!(helper.left(), []);
    assert!(!helper.throttled.holds(id));
    assert!(matches!(helper.ease(1), Outcome::Eased { given_back: true, .. }), "once more is no harm");
    helper.stop();
}

#[test]
fn a_brake_that_stops_restores_the_value() {
    let mut helper = Helper::new("max\n");
    helper.hold(1, 90 * MIB);
    helper.node.write("a", "memory.high", "94371840\n");
    helper.stop();
    assert!(helper.high().starts_with("max"), "{}", helper.high());
    assert_eq!(helper.left(), []);
}

/// The file cannot be written at first: that is reported, and tried again until it can.
#[test]
fn what_cannot_be_given_back_at_once_is_reported_and_tried_again() {
    let mut helper = Helper::new("max\n");
    helper.hold(1, 90 * MIB);
    let candidate = helper.node.candidate(&Pod::new("a"));
    let file = helper.node.dir("a").join("memory.high");
    let break_it = || {
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
    };
    let fix_it = |content: &str| {
        fs::remove_dir(&file).unwrap();
        fs::write(&file, content).unwrap();
    };
    break_it();
    assert!(matches!(helper.ease(1), Outcome::Eased { brake: 1, given_back: false, .. }));
    assert!(helper.stuck().is_some());
    assert_eq!(helper.left().len(), 1, "the next start would find it");
    // The pod is not held back a second time: the value to restore would be the one that we wrote.
    let again = helper.ask(Braking::Hold { brake: 2, candidate, high_bytes: 80 * MIB });
    assert_eq!(refused(again), Some(BrakeRefusal::Lower));
    fix_it("94371840\n");
    assert_eq!(helper.stuck(), None);
    assert!(helper.high().starts_with("max"), "{}", helper.high());
    assert_eq!(helper.left(), []);
    // The file of a real cgroup holds one value only.
    helper.node.write("a", "memory.high", "max\n");
    assert!(matches!(helper.hold(3, 90 * MIB), Outcome::Contained { brake: 3, .. }));
    helper.node.write("a", "memory.high", "94371840\n");
    break_it();
    helper.ease(3);
    assert!(helper.stuck().is_some());
    fix_it("94371840\n");
    helper.stop();
    assert!(helper.high().starts_with("max"), "{}", helper.high());
}

#[test]
fn a_value_that_another_wrote_meanwhile_stays() {
    let mut helper = Helper::new("1073741824\n");
    helper.hold(1, 90 * MIB);
    helper.node.write("a", "memory.high", "536870912\n");
    assert!(matches!(helper.ease(1), Outcome::Eased { given_back: true, .. }));
    assert_eq!(helper.high(), "536870912\n");
    assert_eq!(helper.left(), []);
    helper.stop();
}

#[test]
fn nothing_is_written_that_could_not_be_undone_or_would_let_go() {
    let lower = Helper::new("1048576\n");
    assert_eq!(refused(lower.hold(1, 90 * MIB)), Some(BrakeRefusal::Lower));
    assert_eq!(lower.high(), "1048576\n");

    let absent = Helper::new("max\n");
    fs::remove_file(absent.node.dir("a").join("memory.high")).unwrap();
    assert_eq!(refused(absent.hold(1, 90 * MIB)), Some(BrakeRefusal::Absent));

    let ours = Helper::new("max\n");
    let candidate = ours.node.candidate(&Pod::new("a"));
    ours.node.write("a", "app/cgroup.procs", &format!("{}\n", std::process::id()));
    let reported = ours.ask(Braking::Hold { brake: 1, candidate, high_bytes: MIB });
    assert_eq!(refused(reported), Some(BrakeRefusal::Forbidden));

    let unwritten = Helper::with_book(false);
    unwritten.node.add(&Pod::new("a"), 100 * MIB);
    assert_eq!(refused(unwritten.hold(1, 90 * MIB)), Some(BrakeRefusal::Unwritten));
    for helper in [absent, ours, lower] {
        assert_eq!(helper.left(), []);
        assert!(helper.throttled.all().is_empty());
    }
}

/// systemd puts back what it knows when its units are reloaded.
#[test]
fn it_is_lowered_again_when_another_puts_the_old_value_back() {
    let mut helper = Helper::new("max\n");
    assert!(matches!(helper.hold(1, 64 * MIB), Outcome::Contained { .. }));
    let lowered = helper.high();
    let becomes = |helper: &Helper, wanted: &str| {
        (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            helper.high().trim() == wanted.trim()
        })
    };
    for _ in 0..3 {
        helper.node.write("a", "memory.high", "max\n");
        assert!(becomes(&helper, &lowered), "{}", helper.high());
    }
    // A writer that insists keeps its value.
    helper.node.write("a", "memory.high", "max\n");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(helper.high().trim(), "max");
    assert!(matches!(helper.ease(1), Outcome::Eased { given_back: true, .. }));
    assert_eq!(helper.left(), []);
    helper.stop();
}

#[test]
fn a_value_that_another_wrote_on_purpose_stays() {
    let mut helper = Helper::new("max\n");
    assert!(matches!(helper.hold(1, 64 * MIB), Outcome::Contained { .. }));
    helper.node.write("a", "memory.high", "1048576\n");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(helper.high().trim(), "1048576");
    helper.stop();
    assert_eq!(helper.high().trim(), "1048576");
}
