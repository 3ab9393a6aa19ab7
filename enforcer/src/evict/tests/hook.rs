//! What is run before a kill, from the crossing on.

use std::{path::Path, sync::mpsc, time::Duration};

use super::{
    node::{MIB, Node, Pod},
    whole::{config, next, nothing_more, start_with},
};
use crate::{
    evict::{HookProgram, HookRun, Reflex, ReflexConfig, Report},
    policy::engine::{EngineSettings, FailureReason, HookEnd, HookPlan, Mode},
};

const SECOND: u64 = 1_000_000_000;

/// A program of this machine, which belongs to root.
pub(in crate::evict) fn program(name: &str, args: &[&str]) -> HookProgram {
    let path = Path::new("/usr/bin").join(name).canonicalize().unwrap();
    HookProgram { path, args: args.iter().map(|arg| (*arg).to_owned()).collect() }
}

fn start(node: &Node, mode: Mode, hook: HookProgram, timeout_ns: u64) -> (Reflex, mpsc::Receiver<Report>) {
    let before = config(node, mode);
    let settings = EngineSettings { hook_timeout_ns: timeout_ns, ..before.settings };
    let hog = Pod::new("hog");
    node.add(&hog, 600 * MIB);
    start_with(&ReflexConfig { settings, hook: Some(hook), ..before }, node, &[&hog])
}

/// Up to the decision.
fn decided(reports: &mpsc::Receiver<Report>) -> HookPlan {
    loop {
        match next(reports) {
            Report::Crossed { .. } | Report::Suppressed { .. } => {}
            Report::Decided { decision, .. } => return decision.hook,
            other => panic!("{other:?}"),
        }
    }
}

fn ran(reports: &mpsc::Receiver<Report>) -> HookRun {
    loop {
        match next(reports) {
            Report::Hooked { ran, .. } => return ran,
            Report::Cleared { .. } | Report::Suppressed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_kill_follows_when_it_has_ended() {
    let node = Node::new(199 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, program("env", &[]), 30 * SECOND);
    assert!(matches!(decided(&reports), HookPlan::Awaited { for_ns } if for_ns <= 30 * SECOND));
    let HookRun { end, output, .. } = ran(&reports);
    assert_eq!(end, HookEnd::Exited(0));
    assert!(output.contains("ENFORCER_POD=hog"), "{output}");
    assert!(matches!(next(&reports), Report::Signalled { cut_short: None, .. }));
    assert!(node.killed("hog"));
    reflex.stop();
}

#[test]
fn the_kill_does_not_wait_longer_than_it_may() {
    let node = Node::new(199 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, program("sleep", &["1000"]), SECOND / 5);
    decided(&reports);
    let reported = [next(&reports), next(&reports)];
    assert!(reported.iter().any(|report| matches!(report, Report::Signalled { .. })), "{reported:?}");
    let end = reported.iter().find_map(|report| match report {
        Report::Hooked { ran, .. } => Some(ran.end),
        _ => None,
    });
    // Whoever of the two was first.
    assert!(matches!(end, Some(HookEnd::TimedOut | HookEnd::Cut)), "{reported:?}");
    assert!(node.killed("hog"));
    reflex.stop();
}

#[test]
fn no_process_is_signalled_if_the_hook_ended_the_shortage() {
    let node = Node::new(199 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, program("sleep", &["1"]), 30 * SECOND);
    decided(&reports);
    node.set_available(800 * MIB);
    assert_eq!(ran(&reports).end, HookEnd::Exited(0));
    loop {
        match next(&reports) {
            Report::Failed { failure, .. } => {
                assert_eq!(failure.reason, FailureReason::Relieved);
                break;
            }
            Report::Cleared { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(!node.killed("hog"));
    reflex.stop();
}

#[test]
fn what_others_could_change_is_not_run_and_the_kill_follows() {
    let node = Node::new(199 * MIB);
    let foreign = tempfile::NamedTempFile::new().unwrap();
    let hook = HookProgram { path: foreign.path().to_owned(), args: Vec::new() };
    let (reflex, reports) = start(&node, Mode::Enforce, hook, 30 * SECOND);
    decided(&reports);
    assert_eq!(ran(&reports).end, HookEnd::Unsafe);
    assert!(matches!(next(&reports), Report::Signalled { .. }));
    reflex.stop();
}

#[test]
fn in_a_dry_run_it_is_not_run() {
    let node = Node::new(199 * MIB);
    let (reflex, reports) = start(&node, Mode::DryRun, program("true", &[]), 30 * SECOND);
    assert_eq!(decided(&reports), HookPlan::Off);
    nothing_more(&reports);
    reflex.stop();
}

#[test]
fn stopping_does_not_wait_for_it() {
    let node = Node::new(199 * MIB);
    let (reflex, reports) = start(&node, Mode::Enforce, program("sleep", &["1000"]), 60 * SECOND);
    decided(&reports);
    std::thread::sleep(Duration::from_millis(100));
    reflex.stop();
    assert_eq!(ran(&reports).end, HookEnd::Cut);
    assert!(!node.killed("hog"));
}
