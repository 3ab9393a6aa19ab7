use super::scene::{MIB, Pod, Scene, encoded, hard, only, process};
use crate::{
    engine::Mode,
    flight::{Kernel, Kubelet, RecordRef, Unknown},
    threshold::{Signal, Threshold, ThresholdValue},
};

fn scene() -> Scene {
    Scene::new(200, 1_000, &[Pod { request: 0, held: 100, grows: 100 }, Pod::still(0, 50)])
}

/// It is crossed 300 ms before the decision.
fn soft() -> Scene {
    Scene { thresholds: vec![Threshold { grace_period_ms: 300, ..hard(200) }], ..scene() }
}

fn with_signal(signal: Signal, amount: u64) -> Scene {
    Scene { thresholds: vec![Threshold::hard(signal, ThresholdValue::Amount(amount))], ..scene() }
}

/// Both are unknown for this reason.
fn assert_unknown(file: &[u8], why: Unknown) {
    let episode = only(file);
    assert_eq!(episode.kubelet, Kubelet::Unknown(why));
    assert_eq!(episode.kernel, Kernel::Unknown(why));
}

#[test]
fn process_ids_are_no_memory() {
    let scene = with_signal(Signal::PidAvailable, 20);
    assert_unknown(&scene.file(&scene.records()), Unknown::NotMemory);
}

#[test]
fn of_the_pods_limit_only_the_kubelet_is_known() {
    let mut scene = with_signal(Signal::AllocatableMemoryAvailable, 200 * MIB);
    scene.processes = vec![(0, vec![process(1, Some(1), 100, 0)])];
    let episode = scene.play();
    assert!(matches!(episode.kubelet, Kubelet::Evicts { .. }), "{episode:?}");
    assert_eq!(episode.kernel, Kernel::Unknown(Unknown::PodsLimit));
}

#[test]
fn what_was_before_the_recording_is_unknown() {
    let scene = soft();
    let records = scene.records();
    let cut = [&records[..2], &records[records.len() - 3..]].concat();
    assert_unknown(&scene.file(&cut), Unknown::BeginsAfterCrossing);
    let whole = only(&scene.file(&records));
    // Its grace period is over at the second look, and memory before.
    assert!(matches!(whole.kubelet, Kubelet::TooLate { .. }), "{whole:?}");
}

#[test]
fn a_gap_between_crossing_and_decision_leaves_it_unknown() {
    let scene = soft();
    let mut records = scene.records();
    let place = records.len() - 4;
    records[place] = encoded(&RecordRef::Lost(1));
    assert_unknown(&scene.file(&records), Unknown::Gap);
}

#[test]
fn without_a_reading_of_a_pod_nothing_is_known() {
    let scene = scene();
    let mut records = scene.records();
    // To whom the readings belong is not known any more.
    records.insert(2, encoded(&RecordRef::Lost(1)));
    assert_unknown(&scene.file(&records), Unknown::NoReadings);
}

#[test]
fn one_look_shows_no_rate() {
    let scene = Scene { mode: Mode::DryRun, available: 100, has_rate: false, ..scene() };
    assert_unknown(&scene.file(&scene.records()), Unknown::NoRate);
}

#[test]
fn the_kernel_needs_processes_that_were_read_in_time() {
    let kernel = |processes| Scene { processes, ..scene() }.play().kernel;
    assert_eq!(kernel(vec![]), Kernel::Unknown(Unknown::NoProcesses));
    let late = vec![(8_200, vec![process(1, Some(1), 100, 0)])];
    assert_eq!(kernel(late), Kernel::Unknown(Unknown::ProcessesTooLate));
    let exempt = vec![(8_000, vec![process(1, Some(1), 100, -1_000)])];
    assert_eq!(kernel(exempt), Kernel::Unknown(Unknown::NoneMayBeKilled));
}
