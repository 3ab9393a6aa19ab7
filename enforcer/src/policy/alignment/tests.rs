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

fn with(order: &[Contender], scores: &[Option<i16>]) -> Vec<Contender> {
    order.iter().zip(scores).map(|(contender, set)| Contender { set: *set, ..*contender }).collect()
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
    assert_eq!(align(scale(), &order), Alignment { scores: vec![None, None], depth: 2 });
}

#[test]
fn the_first_of_two_gets_the_highest_of_its_class_and_the_other_makes_room() {
    // The larger one requested little and is spared longer for its priority.
    let order = [contender(700, 600), contender(990, 500)];
    assert!(!holds(scale(), &order, 1));
    let aligned = align(scale(), &order);
    // 500 MiB and an eighth are 274.8 thousandths of 2 GiB; then the next whole one, and the margin.
    assert_eq!(aligned, Alignment { scores: vec![Some(999), Some(714)], depth: 2 });
    assert!(holds(scale(), &with(&order, &aligned.scores), 2));
}

#[test]
fn a_best_effort_pod_comes_down_only_where_the_ranking_spares_it_longer() {
    let order = [contender(1000, 10), contender(1000, 400), contender(999, 10)];
    let Alignment { scores, depth } = align(scale(), &order);
    assert_eq!((scores[0], depth), (Some(1000), 3));
    assert!(scores[1].unwrap() < 800 && scores[2].unwrap() < scores[1].unwrap(), "{scores:?}");
    let first_already = [contender(1000, 400), contender(900, 10)];
    assert_eq!(align(scale(), &first_already).scores, [None, None]);
}

#[test]
fn what_must_not_move_does_not_and_the_spared_come_last() {
    let critical = Contender { is_spared: true, ..contender(1000, 700) };
    let order = [contender(950, 50), contender(-997, 500), critical];
    let Alignment { scores, depth } = align(scale(), &order);
    assert_eq!((scores[0], scores[1], depth), (Some(999), None, 1));
    assert_eq!(scores[2], Some(604));
    // With nobody who could be picked instead there is nothing to agree on.
    assert_eq!(align(scale(), &[critical, contender(-997, 10)]).scores, [None, None]);
}

#[test]
fn the_limit_of_all_pods_together_weighs_less_and_counts() {
    let scale = Scale::new(NODE_BYTES, NODE_BYTES, Some(NODE_BYTES / 2), PAGE);
    assert_eq!(scale, Scale::new(NODE_BYTES / 2, 0, None, PAGE));
    let order = [contender(990, 100), contender(990, 400)];
    let lowered = align(scale, &order).scores[1].unwrap();
    assert!(lowered <= 999 - 439, "{lowered}");
}

#[test]
fn the_first_is_right_even_where_there_is_no_room_for_all() {
    let order: Vec<_> = (0..9).map(|_| contender(999, 220)).collect();
    let Alignment { scores, depth } = align(scale(), &order);
    assert!((1..DEPTH).contains(&depth), "{depth}");
    assert!(scores.iter().flatten().all(|score| (3..=999).contains(score)), "{scores:?}");
    assert!(holds(scale(), &with(&order, &scores), depth));
    assert!(!holds(scale(), &with(&order, &scores), DEPTH));
}

#[test]
fn containers_of_one_pod_count_by_their_lowest_and_highest() {
    let mixed = Contender { lowest: 3, highest: 999, ..contender(0, 100) };
    assert!(!holds(scale(), &[mixed, contender(500, 100)], 1));
    assert!(!holds(scale(), &[contender(999, 100), mixed], 1));
    let aligned = align(scale(), &[mixed, contender(500, 100)]);
    assert_eq!(aligned.scores, [Some(999), Some(934)]);
}

#[test]
fn usages_that_are_alike_do_not_change_the_order() {
    let standing = |usage_mib: u64, order| MemoryStanding {
        usage_bytes: Some(usage_mib * MIB),
        request_bytes: 0,
        priority: 0,
        order,
    };
    assert!(still_in_order(&[standing(100, 0), standing(103, 1)], 1));
    assert!(!still_in_order(&[standing(100, 0), standing(108, 1)], 1));
    assert!(still_in_order(&[standing(1_000, 0), standing(1_030, 1)], 1));
    assert!(!still_in_order(&[standing(100, 0), standing(100, 1), standing(200, 2)], 2));
    // Beyond the depth nobody looks.
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
    fn contender(&self, set: Option<i16>) -> Contender {
        let weight_mib = self.processes_mib.iter().sum();
        Contender { is_spared: self.is_spared, set, ..contender(self.score, weight_mib) }
    }
}

/// The pod of the process with the most points.
fn killed(pods: &[Drawn], scores: &[Option<i16>], total_bytes: u64) -> Option<usize> {
    let processes = pods.iter().zip(scores).enumerate().flat_map(|(place, (pod, set))| {
        let score = set.unwrap_or(pod.score);
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

proptest! {
    /// However the memory is spread over processes, the kernel picks the first who may be picked; once it is gone, the
    /// next, down to the depth that was reached. Nobody's score leaves its class's bounds.
    #[test]
    fn the_kernel_picks_whom_the_ranking_would(pods in pods(), limit_mib in prop::option::of(1_990_u64..2_048)) {
        let scale = Scale::new(NODE_BYTES, 0, limit_mib.map(|mib| mib * MIB), PAGE);
        let order: Vec<_> = pods.iter().map(|pod| pod.contender(None)).collect();
        let Alignment { scores, depth } = align(scale, &order);
        let leaders: Vec<_> = order.iter().enumerate().filter(|(_, contender)| contender.may_lead()).collect();
        prop_assert_eq!(depth.min(1), leaders.len().min(1));
        let mut alive = pods.clone();
        for (place, _) in leaders.iter().take(depth) {
            for total_bytes in limit_mib.map(|mib| mib * MIB).into_iter().chain([NODE_BYTES]) {
                prop_assert_eq!(killed(&alive, &scores, total_bytes), Some(*place));
            }
            alive[*place].processes_mib.clear();
        }
        for (pod, set) in pods.iter().zip(&scores) {
            let most = if pod.score == 1000 { 1000 } else { 999 };
            prop_assert!(set.is_none_or(|set| pod.score >= 3 && (3..=most).contains(&set)), "{} {:?}", pod.score, set);
            prop_assert!(!pod.is_spared || set.is_none_or(|set| set < pod.score));
        }
    }

    /// What was set holds, is not set anew, and goes on holding while pods grow by little.
    #[test]
    fn what_was_aligned_stays(pods in pods(), growth_mib in 0_u64..=16) {
        let order: Vec<_> = pods.iter().map(|pod| pod.contender(None)).collect();
        let aligned = align(scale(), &order);
        prop_assume!(aligned.scores.iter().any(Option::is_some));
        let set = with(&order, &aligned.scores);
        prop_assert!(holds(scale(), &set, aligned.depth));
        prop_assert_eq!(&align(scale(), &set).scores, &aligned.scores);
        let grown: Vec<_> = set
            .iter()
            .map(|contender| Contender { weight_bytes: contender.weight_bytes + growth_mib * MIB, ..*contender })
            .collect();
        let had_room = aligned.scores.iter().zip(&order).all(|(score, contender)| {
            score.is_some() || !contender.is_movable()
        });
        prop_assume!(had_room);
        prop_assert!(holds(scale(), &grown, aligned.depth));
    }
}
