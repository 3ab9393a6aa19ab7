use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4_096;
const NODE_BYTES: u64 = 2_048 * MIB;

fn scale() -> Scale {
    Scale::new(NODE_BYTES, 0, None, PAGE)
}

fn contender(score: i16, weight_mib: u64) -> Contender {
    Contender { lowest: score, highest: score, weight_bytes: weight_mib * MIB, is_spared: false, set: None }
}

fn with(order: &[Contender], bands: &[Option<Band>]) -> Vec<Contender> {
    order.iter().zip(bands).map(|(contender, set)| Contender { set: *set, ..*contender }).collect()
}

/// The lowest and highest score that each pod's containers have then.
fn scores(order: &[Contender], bands: &[Option<Band>]) -> Vec<(i128, i128)> {
    with(order, bands).iter().map(Contender::scores).collect()
}

/// The same of pods whose containers all have one score.
fn single(order: &[Contender], bands: &[Option<Band>]) -> Vec<i128> {
    scores(order, bands).into_iter().map(|(lowest, _)| lowest).collect()
}

/// `oom_badness` of a process, in pages.
fn badness(memory_bytes: u64, score: i16, total_bytes: u64) -> i64 {
    let pages = |bytes: u64| i64::try_from(bytes / PAGE).unwrap();
    pages(memory_bytes) + i64::from(score) * (pages(total_bytes) / 1_000)
}

#[test]
fn scores_that_agree_already_stay_static() {
    // A hog without a request beside one that asked for a quarter of the node and uses less.
    let order = [contender(1000, 300), contender(750, 400)];
    assert_eq!(align(scale(), &order), Alignment { bands: vec![None, None], depth: 2 });
}

#[test]
fn the_first_of_two_rises_as_far_as_its_class_may_and_the_other_makes_room() {
    // The larger one requested little and is spared longer for its priority.
    let order = [contender(700, 600), contender(990, 500)];
    assert!(!holds(scale(), &order, 1));
    let aligned = align(scale(), &order);
    // 500 MiB and an eighth are 274.8 thousandths of 2 GiB; then the next whole one, and the margin.
    assert_eq!((single(&order, &aligned.bands), aligned.depth), (vec![999, 714], 2));
    assert!(holds(scale(), &with(&order, &aligned.bands), 2));
}

#[test]
fn the_first_rises_no_further_than_it_must() {
    // 100 MiB and an eighth are 54 thousandths of 2 GiB; then the next whole one, and the margin.
    let order = [contender(400, 600), contender(600, 100), contender(300, 100)];
    let aligned = align(scale(), &order);
    assert_eq!((single(&order, &aligned.bands), aligned.depth), (vec![665, 600, 300], 3));
    // One that is high enough stays, and so do those who are low enough.
    let order = [contender(900, 10), contender(870, 100), contender(700, 100)];
    assert_eq!(single(&order, &align(scale(), &order).bands), [935, 870, 700]);
}

#[test]
fn a_best_effort_pod_comes_down_only_where_the_ranking_spares_it_longer() {
    let order = [contender(1000, 10), contender(1000, 400), contender(999, 10)];
    let Alignment { bands, depth } = align(scale(), &order);
    assert_eq!((single(&order, &bands), depth), (vec![1000, 770, 754], 3));
    let first_already = [contender(1000, 400), contender(900, 10)];
    assert_eq!(align(scale(), &first_already).bands, [None, None]);
}

#[test]
fn what_must_not_move_does_not_and_the_spared_come_last() {
    let critical = Contender { is_spared: true, ..contender(1000, 700) };
    let order = [contender(950, 50), contender(-997, 500), critical];
    let Alignment { bands, depth } = align(scale(), &order);
    assert_eq!((single(&order, &bands), depth), (vec![999, -997, 604], 1));
    // Without a pod that could be picked instead there is nothing to agree on.
    assert_eq!(align(scale(), &[critical, contender(-997, 10)]).bands, [None, None]);
}

#[test]
fn the_limit_of_all_pods_together_weighs_less_and_counts() {
    let scale = Scale::new(NODE_BYTES, NODE_BYTES, Some(NODE_BYTES / 2), PAGE);
    assert_eq!(scale, Scale::new(NODE_BYTES / 2, 0, None, PAGE));
    let order = [contender(990, 100), contender(990, 400)];
    let lowered = single(&order, &align(scale, &order).bands)[1];
    assert!(lowered <= 999 - 439, "{lowered}");
}

