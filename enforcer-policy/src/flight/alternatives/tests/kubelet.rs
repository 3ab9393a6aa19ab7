use super::scene::{MIB, Pod, Scene, hard};
use crate::{
    engine::Mode,
    flight::{Assumption, Episode, Kubelet, MayExhaust, OwnEnd, Pass, Span},
    threshold::{Signal, Threshold, ThresholdValue},
};

fn hog(held: u64, grows: u64) -> Pod {
    Pod { request: 0, held, grows }
}

/// Of the pods' limit.
fn limit(mib: u64) -> Threshold {
    Threshold::hard(Signal::AllocatableMemoryAvailable, ThresholdValue::Amount(mib * MIB))
}

fn evicts(episode: &Episode) -> (Vec<Pass>, (u64, u64), MayExhaust) {
    let Kubelet::Evicts { passes, lowest_bytes, exhausted_before, assumptions: _ } = &episode.kubelet else {
        panic!("{episode:?}")
    };
    let lowest_mib = (lowest_bytes.from() / MIB, lowest_bytes.to() / MIB);
    (passes.iter().cloned().collect(), lowest_mib, *exhausted_before)
}

fn pods(pass: &Pass) -> Vec<u64> {
    pass.pods.iter().map(|pod| pod.0).collect()
}

/// Here as there, and certainly.
fn assert_evicts_only_the_second_pod(scene: &Scene) {
    let episode = scene.play();
    assert_eq!(ours(&episode), 2);
    let (passes, ..) = evicts(&episode);
    let [only] = &passes[..] else { panic!("{passes:?}") };
    assert_eq!((pods(only), only.is_certain), (vec![2], true));
}

fn ours(episode: &Episode) -> u64 {
    episode.here.evictions.first.pod.0
}

/// 1,490 MiB are left at the crossing. After 10 s and 1 s of grace it is 1,100 MiB less.
#[test]
fn a_hog_is_evicted_within_ten_seconds() {
    let pods_there = [hog(100, 100), Pod::still(600, 500), Pod::still(1_000, 500)];
    let episode = Scene::new(1_500, 3_000, &pods_there).play();
    let (passes, lowest_mib, exhausted) = evicts(&episode);
    let [only] = &passes[..] else { panic!("{passes:?}") };
    assert_eq!((pods(only), only.is_certain), (vec![1], true));
    assert_eq!(only.at_ms, Span::of(0).with(10_000));
    assert_eq!((lowest_mib, exhausted), ((390, 1_490), MayExhaust::No));
    let own = episode.here.evictions.first;
    assert_eq!((own.pod.0, own.decided_ms, own.end), (1, 0, OwnEnd::NotRecorded));
    assert_eq!(episode.here.lowest_bytes, Some(1_490 * MIB));
    let Kubelet::Evicts { assumptions, .. } = &episode.kubelet else { panic!() };
    assert!(assumptions.contains(&Assumption::FallsOn) && assumptions.contains(&Assumption::DiesWithinGrace));
    // It was read for 15 s before, and a usage may be twice as old.
    assert!(assumptions.contains(&Assumption::GrewAlikeBefore), "{assumptions:?}");
}

/// The hog has 60 MiB at the crossing, and is 1 s later than 200 MiB; the other is 200 MiB above its request.
#[test]
fn both_are_named_where_the_order_depends_on_the_look() {
    let episode =
        Scene::new(1_500, 1_550, &[hog(0, 100), Pod::still(400, 600), Pod::still(1_000, 500)]).play();
    assert_eq!(ours(&episode), 2);
    let (passes, ..) = evicts(&episode);
    assert_eq!((pods(&passes[0]), passes[0].is_certain), (vec![2, 1], true));
    assert_eq!(passes[0].at_ms, Span::of(0).with(10_000));
    // Behind the other the hog goes too, if the other was evicted late: 1,490 + 600 MiB are then not enough.
    assert_eq!((pods(&passes[1]), passes[1].is_certain), (vec![1], false));
    let Kubelet::Evicts { assumptions, .. } = &episode.kubelet else { panic!() };
    assert!(assumptions.contains(&Assumption::GrewAlikeBefore), "{assumptions:?}");
}

#[test]
fn of_a_slow_leak_the_kubelet_evicts_the_same_pod() {
    let leak = Pod { request: 100, held: 800, grows: 1 };
    let episode = Scene { every_ms: 1_000, ..Scene::new(200, 230, &[Pod::still(500, 400), leak]) }.play();
    let (passes, lowest_mib, exhausted) = evicts(&episode);
    assert_eq!((passes.len(), pods(&passes[0])), (1, vec![ours(&episode)]));
    assert_eq!(ours(&episode), 2);
    assert_eq!((lowest_mib, exhausted), ((188, 199), MayExhaust::No));
}

/// The 90 MiB that are left at the crossing last for 90 ms. Only a look at that very moment is in time, with a victim that
/// dies at once: 8 of 1,616 ways.
#[test]
fn a_fast_fill_leaves_no_time() {
    let pods_there = [hog(100, 1_000), Pod::still(400, 300)];
    let episode = Scene { every_ms: 10, ..Scene::new(100, 1_000, &pods_there) }.play();
    let (passes, lowest_mib, exhausted) = evicts(&episode);
    assert_eq!((passes[0].at_ms, passes[0].is_certain), (Span::of(0), false));
    assert_eq!(lowest_mib, (0, 90));
    assert_eq!(exhausted, MayExhaust::Possibly { from_ms: 90, permille: 996 });
}

