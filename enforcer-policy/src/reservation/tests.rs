use proptest::prelude::*;

use super::*;
use crate::{
    admission::Admitter,
    sample::{app, list, node, pod},
};

const HOUR_MS: u64 = 3_600_000;

fn at(boot_ms: u64, wall_ms: u64) -> Moment {
    Moment { boot_ms, wall_ms }
}

fn wish(name: &str, amounts: &[(&str, &str)], for_ms: u64) -> Wish {
    let (name, reason) = (name.to_owned(), String::from("batch work"));
    Wish { name, resources: list(amounts), reason, for_ms }
}

/// Makes it on a node of 4 cpus and 8 GiB, of which 100 MiB are below the hard threshold, without pods.
fn make(reservations: &mut Reservations, wish: Wish, now: Moment) -> Result<Reservation, ReservationError> {
    let (node, settings, pods) = (node(), Settings::default(), Amounts::default());
    reservations.make(wish, 7, now, (&node, &settings, &pods))
}

#[test]
fn a_reservation_holds_until_its_end_and_is_made_again_in_place() {
    let mut reservations = Reservations::default();
    let made = make(&mut reservations, wish("batch", &[("memory", "2Gi")], HOUR_MS), at(5, 1_000)).unwrap();
    assert_eq!((made.uid, made.until_ms, made.until_boot_ms), (7, HOUR_MS + 1_000, HOUR_MS + 5));
    // What it had is free for itself.
    make(&mut reservations, wish("batch", &[("memory", "7Gi")], 2_000), at(10, 10)).unwrap();
    assert_eq!(reservations.total(), list(&[("memory", "7Gi")]));
    assert_eq!(reservations.next_end_ms(at(10, 10)), Some(2_000));
    assert_eq!(reservations.expire(at(2_009, 0)), []);
    assert_eq!(reservations.expire(at(2_010, 0)).len(), 1);
    assert_eq!(reservations, Reservations::default());
    assert_eq!(reservations.release("batch"), None);
}

#[test]
fn no_more_is_reserved_than_is_free_and_a_refusal_changes_nothing() {
    let mut reservations = Reservations::default();
    make(&mut reservations, wish("one", &[("memory", "6Gi"), ("cpu", "1")], HOUR_MS), at(0, 0)).unwrap();
    let before = reservations.clone();
    let too_much = wish("two", &[("memory", "2Gi"), ("cpu", "3500m")], HOUR_MS);
    let refused = make(&mut reservations, too_much, at(0, 0)).unwrap_err().to_string();
    assert_eq!(
        refused,
        "3500m of cpu are asked for and 3 are free (allocatable 4, requested 1); 2Gi of memory are asked for and \
         1948Mi are free (allocatable 8092Mi, requested 6Gi)"
    );
    let lacking = wish("two", &[("example.com/gpu", "1")], HOUR_MS);
    let refused = make(&mut reservations, lacking, at(0, 0)).unwrap_err().to_string();
    assert!(refused.contains("1 of example.com/gpu are asked for and 0 are free"), "{refused}");
    assert_eq!(reservations, before);
    // To the last byte.
    make(&mut reservations, wish("two", &[("memory", "1948Mi")], HOUR_MS), at(0, 0)).unwrap();
    make(&mut reservations, wish("three", &[("memory", "1")], HOUR_MS), at(0, 0)).unwrap_err();
}

#[test]
fn what_pods_request_cannot_be_reserved_and_what_is_reserved_pods_cannot_request() {
    let (node, settings) = (node(), Settings::default());
    let large = pod("large", vec![app("c", &[("memory", "5Gi")], &[])]);
    let mut admitter = Admitter::new(&node, &settings);
    admitter.keep(&large);
    let pods = admitter.requested_by_pods(&ResourceList::new());
    let mut reservations = Reservations::default();
    let mut make = |memory, pods| {
        reservations.make(
            wish("batch", &[("memory", memory)], HOUR_MS),
            0,
            at(0, 0),
            (&node, &settings, pods),
        )
    };
    assert!(matches!(make("3Gi", &pods), Err(ReservationError::NotFree(_))));
    make("2Gi", &pods).unwrap();

    let total = reservations.total();
    let mut admitter = Admitter::new(&node, &settings);
    admitter.reserve(&total);
    let larger = pod_of("larger", "6Gi");
    let shortages = admitter.shortages(&larger);
    assert_eq!(shortages.len(), 1);
    assert_eq!(shortages[0].used, 2 << 30, "what is reserved counts as requested");
    assert!(admitter.shortages(&large).is_empty());
    assert_eq!(admitter.requested_by_pods(&total), Amounts::default());
    // A reservation takes the place of no pod.
    assert_eq!(pods.get("pods"), 1);
}

fn pod_of(name: &str, memory: &str) -> crate::model::Pod {
    pod(name, vec![app("c", &[("memory", memory)], &[])])
}