#[test]
fn the_first_is_right_even_where_there_is_no_room_for_all() {
    let order: Vec<_> = (0..9).map(|_| contender(999, 220)).collect();
    let Alignment { bands, depth } = align(scale(), &order);
    assert!((1..DEPTH).contains(&depth), "{depth}");
    let scores = single(&order, &bands);
    assert!(scores.iter().all(|score| (3..=999).contains(score)), "{scores:?}");
    assert!(holds(scale(), &with(&order, &bands), depth));
    assert!(!holds(scale(), &with(&order, &bands), DEPTH));
    // Not even for one: then the first is as high, and the others are as low as they may be.
    let order = [contender(700, 10), contender(999, 2_000), contender(500, 1_900)];
    let Alignment { bands, depth } = align(scale(), &order);
    assert_eq!((single(&order, &bands), depth), (vec![999, 3, 3], 1));
}

#[test]
fn containers_of_one_pod_count_by_their_lowest_and_highest() {
    let mixed = Contender { lowest: 3, highest: 999, ..contender(0, 100) };
    assert!(!holds(scale(), &[mixed, contender(500, 100)], 1));
    assert!(!holds(scale(), &[contender(999, 100), mixed], 1));
    // Only the container that is too low rises, and only the one that is too high comes down.
    let order = [mixed, contender(500, 100)];
    assert_eq!(scores(&order, &align(scale(), &order).bands), [(565, 999), (500, 500)]);
    let order = [contender(999, 100), mixed];
    assert_eq!(scores(&order, &align(scale(), &order).bands), [(999, 999), (3, 934)]);
}

#[test]
fn usages_that_are_alike_do_not_change_the_order() {
    let standing = |usage_mib: u64, order| MemoryRankKey {
        usage_bytes: Some(usage_mib * MIB),
        request_bytes: 0,
        priority: 0,
        order,
    };
    assert!(still_in_order(&[standing(100, 0), standing(103, 1)], 1));
    assert!(!still_in_order(&[standing(100, 0), standing(108, 1)], 1));
    assert!(still_in_order(&[standing(1_000, 0), standing(1_030, 1)], 1));
    assert!(!still_in_order(&[standing(100, 0), standing(100, 1), standing(200, 2)], 2));
    // Beyond the depth nothing is compared.
    assert!(still_in_order(&[standing(300, 0), standing(100, 1), standing(200, 2)], 1));
}

/// A pod as the kernel sees it: its static score, whether it is spared, and what each process holds.
#[derive(Clone, Debug)]
struct Drawn {
    score: i16,
    is_spared: bool,
    processes_mib: Vec<u64>,
}

impl Drawn {
    fn contender(&self) -> Contender {
        let weight_mib = self.processes_mib.iter().sum();
        Contender { is_spared: self.is_spared, ..contender(self.score, weight_mib) }
    }
}

/// The pod of the process with the most points.
fn killed(pods: &[Drawn], bands: &[Option<Band>], total_bytes: u64) -> Option<usize> {
    let processes = pods.iter().zip(bands).enumerate().flat_map(|(place, (pod, band))| {
        let score = band.map_or(pod.score, |band| band.hold(pod.score));
        pod.processes_mib.iter().map(move |mib| (badness(mib * MIB, score, total_bytes), place))
    });
    processes.max().map(|(_, place)| place)
}

fn pods() -> impl Strategy<Value = Vec<Drawn>> {
    let score = prop_oneof![Just(-997_i16), 3_i16..=999, Just(1000_i16)];
    // All of them together fit into the node.
    let pod = (score, prop::bool::weighted(0.1), prop::collection::vec(0_u64..40, 1..5));
    let drawn = pod.prop_map(|(score, is_spared, processes_mib)| Drawn { score, is_spared, processes_mib });
    prop::collection::vec(drawn, 1..12).prop_map(|mut pods| {
        pods.sort_by_key(|pod| pod.is_spared);
        pods
    })
}

