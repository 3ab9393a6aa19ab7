//! How values of fields are written in a file.

use serde_json::{Map, Value, json};

use super::super::{Account, Config};
use crate::{
    model::{Quantity, ResourceList},
    policy::{
        ReservedCgroup, ReservedScope,
        threshold::{Signal, Threshold},
    },
};

/// Values by signal, without thresholds that follow from others.
pub(super) fn thresholds(config: &Config, value: impl Fn(&Threshold) -> Option<String>) -> Value {
    let written = config.settings.eviction.thresholds.iter().filter(|threshold| {
        let follows = config.settings.eviction.hard(Signal::MemoryAvailable).map(|memory| memory.value);
        threshold.signal != Signal::AllocatableMemoryAvailable || follows != Some(threshold.value)
    });
    let entries =
        written.filter_map(|threshold| Some((threshold.signal.to_string(), Value::from(value(threshold)?))));
    Value::Object(entries.collect())
}

pub(super) fn account(account: Option<&Account>) -> Value {
    json!(account.map(|account| &account.name))
}

pub(super) fn quantities(list: &ResourceList) -> Value {
    let shown = |name: &str, quantity: Quantity| match name {
        "memory" | "ephemeral-storage" => quantity.binary_si().to_string(),
        _ => quantity.to_string(),
    };
    let entries =
        list.iter().map(|(name, &quantity)| (name.to_string(), shown(name.as_str(), quantity).into()));
    Value::Object(entries.collect::<Map<_, _>>())
}

pub(super) fn enforced(config: &Config) -> Value {
    let reserved = |of: &'static str, cgroup: &Option<ReservedCgroup>| {
        cgroup.as_ref().map(|cgroup| match cgroup.scope {
            ReservedScope::All => format!("{of}-reserved"),
            ReservedScope::Compressible => format!("{of}-reserved-compressible"),
        })
    };
    let settings = &config.settings;
    let pods = settings.enforce_pods.then(|| String::from("pods"));
    let names: Vec<_> = pods
        .into_iter()
        .chain(reserved("system", &settings.system_reserved_cgroup))
        .chain(reserved("kube", &settings.kube_reserved_cgroup))
        .collect();
    if names.is_empty() { json!(["none"]) } else { json!(names) }
}

/// Microseconds as Go writes a duration, in one unit.
pub(in crate::config) fn duration(us: u64) -> String {
    match us {
        0 => String::from("0s"),
        us if us.is_multiple_of(60_000_000) => format!("{}m", us / 60_000_000),
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}
