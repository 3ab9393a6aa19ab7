use super::*;

const MIB: u64 = 1 << 20;
const THRESHOLD: u64 = 200 * MIB;

fn pod(name: &str, root: u32, grows: bool) -> Pod {
    Pod { name: name.into(), cgroup: format!("/b/{name}"), root, grows }
}

fn sample(time_us: u64, available_mib: u64, held_mib: &[u64]) -> Sample {
    let mut sample = Sample { time_us, available_bytes: available_mib * MIB, ..Sample::default() };
    for (held_bytes, mib) in sample.held_bytes.iter_mut().zip(held_mib) {
        *held_bytes = mib * MIB;
    }
    sample
}

fn signal(time_us: u64, pid: u32, sender: &str) -> Event {
    Event { time_us, by: 7, what: What::Signal { pid, sender: sender.into() } }
}

fn emptied(time_us: u64, name: &str) -> Event {
    Event { time_us, by: 0, what: What::Emptied { cgroup: format!("/b/{name}") } }
}

fn reported() -> Reported {
    Reported {
        contender: "c".into(),
        workload: "w".into(),
        run: 1,
        kernel_kills_counted: 0,
        journalled_us: Vec::new(),
        stall_ms: 1.0,
        cpu_ms: None,
        resident_bytes: None,
    }
}

/// A sample a millisecond from 1,000 us on: each of these amounts once.
fn line(available_mib: &[u64], held_mib: &[&[u64]]) -> Vec<Sample> {
    let mut time_us = 0;
    let mut samples = Vec::new();
    for (available, held) in available_mib.iter().zip(held_mib.iter().chain(std::iter::repeat(&&[][..]))) {
        time_us += 1_000;
        samples.push(sample(time_us, *available, held));
    }
    samples
}

fn judged(pods: &[Pod], expected: &[&str], samples: &[Sample], events: &[Event]) -> Outcome {
    let facts = Facts {
        threshold_bytes: THRESHOLD,
        pods,
        expected,
        any_order: false,
        charge_cache_bytes: MIB,
        began_us: 1_000,
        samples,
        events,
    };
    reckon(&facts, reported())
}

fn is(value: Option<f64>, ms: f64) -> bool {
    value.is_some_and(|value| (value - ms).abs() < 1e-9)
}

#[test]
fn each_step_is_timed_from_the_crossing() {
    let pods = [pod("ballast", 10, false), pod("hog", 11, true)];
    let available = [300, 250, 199, 190, 180, 195, 400, 400, 400, 400, 400, 400, 400, 400, 400, 400];
    let samples = line(&available, &[]);
    let events = [signal(3_500, 11, "killer"), emptied(6_200, "hog")];
    let outcome = judged(&pods, &["hog"], &samples, &events);
    assert!(outcome.right && outcome.crossed);
    assert!(is(outcome.signal_ms, 0.5), "{:?}", outcome.signal_ms);
    assert!(is(outcome.dead_ms, 3.2), "{:?}", outcome.dead_ms);
    assert!(is(outcome.back_ms, 4.0), "{:?}", outcome.back_ms);
    assert_eq!((outcome.lowest_bytes, outcome.over_kills, outcome.signals), (180 * MIB, 0, 1));
    assert_eq!(outcome.first_signals.len(), 1);
    assert_eq!((outcome.looks, outcome.late_looks), (16, 0));
}

#[test]
fn the_signal_that_the_log_had_last_is_timed_from_itself() {
    let pods = [pod("first", 10, true), pod("second", 11, true), pod("spared", 12, true)];
    let samples = line(&[300, 199, 180, 300], &[]);
    let events = [signal(2_500, 10, "killer"), signal(3_500, 11, "killer")];
    let facts = Facts {
        threshold_bytes: THRESHOLD,
        pods: &pods,
        expected: &[],
        any_order: false,
        charge_cache_bytes: MIB,
        began_us: 1_000,
        samples: &samples,
        events: &events,
    };
    let journalled_us = [("first", 12_500), ("second", 53_500), ("spared", 900_000)];
    let journalled_us = journalled_us.map(|(name, us)| (name.to_owned(), us)).into();
    let outcome = reckon(&facts, Reported { journalled_us, ..reported() });
    assert!(is(outcome.journal_ms, 50.0), "{:?}", outcome.journal_ms);
    assert_eq!(judged(&pods, &[], &samples, &events).journal_ms, None);
}