/// Pods whose containers differ, in the order of the ranking.
fn mixed_pods() -> impl Strategy<Value = Vec<Contender>> {
    let scores = prop_oneof![
        Just((-997_i16, -997_i16)),
        Just((1000, 1000)),
        (3_i16..=999, 3_i16..=999).prop_map(|(one, other)| (one.min(other), one.max(other))),
    ];
    let pod = (scores, prop::bool::weighted(0.1), 0_u64..150);
    let drawn = pod.prop_map(|((lowest, highest), is_spared, mib)| Contender {
        is_spared,
        ..Contender { lowest, highest, ..contender(0, mib) }
    });
    prop::collection::vec(drawn, 1..12).prop_map(|mut pods| {
        pods.sort_by_key(|pod| pod.is_spared);
        pods
    })
}

/// Whether each of the first `depth` is before those who follow by what they weigh and the margin.
fn is_apart(order: &[Contender], scores: &[(i128, i128)], depth: usize) -> bool {
    leading(order).take(depth).all(|place| {
        (place + 1..order.len())
            .filter(|other| order[*other].is_movable())
            .all(|other| scores[place].0 >= scores[other].1 + scale().distance(order[other].weight_bytes))
    })
}

proptest! {
    /// However the memory is spread over processes, the kernel picks the first who may be picked; once it is gone, the
    /// next, down to the depth that was reached. No score leaves its class's bounds.
    #[test]
    fn the_kernel_picks_whom_the_ranking_would(pods in pods(), limit_mib in prop::option::of(1_990_u64..2_048)) {
        let scale = Scale::new(NODE_BYTES, 0, limit_mib.map(|mib| mib * MIB), PAGE);
        let order: Vec<_> = pods.iter().map(Drawn::contender).collect();
        let Alignment { bands, depth } = align(scale, &order);
        let leaders: Vec<_> = order.iter().enumerate().filter(|(_, contender)| contender.may_lead()).collect();
        prop_assert_eq!(depth.min(1), leaders.len().min(1));
        let mut alive = pods.clone();
        for (place, _) in leaders.iter().take(depth) {
            for total_bytes in limit_mib.map(|mib| mib * MIB).into_iter().chain([NODE_BYTES]) {
                prop_assert_eq!(killed(&alive, &bands, total_bytes), Some(*place));
            }
            alive[*place].processes_mib.clear();
        }
        for (place, (pod, band)) in pods.iter().zip(&bands).enumerate() {
            let most = if pod.score == 1000 { 1000 } else { 999 };
            let score = band.map_or(pod.score, |band| band.hold(pod.score));
            prop_assert!(band.is_none() || (pod.score >= 3 && (3..=most).contains(&score)), "{} {score}", pod.score);
            let leads = leaders.iter().take(depth).any(|(leader, _)| *leader == place);
            prop_assert!(leads || score <= pod.score, "only who leads may rise: {} {score}", pod.score);
        }
    }

    /// No score that was raised could be one lower, and none that was lowered one higher.
    #[test]
    fn nothing_is_changed_further_than_it_must(pods in mixed_pods()) {
        let Alignment { bands, depth } = align(scale(), &pods);
        let own = scores(&pods, &bands);
        prop_assert!(is_apart(&pods, &own, depth) || bands.iter().all(Option::is_none));
        for (place, contender) in pods.iter().enumerate() {
            let (lowest, highest) = own[place];
            if lowest > i128::from(contender.lowest) {
                let mut less = own.clone();
                less[place].0 -= 1;
                prop_assert!(!is_apart(&pods, &less, depth), "{place} was raised too far: {own:?}");
            }
            if highest < i128::from(contender.highest) {
                let mut more = own.clone();
                more[place].1 += 1;
                prop_assert!(!is_apart(&pods, &more, depth), "{place} was lowered too far: {own:?}");
            }
        }
    }

    /// What was set holds, is not set anew, and goes on holding while pods grow by little.
    #[test]
    fn what_was_aligned_stays(pods in pods(), growth_mib in 0_u64..=16) {
        let order: Vec<_> = pods.iter().map(Drawn::contender).collect();
        let aligned = align(scale(), &order);
        if aligned.bands.iter().all(Option::is_none) {
            return Ok(());
        }
        let set = with(&order, &aligned.bands);
        prop_assert!(holds(scale(), &set, aligned.depth));
        prop_assert_eq!(&align(scale(), &set).bands, &aligned.bands);
        let grown: Vec<_> = set
            .iter()
            .map(|contender| Contender { weight_bytes: contender.weight_bytes + growth_mib * MIB, ..*contender })
            .collect();
        prop_assert!(holds(scale(), &grown, aligned.depth));
    }
}