/// 490 MiB are left at the crossing of the soft threshold, for 4.9 s; its grace period is 30 s.
#[test]
fn the_kernel_comes_first_where_a_grace_period_is_too_long() {
    let soft = Threshold { grace_period_ms: 30_000, ..hard(500) };
    let scene = Scene {
        mode: Mode::DryRun,
        thresholds: vec![soft],
        ..Scene::new(500, 1_000, &[hog(100, 100), Pod::still(400, 300)])
    };
    let Kubelet::TooLate { exhausted_ms, would_act_ms, assumptions: _ } = scene.play().kubelet else {
        panic!()
    };
    assert_eq!(exhausted_ms, Span::of(4_900));
    assert_eq!(would_act_ms, Span::of(30_000).with(40_000));
}

/// 490 MiB are left at the crossing, for 49 s. The pod is evicted after 30 to 40 s, and takes as long as its grace period of
/// 30 s to die: that is behind the last look within the time that is followed.
#[test]
fn behind_the_last_look_memory_falls_until_the_pod_is_dead() {
    let soft = Threshold { grace_period_ms: 30_000, ..hard(500) };
    let scene = Scene {
        mode: Mode::DryRun,
        thresholds: vec![soft],
        every_ms: 1_000,
        max_pod_grace_ms: 30_000,
        ..Scene::new(500, 600, &[hog(100, 10), Pod::still(400, 300)])
    };
    let (passes, lowest_mib, exhausted) = evicts(&scene.play());
    // A look may see it crossed 900 ms before the daemon does, which samples each second.
    assert_eq!(passes[0].at_ms, Span::of(29_100).with(40_000));
    assert_eq!(lowest_mib, (0, 199));
    assert_eq!(exhausted, MayExhaust::Possibly { from_ms: 49_000, permille: 500 });
}

/// The hog is further above its request than the other since 25 s; the threshold is crossed after 36 s.
#[test]
fn a_usage_may_be_half_a_minute_old() {
    let pods_there = [hog(0, 20), Pod::still(400, 900)];
    let episode = Scene { every_ms: 1_000, ..Scene::new(1_500, 2_210, &pods_there) }.play();
    let (passes, ..) = evicts(&episode);
    assert_eq!((ours(&episode), pods(&passes[0])), (1, vec![1, 2]));
}

#[test]
fn a_dry_run_is_followed_as_it_was_recorded() {
    let scene = Scene {
        mode: Mode::DryRun,
        goes_on_ms: 20_000,
        ..Scene::new(1_500, 3_000, &[hog(100, 100), Pod::still(600, 500)])
    };
    let episode = scene.play();
    assert_eq!(episode.here.evictions.first.end, OwnEnd::DryRun);
    let (passes, lowest_mib, exhausted) = evicts(&episode);
    // As in the first of these tests, where the same is a model.
    assert_eq!((pods(&passes[0]), passes[0].at_ms), (vec![1], Span::of(0).with(10_000)));
    assert_eq!((lowest_mib, exhausted), ((390, 1_490), MayExhaust::No));
}

/// The pod outside of kubepods is the largest.
#[test]
fn who_is_outside_of_kubepods_is_not_evicted_for_the_pods_limit() {
    let pods_there = [Pod::still(0, 1_500), hog(100, 100)];
    let scene = Scene {
        thresholds: vec![limit(200)],
        outside: vec![1],
        limit: 1_000,
        ..Scene::new(200, 2_000, &pods_there)
    };
    assert_evicts_only_the_second_pod(&scene);
}

/// At the crossing 1,489 MiB of the node are left, and 199 MiB of the pods' limit. The hog outside of kubepods gives back
/// 1,110 MiB, and the pods' limit is as short as before.
#[test]
fn what_comes_back_outside_of_kubepods_is_not_of_the_pods_limit() {
    let pods_there = [hog(100, 100), Pod { request: 1_000, held: 300, grows: 10 }];
    let scene = Scene {
        thresholds: vec![hard(1_500), limit(200)],
        outside: vec![1],
        limit: 300,
        ..Scene::new(1_500, 2_600, &pods_there)
    };
    let episode = scene.play();
    assert_eq!(ours(&episode), 1);
    let (passes, ..) = evicts(&episode);
    let [first, second] = &passes[..] else { panic!("{passes:?}") };
    assert_eq!((pods(first), first.is_certain), (vec![1], true));
    assert_eq!((pods(second), second.is_certain), (vec![2], true));
    assert_eq!(second.at_ms, Span::of(1_000).with(41_000));
}

/// The pods' limit falls by 10 MiB a second, and the node's memory by 110 MiB. The pod in kubepods gives back 401 MiB.
#[test]
fn what_grows_outside_of_kubepods_does_not_fill_the_pods_limit() {
    let pods_there = [hog(100, 100), hog(300, 10), Pod::still(1_000, 100)];
    let scene = Scene {
        thresholds: vec![limit(200)],
        outside: vec![1],
        limit: 300,
        ..Scene::new(200, 3_500, &pods_there)
    };
    assert_evicts_only_the_second_pod(&scene);
}

/// Prints how long that takes.
#[test]
fn of_five_hundred_pods_the_hog_is_evicted() {
    let mut pods_there = vec![hog(100, 100)];
    pods_there.extend([Pod::still(100, 1); 499]);
    let scene = Scene { mode: Mode::DryRun, goes_on_ms: 20_000, ..Scene::new(1_500, 3_000, &pods_there) };
    let file = scene.file(&scene.records());
    let begun = std::time::Instant::now();
    let episode = super::scene::only(&file);
    println!("500 pods: {:?}", begun.elapsed());
    let (passes, ..) = evicts(&episode);
    assert_eq!(pods(&passes[0]), [1]);
}
