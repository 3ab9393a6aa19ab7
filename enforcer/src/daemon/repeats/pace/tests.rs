use proptest::prelude::*;

use super::*;
use crate::kube::PodRef;

fn eviction(id: &str, removal: Removal, repeats: u32, expiry: Instant) -> OpenEviction {
    let pod = PodRef { namespace: String::from("shop"), name: String::from("web"), uid: format!("uid-{id}") };
    OpenEviction { id: id.to_owned(), pod, removal, killed_ms: None, repeats, unsure: Vec::new(), expiry }
}

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn each_time_is_later_than_the_one_before_and_the_last_is_said_once() {
    let start = Instant::now();
    let mut pace = Pace::default();
    let open = eviction("e1", Removal::Accepted, 0, start + HOUR);
    let (mut now, mut pauses) = (start, Vec::new());
    for count in 1..=MOST {
        let due = pace.due(&open, false, now).unwrap();
        pauses.push(due.duration_since(now).as_millis());
        now = due.max(now);
        assert_eq!(pace.step(&open, &[CgroupId(1)], None, now), Some(Step::Kill { count }));
    }
    assert_eq!(pauses[..7], [0, 500, 1_000, 2_000, 4_000, 8_000, 10_000]);
    assert_eq!(pauses.last(), Some(&10_000));
    let due = pace.due(&open, false, now).unwrap();
    assert_eq!(pace.step(&open, &[CgroupId(1)], None, due), Some(Step::Exhausted));
    assert_eq!(pace.due(&open, true, now + HOUR / 2), None);
}

#[test]
fn what_an_earlier_process_reported_and_did_not_do_is_done_once_and_not_counted_again() {
    let start = Instant::now();
    let mut pace = Pace::default();
    let open = OpenEviction {
        unsure: vec![CgroupId(4), CgroupId(5)],
        ..eviction("e1", Removal::Accepted, 3, start + HOUR)
    };
    let both = [CgroupId(4), CgroupId(5)];
    let paused = Some(Spared::Paused);
    assert_eq!(pace.step(&open, &both, paused, start), Some(Step::Spare(Spared::Paused)));
    assert_eq!(pace.step(&open, &both[..1], None, start), Some(Step::Finish));
    assert_eq!(pace.count(&open), 3);
    // What does not die is killed again like any other.
    assert_eq!(pace.step(&open, &both, None, start + HOUR / 2), Some(Step::Kill { count: 4 }));
    // One that was started since is another.
    let mut pace = Pace::default();
    assert_eq!(pace.step(&open, &[CgroupId(4), CgroupId(6)], None, start), Some(Step::Kill { count: 4 }));
}

#[test]
fn a_pod_that_is_not_removed_is_killed_again_only_while_memory_is_short() {
    let start = Instant::now();
    let due = |removal, is_short| {
        let open = eviction("e1", removal, 0, start + HOUR);
        Pace::default().due(&open, is_short, start).is_some()
    };
    assert_eq!([Removal::Accepted, Removal::Asked].map(|removal| due(removal, false)), [true; 2]);
    assert_eq!([false, true].map(|is_short| due(Removal::Waiting, is_short)), [false, true]);
    let over = eviction("e1", Removal::Accepted, 0, start);
    assert_eq!(Pace::default().due(&over, true, start), None);
}

#[test]
fn what_an_earlier_process_did_counts_and_a_closed_eviction_is_forgotten() {
    let start = Instant::now();
    let mut pace = Pace::default();
    let open = eviction("e1", Removal::Accepted, 5, start + HOUR);
    assert_eq!(pace.step(&open, &[CgroupId(1)], None, start), Some(Step::Kill { count: 6 }));
    assert_eq!(pace.count(&open), 6);
    pace.keep(&[]);
    assert_eq!(pace.count(&open), 5);
    // An earlier process has reported this.
    let exhausted = eviction("e2", Removal::Accepted, MOST, start + HOUR);
    assert_eq!(pace.step(&exhausted, &[CgroupId(1)], None, start), None);
    assert_eq!(pace.due(&exhausted, true, start), None);
}

