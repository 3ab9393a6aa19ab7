use super::{
    super::{
        outcome::Outcome,
        series::{samples::outcome, series},
    },
    *,
};

fn with(contender: &str, run: usize, change: impl Fn(&mut Outcome)) -> Outcome {
    let mut outcome = outcome(contender, "leak", run);
    change(&mut outcome);
    outcome
}

fn verdict(name: &str, outcomes: &[Outcome]) -> (Verdict, String) {
    let series = series(outcomes);
    let bar = bars(&series).into_iter().find(|bar| bar.name.contains(name)).unwrap();
    (bar.verdict, bar.because)
}

fn ours() -> Outcome {
    with(OURS, 1, |_| ())
}

#[test]
fn nothing_run_leaves_all_open() {
    assert!(bars(&[]).iter().all(|bar| bar.verdict == Verdict::Open));
    assert_eq!(bars(&[]).len(), 9);
}

#[test]
fn each_following_signal_is_on_time() {
    let run = |following: &[f64]| with(OURS, 1, |run| run.following_ms = following.to_vec());
    assert_eq!(verdict("following", &[run(&[])]).0, Verdict::Open);
    let (holds, because) = verdict("following", &[run(&[2.0, 9.5]), run(&[3.0])]);
    assert_eq!((holds, because.as_str()), (Verdict::Holds, "9.5 ms, median 3.0 ms, of 3 signals"));
    assert_eq!(verdict("following", &[run(&[2.0]), run(&[10.5])]).0, Verdict::Fails);
}

#[test]
fn one_wrong_victim_is_enough() {
    assert_eq!(verdict("right victims", &[ours()]), (Verdict::Holds, "1 of 1".into()));
    let wrong = with(OURS, 2, |run| run.right = false);
    assert_eq!(verdict("right victims", &[ours(), wrong]), (Verdict::Fails, "1 wrong at leak".into()));
    let others = with("oomd", 1, |run| run.right = false);
    assert_eq!(verdict("right victims", &[ours(), others]).0, Verdict::Holds);
}

#[test]
fn spared_pods_and_over_kills_are_counted() {
    assert_eq!(verdict("spared", &[ours()]).0, Verdict::Holds);
    assert_eq!(
        verdict("spared", &[with(OURS, 1, |run| run.kernel_kills_spared = 2)]),
        (Verdict::Fails, "2 at leak".into())
    );
    assert_eq!(verdict("over-kill", &[with(OURS, 1, |run| run.over_kills = 1)]).0, Verdict::Fails);
}

#[test]
fn the_slowest_of_few_runs_is_their_p99() {
    assert_eq!(verdict("p99", &[ours()]).0, Verdict::Holds);
    let slow = with(OURS, 2, |run| run.signal_ms = Some(50.1));
    assert_eq!(verdict("p99", &[ours(), slow]).0, Verdict::Fails);
    assert_eq!(verdict("p99", &[with(OURS, 1, |run| run.signal_ms = None)]).0, Verdict::Open);
}

#[test]
fn one_signal_that_is_reported_late_is_enough() {
    assert_eq!(verdict("journal", &[ours()]), (Verdict::Holds, "20.0 ms at the longest".into()));
    let late = with(OURS, 2, |run| run.journal_ms = Some(100.1));
    assert_eq!(verdict("journal", &[ours(), late]), (Verdict::Fails, "100.1 ms at the longest".into()));
    let unreported = with(OURS, 1, |run| run.journal_ms = None);
    assert_eq!(verdict("journal", &[unreported]).0, Verdict::Open);
}

#[test]
fn a_run_that_was_not_seen_reports_no_times() {
    let blind = with(OURS, 2, |run| {
        (run.seen, run.signal_ms, run.dead_ms, run.over_kills) = (false, Some(900.0), Some(900.0), 1);
    });
    let floor = with(FLOOR, 1, |run| run.dead_ms = Some(100.0));
    let outcomes = [ours(), blind.clone(), blind, floor];
    assert_eq!(verdict("p99", &outcomes), (Verdict::Holds, "4.0 ms of 1 runs".into()));
    assert_eq!(verdict("dead", &outcomes).0, Verdict::Holds);
    assert_eq!(verdict("over-kill", &outcomes).0, Verdict::Holds);
}

#[test]
fn the_best_of_the_others_is_what_counts() {
    let at = |ms| with("earlyoom", 1, move |run| run.signal_ms = Some(ms));
    let slower = with("nohang", 1, |run| run.signal_ms = Some(900.0));
    assert_eq!(verdict("5 times", &[ours(), slower.clone(), at(20.0)]).0, Verdict::Holds);
    assert_eq!(verdict("5 times", &[ours(), slower.clone(), at(19.0)]).0, Verdict::Fails);
    // A kill before the crossing is no answer to it, and the floor knows everything.
    assert_eq!(verdict("5 times", &[ours(), slower.clone(), at(-300.0)]).0, Verdict::Holds);
    let floor = with(FLOOR, 1, |run| run.signal_ms = Some(1.0));
    assert_eq!(verdict("5 times", &[ours(), slower, floor]).0, Verdict::Holds);
    assert_eq!(verdict("5 times", &[ours()]).0, Verdict::Open);
}

#[test]
fn death_is_held_to_the_floor() {
    let floor = |ms| with(FLOOR, 1, move |run| run.dead_ms = Some(ms));
    assert_eq!(verdict("dead", &[ours(), floor(91.0)]).0, Verdict::Holds);
    assert_eq!(verdict("dead", &[ours(), floor(90.0)]).0, Verdict::Fails);
    assert_eq!(verdict("dead", &[ours()]).0, Verdict::Open);
}

#[test]
fn stalls_need_runs_enough() {
    let runs = |contender: &'static str, count: usize, ms: f64| {
        (1..=count).map(move |run| with(contender, run, |outcome| outcome.stall_ms = ms))
    };
    let of = |count, own_ms| -> Vec<_> {
        runs(OURS, count, own_ms).chain(runs("oomd", count, 10.0)).chain(runs("bare", count, 90.0)).collect()
    };
    assert_eq!(verdict("stall", &of(9, 10.0)).0, Verdict::Open);
    let few: Vec<_> = runs(OURS, 9, 10.0).chain(runs("oomd", 10, 10.0)).collect();
    assert_eq!(verdict("stall", &few).0, Verdict::Open);
    assert_eq!(verdict("stall", &of(10, 12.0)).0, Verdict::Holds);
    let (failed, because) = verdict("stall", &of(10, 12.5));
    assert_eq!(failed, Verdict::Fails, "{because}");
}
