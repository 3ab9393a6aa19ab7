use proptest::prelude::*;

use super::*;

const HOUR_MS: u64 = 3_600_000;

fn protect(name: &str) -> What {
    What::Protect { namespace: String::from("default"), name: name.to_owned() }
}

fn at(boot_ms: u64, wall_ms: u64) -> Moment {
    Moment { boot_ms, wall_ms }
}

#[test]
fn an_order_holds_until_its_end() {
    let mut orders = Orders::default();
    let order = orders.give(protect("web"), " a migration ", 7, at(5, 1_000), HOUR_MS).unwrap();
    assert_eq!((order.reason.as_str(), order.uid), ("a migration", 7));
    assert_eq!((order.until_ms, order.until_boot_ms), (HOUR_MS + 1_000, HOUR_MS + 5));
    let web = PodName { namespace: String::from("default"), name: String::from("web") };
    assert_eq!(orders.protected().collect::<Vec<_>>(), [web]);
    assert!(!orders.is_paused());
    assert_eq!(orders.next_end_ms(at(6, 0)), Some(HOUR_MS - 1));
    assert_eq!(orders.expire(at(HOUR_MS + 4, 0)), []);
    assert_eq!(orders.expire(at(HOUR_MS + 5, 0)), [order]);
    assert_eq!(orders, Orders::default());
}

#[test]
fn the_latest_order_about_something_counts() {
    let mut orders = Orders::default();
    orders.give(What::Pause, "one", 0, at(0, 0), HOUR_MS).unwrap();
    orders.give(protect("web"), "why", 0, at(0, 0), HOUR_MS).unwrap();
    orders.give(What::Pause, "two", 0, at(10, 10), 2_000).unwrap();
    assert_eq!(orders.all().len(), 2);
    assert!(orders.is_paused());
    assert_eq!(orders.next_end_ms(at(10, 10)), Some(2_000));
    assert_eq!(orders.end(&What::Pause).unwrap().reason, "two");
    assert_eq!(orders.end(&What::Pause), None);
    assert!(!orders.is_paused());
}

#[test]
fn what_is_no_order_is_refused() {
    let mut orders = Orders::default();
    let now = at(0, 0);
    let long = "x".repeat(MAX_REASON + 1);
    for reason in ["", "  ", "a\nb", "a\u{1b}[2J", long.as_str()] {
        assert_eq!(orders.give(What::Pause, reason, 0, now, HOUR_MS), Err(OrderError::Reason), "{reason:?}");
    }
    for for_ms in [0, 999, MAX_FOR_MS + 1, u64::MAX] {
        assert_eq!(orders.give(What::Pause, "why", 0, now, for_ms), Err(OrderError::Time));
    }
    let name = "n".repeat(254);
    assert_eq!(orders.give(protect(&name), "why", 0, now, HOUR_MS), Err(OrderError::Name));
    assert_eq!(orders.give(protect(""), "why", 0, now, HOUR_MS), Err(OrderError::Name));
    for number in 0..MAX_ORDERS {
        orders.give(protect(&number.to_string()), "why", 0, now, HOUR_MS).unwrap();
    }
    assert_eq!(orders.give(What::Pause, "why", 0, now, HOUR_MS), Err(OrderError::TooMany));
    assert!(orders.give(protect("7"), "again", 0, now, HOUR_MS).is_ok());
}

#[test]
fn the_protected_share_is_bounded() {
    assert_eq!(check_share(500, 1_000, 500), Ok(()));
    let most = OrderError::Share { bytes: 501, most_bytes: 500, most_permille: 500 };
    assert_eq!(check_share(501, 1_000, 500), Err(most));
    assert_eq!(check_share(u64::MAX, u64::MAX, 1_000), Ok(()));
}

/// Given at 1,000 of the wall clock, for an hour.
fn kept() -> Vec<Order> {
    let mut orders = Orders::default();
    orders.give(What::Pause, "why", 0, at(500_000, 1_000), HOUR_MS).unwrap();
    orders.all().to_vec()
}

#[test]
fn after_a_restart_the_rest_of_the_time_remains() {
    // The wall clock was set, and does not count.
    for wall_ms in [0, 1_000, 1 << 50] {
        let now = at(500_000 + HOUR_MS - 1, wall_ms);
        let (orders, over) = Orders::resume(kept(), true, now);
        assert_eq!((orders.next_end_ms(now), over.len()), (Some(1), 0));
        let (orders, over) = Orders::resume(kept(), true, at(500_000 + HOUR_MS, wall_ms));
        assert_eq!((orders, over.len()), (Orders::default(), 1));
    }
}

#[test]
fn after_a_reboot_the_wall_clock_counts() {
    let resumed = |wall_ms| Orders::resume(kept(), false, at(10, wall_ms)).0.next_end_ms(at(10, wall_ms));
    assert_eq!(resumed(1_000), Some(HOUR_MS));
    assert_eq!(resumed(1_001), Some(HOUR_MS - 1));
    assert_eq!(resumed(HOUR_MS + 1_000), None);
    assert_eq!(resumed(999), None, "it was given in the future");
}

#[test]
fn what_could_not_have_been_given_is_not_taken_up() {
    let with = |change: fn(&mut Order)| {
        let mut orders = kept();
        orders.iter_mut().for_each(change);
        Orders::resume(orders, true, at(500_000, 1_000)).0
    };
    assert!(with(|_| ()).is_paused());
    assert!(!with(|order| order.until_ms = u64::MAX).is_paused());
    assert!(!with(|order| order.reason = String::from("a\nb")).is_paused());
    let twice = kept().into_iter().chain(kept()).collect();
    let (orders, over) = Orders::resume(twice, true, at(500_000, 1_000));
    assert_eq!((orders.all().len(), over.len()), (1, 1));
}

proptest! {
    /// Whatever the clocks do, an order that is taken up holds no longer than it was given for.
    #[test]
    fn no_restart_prolongs_an_order(
        given in (0_u64..1 << 45, 0_u64..1 << 45),
        now in (0_u64..1 << 45, 0_u64..1 << 45),
        for_ms in MIN_FOR_MS..=MAX_FOR_MS,
        same_boot: bool,
    ) {
        let mut orders = Orders::default();
        orders.give(What::Pause, "why", 0, at(given.0, given.1), for_ms).unwrap();
        let now = at(now.0, now.1);
        let (resumed, over) = Orders::resume(orders.all().to_vec(), same_boot, now);
        prop_assert_eq!(resumed.all().len() + over.len(), 1);
        prop_assert!(resumed.next_end_ms(now).is_none_or(|left_ms| left_ms > 0 && left_ms <= for_ms));
    }
}