#[test]
fn a_reason_to_spare_is_said_once_and_a_refusal_too() {
    let start = Instant::now();
    let mut pace = Pace::default();
    let open = eviction("e1", Removal::Accepted, 0, start + HOUR);
    let (paused, protected) = (Some(Spared::Paused), Some(Spared::Protected));
    assert_eq!(pace.step(&open, &[CgroupId(1)], paused, start), Some(Step::Spare(Spared::Paused)));
    assert_eq!(pace.step(&open, &[CgroupId(1)], paused, start), None);
    assert_eq!(pace.step(&open, &[CgroupId(1)], protected, start), Some(Step::Spare(Spared::Protected)));
    assert_eq!(pace.step(&open, &[CgroupId(1)], None, start), Some(Step::Kill { count: 1 }));
    assert_eq!([pace.refused(&open, start), pace.refused(&open, start)], [true, false]);
    assert_eq!(pace.due(&open, false, start), Some(start + LONGEST_PAUSE));
    assert_eq!(pace.count(&open), 1, "only kills count");
}

#[derive(Clone, Debug)]
struct Moment {
    after_ms: u64,
    eviction: usize,
    removal: Removal,
    is_short: bool,
    spared: Option<Spared>,
}

fn moments() -> impl Strategy<Value = Vec<Moment>> {
    let removal = prop::sample::select(vec![Removal::Accepted, Removal::Asked, Removal::Waiting]);
    let spared = prop::sample::select(vec![None, None, Some(Spared::Paused), Some(Spared::Protected)]);
    let moment = (0_u64..12_000, 0_usize..3, removal, any::<bool>(), spared);
    let moment = moment.prop_map(|(after_ms, eviction, removal, is_short, spared)| Moment {
        after_ms,
        eviction,
        removal,
        is_short,
        spared,
    });
    prop::collection::vec(moment, 0..400)
}

proptest! {
    /// Whatever happens: never when spared, unwanted or over, never twice within the shortest pause, and never more often
    /// than the most; and one that always runs and may be killed is, once its pause is over.
    #[test]
    fn containers_are_killed_again_within_bounds(moments in moments()) {
        let start = Instant::now();
        let mut pace = Pace::default();
        let mut now = start;
        let mut killed: [Vec<Instant>; 3] = Default::default();
        let mut exhausted = [0_u32; 3];
        for Moment { after_ms, eviction: number, removal, is_short, spared } in moments {
            now += Duration::from_millis(after_ms);
            let open = eviction(&format!("e{number}"), removal, 0, start + HOUR / 2);
            let due = pace.due(&open, is_short, now);
            let may = (removal != Removal::Waiting || is_short) && now < open.expiry;
            prop_assert!(may || due.is_none());
            let last = killed[number].last().copied();
            let is_over = last.is_none_or(|last| now >= last + LONGEST_PAUSE);
            prop_assert!(!may || !is_over || exhausted[number] > 0 || due.is_some_and(|due| due <= now));
            if due.is_none_or(|due| due > now) {
                continue;
            }
            match pace.step(&open, &[CgroupId(1)], spared, now) {
                Some(Step::Kill { count }) => {
                    prop_assert_eq!(spared, None);
                    prop_assert!(last.is_none_or(|last| now >= last + FIRST_PAUSE));
                    killed[number].push(now);
                    prop_assert_eq!(usize::try_from(count).unwrap(), killed[number].len());
                    prop_assert!(count <= MOST);
                }
                Some(Step::Exhausted) => exhausted[number] += 1,
                Some(Step::Spare(of)) => prop_assert_eq!(Some(of), spared),
                // Nothing is unsure.
                step @ Some(Step::Finish) => prop_assert_eq!(step, None),
                None => prop_assert!(spared.is_some()),
            }
            prop_assert!(exhausted[number] <= 1);
        }
    }
}
