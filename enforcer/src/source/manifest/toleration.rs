//! `spec.tolerations`, by the rules of `validateTolerations` in `pkg/apis/core/validation`.

use crate::model::{TaintEffect, Toleration, TolerationTaints};

use super::{
    error::Problem,
    place::{Place, Report, Reported},
};

/// Reads the tolerations; invalid ones are in the report.
pub(super) fn read(spec: &Place<'_>, report: &mut Report<'_>) -> Vec<Toleration> {
    report.list(spec, "tolerations").iter().filter_map(|place| read_one(place, report)).collect()
}

fn read_one(place: &Place<'_>, report: &mut Report<'_>) -> Option<Toleration> {
    if !report.is_map(place) {
        return None;
    }
    let key = report.optional_text(place, "key").ok()?.unwrap_or_default().to_owned();
    let operator = report.optional_text(place, "operator").ok()?.unwrap_or_default();
    let value = report.optional_text(place, "value").ok()?.unwrap_or_default().to_owned();
    let effect = read_effect(place, report).ok()?;
    let refuse = |report: &mut Report<'_>, field, value: &str, allowed| {
        let value = value.chars().take(300).collect();
        report.fail_at(place, field, Problem::Value { value, allowed });
    };
    let taints = match operator {
        "Exists" if !value.is_empty() => {
            refuse(report, "value", &value, "left out with operator Exists");
            return None;
        }
        "Exists" if key.is_empty() => TolerationTaints::Every,
        "Exists" => TolerationTaints::Key(key),
        // The API server's default.
        "Equal" | "" if key.is_empty() => {
            refuse(report, "operator", operator, "Exists where there is no key");
            return None;
        }
        "Equal" | "" => TolerationTaints::KeyValue { key, value },
        other => {
            refuse(report, "operator", other, "Exists or Equal");
            return None;
        }
    };
    Some(Toleration { taints, effect })
}

/// The effect; `None` means every one.
fn read_effect(place: &Place<'_>, report: &mut Report<'_>) -> Result<Option<TaintEffect>, Reported> {
    let name = report.optional_text(place, "effect")?.unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    TaintEffect::from_name(name).map(Some).ok_or_else(|| {
        let value = name.chars().take(300).collect();
        let allowed = "NoSchedule, PreferNoSchedule or NoExecute";
        report.fail_at(place, "effect", Problem::Value { value, allowed })
    })
}