#[test]
fn what_was_before_the_work_counts_for_nothing() {
    let pods = [pod("hog", 11, true)];
    let mut samples = vec![sample(500, 10, &[])];
    samples.extend(line(&[300, 300], &[]));
    let outcome = judged(&pods, &[], &samples, &[signal(900, 11, "killer"), emptied(950, "hog")]);
    assert!(outcome.right && !outcome.crossed);
    assert_eq!((outcome.died.len(), outcome.lowest_bytes), (0, 300 * MIB));
    assert_eq!(outcome.signal_ms, None);
}

#[test]
fn order_and_death_decide_what_is_right() {
    let pods = [pod("a", 11, true), pod("b", 12, true)];
    let samples = line(&[300, 199, 150, 150], &[]);
    let both = [signal(2_100, 11, "k"), emptied(2_500, "a"), signal(2_600, 12, "k"), emptied(2_700, "b")];
    assert!(judged(&pods, &["a", "b"], &samples, &both).right);
    let outcome = judged(&pods, &["b", "a"], &samples, &both);
    assert!(!outcome.right);
    assert_eq!(outcome.died, ["a", "b"]);
    assert!(!judged(&pods, &["a"], &samples, &both).right, "one too many");
    assert!(!judged(&pods, &["a"], &samples, &both[..1]).right, "signalled and not dead");
    // A pod that ends without a signal has ended as well.
    let outcome = judged(&pods, &["a"], &samples, &[emptied(2_500, "b"), signal(2_600, 11, "k")]);
    assert_eq!((outcome.died, outcome.right), (vec!["b".to_owned(), "a".to_owned()], false));
}

#[test]
fn a_bombs_children_are_the_pods() {
    let pods = [pod("calm", 10, false), pod("bomb", 11, true)];
    let samples = line(&[300, 199, 150], &[]);
    let fork = |parent, child| Event { time_us: 500, by: parent, what: What::Fork { parent, child } };
    let events = [
        fork(11, 20),
        fork(20, 21),
        fork(1, 30),
        signal(2_100, 21, "k"),
        signal(2_200, 30, "k"),
        signal(2_300, 20, "k"),
    ];
    let outcome = judged(&pods, &["bomb"], &samples, &events);
    assert_eq!((outcome.died, outcome.signals, outcome.right), (vec!["bomb".to_owned()], 2, false));
}

