use super::scene::{Pod, Scene, process};
use crate::{
    engine::Mode,
    flight::{Assumption, Episode, Kernel, Kill, Span},
    model::CgroupId,
};

const PAGES_PER_MIB: i64 = 256;
/// A score's weight on a node of 4 GiB.
const PAGES_PER_SCORE: i64 = 1_048;

/// 190 MiB are left at the crossing, 8.1 s after the beginning.
fn scene() -> Scene {
    let hog = Pod { request: 0, held: 100, grows: 100 };
    Scene::new(200, 1_000, &[hog, Pod::still(0, 50)])
}

fn kills(episode: &Episode) -> (Vec<Kill>, i64) {
    let Kernel::Kills { kills, read_ms, assumptions: _ } = &episode.kernel else { panic!("{episode:?}") };
    (kills.iter().cloned().collect(), *read_ms)
}

fn pids(kill: &Kill) -> Vec<u32> {
    kill.victims.iter().map(|victim| victim.process.pid).collect()
}

#[test]
fn the_largest_is_killed_once_memory_is_used_up() {
    let processes = vec![process(20, Some(2), 50, 0), process(10, Some(1), 900, 0)];
    let episode = Scene { processes: vec![(8_000, processes)], ..scene() }.play();
    let (kills, read_ms) = kills(&episode);
    let [only] = &kills[..] else { panic!("{kills:?}") };
    assert_eq!((pids(only), only.is_certain, only.at_ms), (vec![10], true, Span::of(1_900)));
    // It grows from then on for 2 s.
    assert_eq!(only.victims.first.badness_pages, (900 + 200) * PAGES_PER_MIB);
    assert_eq!(read_ms, -100);
}

#[test]
fn the_score_decides_and_the_hog_comes_last() {
    let processes = vec![
        process(20, Some(2), 50, 1_000),
        process(10, Some(1), 2_000, -997),
        process(30, None, 3_000, -1_000),
    ];
    let episode = Scene { processes: vec![(8_000, processes)], ..scene() }.play();
    let (kills, _) = kills(&episode);
    let [first, second] = &kills[..] else { panic!("{kills:?}") };
    assert_eq!((pids(first), first.at_ms), (vec![20], Span::of(1_900)));
    assert_eq!(first.victims.first.badness_pages, 50 * PAGES_PER_MIB + 1_000 * PAGES_PER_SCORE);
    // The 50 MiB that came back last for half a second.
    assert_eq!((pids(second), second.at_ms), (vec![10], Span::of(2_400)));
    assert_eq!(second.victims.first.badness_pages, 2_250 * PAGES_PER_MIB - 997 * PAGES_PER_SCORE);
}

#[test]
fn a_group_dies_together_but_for_who_is_exempt() {
    let grouped = |pid, mib, score| {
        let process = process(pid, Some(1), mib, score);
        crate::flight::Process { group: Some(CgroupId(77)), ..process }
    };
    let processes = vec![
        grouped(10, 600, 0),
        grouped(11, 200, 0),
        grouped(12, 100, -1_000),
        process(20, Some(2), 50, 0),
        process(13, Some(1), 100, 0),
    ];
    let episode = Scene { processes: vec![(8_000, processes)], ..scene() }.play();
    let (kills, _) = kills(&episode);
    let [only] = &kills[..] else { panic!("{kills:?}") };
    assert_eq!((pids(only), only.victims.first.others), (vec![10], 1));
}

#[test]
fn of_equals_the_one_that_was_started_last_is_killed() {
    let processes = vec![process(21, None, 2_000, 0), process(22, None, 2_000, 0)];
    let episode = Scene { processes: vec![(8_000, processes)], ..scene() }.play();
    assert_eq!(pids(&kills(&episode).0[0]), [22]);
}

#[test]
fn the_latest_reading_before_the_daemon_acts_is_used() {
    let read = |ms, pid| (ms, vec![process(pid, Some(1), 900, 0)]);
    let processes = vec![read(5_000, 1), read(8_100, 2), read(8_200, 3)];
    let (kills, read_ms) = kills(&Scene { processes, ..scene() }.play());
    assert_eq!((pids(&kills[0]), read_ms), (vec![2], 0));
    let dry_run = Scene { mode: Mode::DryRun, processes: vec![read(8_200, 3)], ..scene() };
    let (kills, read_ms) = self::kills(&dry_run.play());
    assert_eq!((pids(&kills[0]), read_ms), (vec![3], 100));
}

#[test]
fn memory_that_does_not_fall_is_not_used_up() {
    let still = Scene {
        mode: Mode::DryRun,
        falls: 0,
        goes_on_ms: 200,
        processes: vec![(0, vec![process(1, Some(1), 100, 0)])],
        ..Scene::new(200, 100, &[Pod::still(0, 300)])
    };
    let Kernel::Spares { lowest_bytes, assumptions: _ } = still.play().kernel else { panic!() };
    assert_eq!(lowest_bytes, Span::of(100 << 20));
}

/// The pods grow by 100 MiB a second.
#[test]
fn what_takes_memory_outside_of_pods_is_named_and_not_guessed() {
    let assumes_a_rest = |falls| {
        let processes = vec![(0, vec![process(10, Some(1), 900, 0)])];
        let episode = Scene { falls, processes, ..scene() }.play();
        let Kernel::Kills { assumptions, .. } = episode.kernel else { panic!("{episode:?}") };
        assumptions.contains(&Assumption::RestGrowsNoProcess)
    };
    assert_eq!([100, 120, 140].map(assumes_a_rest), [false, false, true]);
}
