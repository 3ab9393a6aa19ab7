//! The common parts of `protect`, `pause` and `evict`: pod, reason, duration, and printing the answer.

use std::{
    io::{self, Write as _},
    path::Path,
    str::FromStr,
    time::Duration,
};

use super::{Context, Failure, client, format, render::wrap};
use crate::{
    model::PodName,
    policy::{duration, order},
    serve::{Done, OrderRequest, OrderView},
};

const WIDTH: usize = 80;

/// A pod argument: `NAMESPACE/POD`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Target(pub(super) PodName);

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self(PodName { namespace: namespace.to_owned(), name: name.to_owned() }))
            }
            _ => Err(String::from("write NAMESPACE/POD")),
        }
    }
}

/// Parses the duration of an order.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    let bounds = Duration::from_millis(order::MIN_FOR_MS)..=Duration::from_millis(order::MAX_FOR_MS);
    if bounds.contains(&time) { Ok(time) } else { Err(String::from("an order holds for 1s to 24h")) }
}

/// Parses a reason.
pub(super) fn reason(text: &str) -> Result<String, String> {
    order::check_reason(text).map_err(|error| error.to_string())?;
    Ok(text.trim().to_owned())
}

pub(super) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Sends the order to the daemon, and prints the answer.
pub(super) fn ask(context: &Context, request: &OrderRequest) -> Result<(), Failure> {
    answered(context, &client::block_on(client::order(&context.config.run_dir, request))?)
}

/// Prints the daemon's answer.
pub(super) fn answered(context: &Context, done: &Done) -> Result<(), Failure> {
    if !done.durable {
        // If this fails, there is nowhere to report it.
        drop(writeln!(
            io::stderr().lock(),
            "warning: this could not be written to disk: a restart of the daemon forgets it"
        ));
    }
    format::print(context.output, done, || {
        let id = done.eviction_id.as_ref().map(|id| format!("eviction {id}"));
        let lines = std::iter::once(done.message.clone()).chain(id);
        lines.flat_map(|line| wrap(&line, WIDTH)).map(|line| line + "\n").collect()
    })
}

/// Prints the orders in force.
pub(super) fn list(context: &Context) -> Result<(), Failure> {
    let orders = client::block_on(in_force(&context.config.run_dir))?;
    format::print_list(context.output, &orders, || {
        if orders.is_empty() { String::from("no order is in force\n") } else { table(&orders) }
    })
}

async fn in_force(run_dir: &Path) -> Result<Vec<OrderView>, Failure> {
    client::get_json(run_dir, "/v1/orders").await
}

/// Two lines or more for each order.
pub(super) fn table(orders: &[OrderView]) -> String {
    let mut text = String::new();
    for OrderView { order: _, namespace, name, reason, uid, given: _, until, left_ms } in orders {
        let what = match (namespace, name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name} is not evicted"),
            _ => String::from("PAUSED: no pod is evicted"),
        };
        let left = left(*left_ms);
        for line in wrap(&format!("{what} for {left}, until {until}, by order of uid {uid}:"), WIDTH) {
            text.push_str(&format!("{line}\n"));
        }
        for line in wrap(reason, WIDTH - 2) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

/// A duration in its two largest units, rounded up to seconds.
pub(super) fn left(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, minutes) => format!("{minutes}m{rest}s"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(name: Option<&str>, left_ms: u64) -> OrderView {
        OrderView {
            order: String::from(if name.is_some() { "protect" } else { "pause" }),
            namespace: name.map(|_| String::from("default")),
            name: name.map(str::to_owned),
            reason: format!("a migration that must not be interrupted {}", "any more ".repeat(6)),
            uid: 0,
            given: String::from("2026-01-31T12:00:00Z"),
            until: String::from("2026-01-31T13:00:00.123Z"),
            left_ms,
        }
    }

    #[test]
    fn orders_are_reported_within_80_columns_and_escaped() {
        let mut hostile = order(Some("web"), 1);
        hostile.reason = String::from("\u{1b}[2J\u{202e}gone");
        let text = table(&[order(None, 3_600_000), order(Some("web"), 59_001), hostile]);
        assert!(text.contains("PAUSED: no pod is evicted for 1h0m, until 2026"), "{text}");
        assert!(text.contains("default/web is not evicted for 1m0s"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text:?}");
    }

    #[test]
    fn a_pod_has_two_parts_and_a_time_bounds() {
        assert_eq!("default/web".parse::<Target>().unwrap().0.to_string(), "default/web");
        for wrong in ["web", "/web", "default/", "a/b/c", ""] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong:?}");
        }
        assert_eq!(time("1h30m").unwrap(), Duration::from_mins(90));
        for wrong in ["0s", "999ms", "25h", "-1h", "1", "ever"] {
            assert!(time(wrong).is_err(), "{wrong:?}");
        }
        assert!(reason(" \n").is_err());
    }
}
