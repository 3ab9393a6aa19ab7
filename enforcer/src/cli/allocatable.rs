//! `enforcer allocatable`: what may be requested of the node, and what is.

use super::{
    Context, Failure, client, format,
    orders::left,
    page::{Page, cell},
    render::human_bytes,
};
use crate::serve::{AllocatableView, AmountsView, ReservationView};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
ALLOCATABLE is the capacity less what is RESERVED for the system and less the
hard eviction threshold (HARD); of memory also less huge pages. REQUESTED is what
pods and reservations request together, and FREE what is left of ALLOCATABLE.")]
pub(super) struct Args {}

pub(super) fn allocatable(context: &Context, _args: &Args) -> Result<(), Failure> {
    let view: AllocatableView =
        client::block_on(client::get_json(&context.config.run_dir, "/v1/allocatable"))?;
    format::print(context.output, &view, || table(&view))
}

fn table(view: &AllocatableView) -> String {
    let AllocatableView {
        capacity,
        reserved,
        hard_thresholds,
        huge_pages: _,
        allocatable,
        requested,
        requested_by_pods: _,
        requested_by_reservations: _,
        free,
        reservations,
    } = view;
    let mut page = Page::default();
    page.line(&line("RESOURCE", ["CAPACITY", "RESERVED", "HARD", "ALLOCATABLE", "REQUESTED", "FREE"]));
    let known = ["cpuMilli", "memoryBytes"];
    let others = allocatable.keys().map(String::as_str).filter(|key| !known.contains(key));
    for key in known.into_iter().chain(others).filter(|key| allocatable.contains_key(*key)) {
        let of = |amounts: &AmountsView| shown(key, amounts.get(key).copied().unwrap_or(0));
        // Pods do not request process ids, so there is no free amount.
        let asked = |amounts: &AmountsView| {
            amounts.get(key).map_or_else(|| String::from("-"), |amount| shown(key, *amount))
        };
        let columns =
            [of(capacity), of(reserved), of(hard_thresholds), of(allocatable), asked(requested), asked(free)];
        page.line(&line(name(key), columns.each_ref().map(String::as_str)));
    }
    if !reservations.is_empty() {
        page.gap();
    }
    for ReservationView { name, resources, reason, uid, given: _, until, left_ms } in reservations {
        let amounts: Vec<_> =
            resources.iter().map(|(resource, amount)| format!("{amount} {resource}")).collect();
        page.paragraph(&format!(
            "{name} has {} reserved for {}, until {until}, by uid {uid}: {reason}",
            amounts.join(" and "),
            left(*left_ms)
        ));
    }
    page.finish()
}

fn name(key: &str) -> &str {
    match key {
        "cpuMilli" => "cpu",
        "memoryBytes" => "memory",
        key => key,
    }
}

fn shown(key: &str, amount: u64) -> String {
    match key {
        "cpuMilli" if amount.is_multiple_of(1_000) => (amount / 1_000).to_string(),
        "cpuMilli" => format!("{amount}m"),
        "memoryBytes" | "ephemeral-storage" => human_bytes(amount),
        key if key.starts_with("hugepages-") => human_bytes(amount),
        _ => amount.to_string(),
    }
}

fn line(resource: &str, [capacity, reserved, hard, allocatable, requested, free]: [&str; 6]) -> String {
    format!(
        "{} {capacity:>9} {reserved:>9} {hard:>7} {allocatable:>11} {requested:>9} {free:>8}",
        cell(resource, 20, false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::{WIDTH, width};

    #[test]
    fn what_is_free_and_who_has_the_rest_is_reported_within_80_columns_and_escaped() {
        let amounts = |cpu: u64, memory: u64| -> AmountsView {
            [("cpuMilli", cpu), ("memoryBytes", memory), ("example.com/a-device-with-a-long-name", 4)]
                .map(|(key, amount)| (key.to_owned(), amount))
                .into()
        };
        let view = AllocatableView {
            capacity: amounts(4_000, 1023 << 30),
            reserved: amounts(250, 1 << 30),
            hard_thresholds: [(String::from("memoryBytes"), 100 << 20)].into(),
            allocatable: amounts(3_750, 1022 << 30),
            requested: amounts(1_500, 900 << 30),
            free: amounts(2_250, 122 << 30),
            reservations: vec![ReservationView {
                name: String::from("batch"),
                resources: [("cpu", "1"), ("memory", "2Gi")]
                    .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
                    .into(),
                reason: format!("nightly \u{1b}[2J {}", "work ".repeat(20)),
                left_ms: 3_600_000,
                until: String::from("2026-01-31T13:00:00.123Z"),
                ..ReservationView::default()
            }],
            ..AllocatableView::default()
        };
        let text = table(&view);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
        let memory = text.lines().find(|line| line.starts_with("memory")).unwrap();
        assert_eq!(
            memory.split_whitespace().collect::<Vec<_>>(),
            ["memory", "1023Gi", "1Gi", "100Mi", "1022Gi", "900Gi", "122Gi"]
        );
        assert!(text.contains("3750m") && text.contains("2250m"), "{text}");
        let words: Vec<_> = text.split_whitespace().collect();
        let words = words.join(" ");
        assert!(words.contains("batch has 1 cpu and 2Gi memory reserved for 1h0m, until 2026"), "{text}");
    }
}