#[test]
fn kernel_kills_are_reported_apart() {
    let pods = [pod("ballast", 10, false), pod("hog", 11, true)];
    let samples = line(&[300, 199, 50], &[]);
    let events = [
        signal(2_100, 10, "workload"),
        Event { time_us: 2_101, by: 7, what: What::Marked { pid: 10 } },
        signal(2_500, 11, "killer"),
        // It was dying already when the kernel came upon it.
        Event { time_us: 2_600, by: 8, what: What::Marked { pid: 11 } },
    ];
    let outcome = judged(&pods, &["hog"], &samples, &events);
    assert_eq!((outcome.kernel_kills, outcome.kernel_kills_spared), (1, 1));
    // The same kill of one that should die is a kernel kill, and none of a spared pod.
    let outcome = judged(&pods, &["ballast"], &samples, &events[..2]);
    assert_eq!((outcome.kernel_kills, outcome.kernel_kills_spared), (1, 0));
    let outcome = judged(&pods, &["hog"], &samples, &events);
    assert_eq!(outcome.first_signals.iter().map(|first| first.kernel).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_kill_without_a_shortage_is_one_too_many() {
    let pods = [pod("a", 11, true)];
    // The sampler's last look before the signal is above, and so is the next one.
    let samples = line(&[300, 250, 240, 230, 220, 210, 205, 204, 203, 202], &[]);
    let outcome = judged(&pods, &["a"], &samples, &[signal(7_500, 11, "k"), emptied(8_000, "a")]);
    assert_eq!(outcome.over_kills, 1);
    // A look between the signal and the sampler's next may have been below.
    let samples = line(&[300, 250, 240, 230, 220, 210, 205, 199, 198, 197], &[]);
    let outcome = judged(&pods, &["a"], &samples, &[signal(7_500, 11, "k"), emptied(8_000, "a")]);
    assert_eq!(outcome.over_kills, 0);
    assert!(is(outcome.signal_ms, -0.5), "{:?}", outcome.signal_ms);
}

#[test]
fn what_a_victim_still_holds_is_on_its_way_back() {
    let pods = [pod("a", 11, true), pod("b", 12, true)];
    let events = [signal(2_100, 11, "k"), signal(4_100, 12, "k")];
    let held = |mib: u64, kept: u64| {
        [&[100, 80][..], &[110, 85], &[mib, 88], &[mib, 90], &[kept, 90]].map(<[u64]>::to_vec)
    };
    let run = |mib, kept| {
        let held = held(mib, kept);
        let held: Vec<&[u64]> = held.iter().map(Vec::as_slice).collect();
        judged(&pods, &["a", "b"], &line(&[210, 199, 195, 190, 190], &held), &events).over_kills
    };
    assert_eq!(run(60, 0), 1, "190 and 60 are enough");
    assert_eq!(run(5, 0), 0, "190 and 5 are not");
    assert_eq!(run(60, 55), 0, "55 of 60 stay with it");
}

#[test]
fn what_a_dead_victim_is_charged_for_without_a_page_does_not_come_back() {
    let pods = [pod("a", 11, true), pod("b", 12, true)];
    let held: [&[u64]; 5] = [&[100, 80], &[110, 85], &[2, 88], &[2, 90], &[0, 90]];
    let run = |available_mib: u64, emptied_us: u64| {
        let events = [signal(2_100, 11, "k"), emptied(emptied_us, "a"), signal(4_100, 12, "k")];
        let samples = line(&[230, 220, 210, available_mib, available_mib], &held);
        judged(&pods, &["a", "b"], &samples, &events).over_kills
    };
    assert_eq!(run(198, 3_900), 0, "1 of the 2 may be no memory");
    assert_eq!(run(199, 3_900), 1, "the other 1 is");
    assert_eq!(run(198, 4_900), 1, "it was not dead yet");
}

#[test]
fn memory_is_back_when_it_stays() {
    let samples =
        line(&[300, 199, 201, 199, 201, 199, 300, 300, 300, 300, 300, 300, 300, 300, 300, 300], &[]);
    let pods = [pod("a", 11, true)];
    let outcome = judged(&pods, &["a"], &samples, &[signal(2_100, 11, "k")]);
    assert!(is(outcome.back_ms, 5.0), "{:?}", outcome.back_ms);
    let outcome = judged(&pods, &["a"], &samples[..12], &[signal(2_100, 11, "k")]);
    assert_eq!(outcome.back_ms, None);
}

#[test]
fn the_rate_is_of_those_that_grow_until_the_crossing() {
    let pods = [pod("ballast", 10, false), pod("a", 11, true), pod("b", 12, true)];
    let held: [&[u64]; 5] = [&[900, 1, 1], &[900, 10, 10], &[900, 20, 20], &[500, 30, 30], &[900, 99, 99]];
    let samples = line(&[400, 300, 250, 199, 100], &held);
    let outcome = judged(&pods, &["a"], &samples, &[]);
    // From 20 to 60 MiB in 2 ms.
    assert_eq!(outcome.rate_bytes, Some(20_000 * MIB));
}

#[test]
fn late_looks_are_counted() {
    let pods = [pod("a", 11, true)];
    let samples = [sample(1_000, 300, &[]), sample(3_000, 300, &[]), sample(5_500, 300, &[])];
    let outcome = judged(&pods, &[], &samples, &[]);
    assert_eq!((outcome.looks, outcome.late_looks), (3, 1));
    assert!((outcome.longest_look_ms - 2.5).abs() < 1e-9);
}

#[test]
fn what_falls_between_distant_looks_is_not_seen() {
    let pods = [pod("a", 11, true)];
    let at = |times_us: [u64; 4]| {
        let samples = times_us.map(|time_us| sample(time_us, if time_us < 10_000 { 300 } else { 190 }, &[]));
        let outcome = judged(&pods, &["a"], &samples, &[signal(10_500, 11, "k"), emptied(11_000, "a")]);
        (outcome.uncertain_ms, outcome.seen)
    };
    let is = |(uncertain_ms, seen): (f64, bool), ms: f64, expected: bool| {
        assert!((uncertain_ms - ms).abs() < 1e-9 && seen == expected, "{uncertain_ms} {seen}");
    };
    is(at([1_000, 9_000, 10_000, 11_000]), 1.0, true);
    is(at([1_000, 3_000, 10_000, 11_000]), 7.0, false);
    is(at([1_000, 9_000, 10_000, 18_000]), 8.0, false);
    // No pod died, and nothing was crossed: there was nothing to see.
    let samples = [sample(1_000, 300, &[]), sample(90_000, 300, &[])];
    assert!(judged(&pods, &[], &samples, &[]).seen);
}

/// 2.7 ms before the look that shows the crossing, and 5.6 ms between that and the one before.
#[test]
fn a_signal_within_the_looks_between_which_the_crossing_lies_is_uncertain() {
    let pods = [pod("hog", 11, true)];
    let samples = [sample(1_000, 300, &[]), sample(2_000, 205, &[]), sample(7_600, 190, &[])];
    let outcome = judged(&pods, &["hog"], &samples, &[signal(4_900, 11, "killer")]);
    assert_eq!((outcome.over_kills, outcome.uncertain_signals, outcome.seen), (0, 1, false));
    // Looks that are close together tell.
    let samples = [sample(1_000, 300, &[]), sample(4_000, 205, &[]), sample(6_000, 190, &[])];
    let outcome = judged(&pods, &["hog"], &samples, &[signal(4_900, 11, "killer")]);
    assert_eq!((outcome.over_kills, outcome.uncertain_signals, outcome.seen), (0, 0, true));
    let samples = [sample(1_000, 300, &[]), sample(4_000, 300, &[]), sample(8_000, 300, &[])];
    let outcome = judged(&pods, &["hog"], &samples, &[signal(4_900, 11, "killer")]);
    assert_eq!((outcome.over_kills, outcome.uncertain_signals), (1, 0));
}

#[test]
fn each_following_signal_is_timed_from_its_own_crossing_or_the_death_before() {
    let pods = [pod("a", 11, true), pod("b", 12, true), pod("c", 13, true)];
    // Short from 3 ms on, enough again from 5 to 14, short from 15 on and for good.
    let available =
        [300, 250, 199, 190, 210, 250, 260, 260, 260, 250, 240, 230, 220, 210, 195, 190, 180, 170, 160, 150];
    let samples = line(&available, &[]);
    let events = [
        signal(3_500, 11, "k"),
        emptied(4_500, "a"),
        signal(16_500, 12, "k"),
        emptied(17_500, "b"),
        signal(19_000, 13, "k"),
        emptied(19_500, "c"),
    ];
    let outcome = judged(&pods, &["a", "b", "c"], &samples, &events);
    assert_eq!(outcome.following_ms, [1.5, 1.5]);
    let facts = Facts {
        threshold_bytes: THRESHOLD,
        pods: &pods,
        expected: &["c", "a", "b"],
        any_order: true,
        charge_cache_bytes: MIB,
        began_us: 1_000,
        samples: &samples,
        events: &events,
    };
    assert!(reckon(&facts, reported()).right);
    assert!(!reckon(&Facts { any_order: false, ..facts }, reported()).right);
}