#[test]
fn after_a_restart_it_holds_for_the_rest_of_its_time() {
    let mut reservations = Reservations::default();
    let made = make(&mut reservations, wish("batch", &[("cpu", "1")], HOUR_MS), at(0, 1_000)).unwrap();
    let resume = |same_boot, now| Reservations::resume(vec![made.clone()], same_boot, now);
    // Without a reboot the wall clock does not count.
    let (kept, over) = resume(true, at(1_000, 0));
    assert_eq!((kept.next_end_ms(at(1_000, 0)), over.len()), (Some(HOUR_MS - 1_000), 0));
    let (kept, _) = resume(false, at(9, 2_000));
    assert_eq!(kept.next_end_ms(at(9, 2_000)), Some(HOUR_MS - 1_000));
    for (same_boot, now) in [(true, at(HOUR_MS, 0)), (false, at(0, HOUR_MS + 1_000)), (false, at(0, 999))] {
        let (kept, over) = resume(same_boot, now);
        assert_eq!((kept.all().len(), over.len()), (0, 1), "{now:?}");
    }
    let (kept, over) = Reservations::resume(vec![made.clone(), made], true, at(0, 0));
    assert_eq!((kept.all().len(), over.len()), (1, 1), "one of a name");
}

#[test]
fn what_is_wrong_is_refused_each_with_its_reason() {
    let read = |resource: &str, text: &str| {
        amounts(&[(resource.to_owned(), text.to_owned())].into()).unwrap_err().to_string()
    };
    assert!(read("memory", "2GB").contains("memory: \"2GB\" is not a quantity"), "{}", read("memory", "2GB"));
    assert!(read("memory", "-1").contains("not below 0"));
    assert!(read("memory", "0").contains("reserve some"));
    for resource in ["pods", "pid", "gpu", "", "a/\u{1b}"] {
        assert!(read(resource, "1").contains("cannot be reserved"), "{resource:?}");
    }
    assert!(amounts(&BTreeMap::new()).is_err());
    for name in ["", "-a", "a/b", "a b", "\u{1b}", &"x".repeat(MAX_NAME_BYTES + 1)] {
        assert_eq!(check_name(name), Err(ReservationError::Name), "{name:?}");
    }
    check_name("batch-1.x_y").unwrap();
    let mut reservations = Reservations::default();
    for for_ms in [MIN_FOR_MS - 1, MAX_FOR_MS + 1] {
        let wrong = make(&mut reservations, wish("batch", &[("cpu", "1")], for_ms), at(0, 0));
        assert_eq!(wrong, Err(ReservationError::Time));
    }
    let silent = Wish { reason: String::from(" \n"), ..wish("batch", &[("cpu", "1")], HOUR_MS) };
    assert!(matches!(make(&mut reservations, silent, at(0, 0)), Err(ReservationError::Reason(_))));
    for number in 0..MAX_RESERVATIONS {
        make(&mut reservations, wish(&format!("r{number}"), &[("cpu", "1m")], HOUR_MS), at(0, 0)).unwrap();
    }
    let more = make(&mut reservations, wish("more", &[("cpu", "1m")], HOUR_MS), at(0, 0));
    assert_eq!(more, Err(ReservationError::TooMany));
    make(&mut reservations, wish("r0", &[("cpu", "2m")], HOUR_MS), at(0, 0)).unwrap();
}

#[test]
fn amounts_are_kept_as_they_were_given() {
    let texts: BTreeMap<_, _> =
        [("cpu", "1500m"), ("memory", "2Gi"), ("example.com/gpu", "2"), ("hugepages-2Mi", "4Mi")]
            .map(|(name, text)| (name.to_owned(), text.to_owned()))
            .into();
    assert_eq!(super::texts(&amounts(&texts).unwrap()), texts);
}

proptest! {
    /// Whatever is made, ended and admitted in whatever order, both together never exceed what is allocatable.
    #[test]
    fn reservations_and_pods_never_exceed_the_node(
        steps in proptest::collection::vec((0_u8..3, 0_usize..4, 1_u64..9_000), 1..40),
    ) {
        let (node, settings) = (node(), Settings::default());
        let pods: Vec<_> = steps.iter().map(|(_, _, mib)| pod_of("p", &format!("{mib}Mi"))).collect();
        let mut running: Vec<&crate::model::Pod> = Vec::new();
        let mut reservations = Reservations::default();
        for ((step, which, mib), pod) in steps.iter().zip(&pods) {
            let total = reservations.total();
            let mut admitter = Admitter::new(&node, &settings);
            admitter.reserve(&total);
            for pod in &running {
                admitter.keep(pod);
            }
            match step {
                0 => if admitter.admit(pod, &[]).is_ok() { running.push(pod) },
                1 => {
                    let requested = admitter.requested_by_pods(&total);
                    let wish = wish(&format!("r{which}"), &[("memory", &format!("{mib}Mi"))], HOUR_MS);
                    drop(reservations.make(wish, 0, at(0, 0), (&node, &settings, &requested)));
                }
                _ => drop(reservations.release(&format!("r{which}"))),
            }
            let pods_bytes: u64 = running.iter().map(|pod| crate::effective::requests(pod)["memory"].units()).sum();
            let reserved_bytes = reservations.total().get("memory").map_or(0, |reserved| reserved.units());
            prop_assert!(pods_bytes + reserved_bytes <= (8 << 30) - (100 << 20));
        }
    }
}
