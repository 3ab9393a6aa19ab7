//! Describes events in words, for the command line and journald.

use std::borrow::Cow;

use enforcer_events::{
    EventType, Payload,
    eviction::{Decision, EvictionContained, EvictionDecided, EvictionEnded, EvictionSignalled},
    limits::LimitsWritten,
    oom::{Averted, Detected, Incident, Scope, Trigger, Victim},
    pod::{Place, PodReported},
    pressure::{PressureCleared, Shortage},
};
use serde_json::Value;

/// The details of an event of that type, from its data; empty if the type says everything.
///
/// The data may be of another version or of anybody: of what is not a payload of its type, the message is shown.
pub(crate) fn detail(kind: Option<EventType>, data: &Value) -> String {
    let payload = kind.and_then(|kind| Payload::parse(kind, data).ok());
    let detail = payload.as_ref().and_then(payload_detail);
    detail.unwrap_or_else(|| {
        ["message", "reason"]
            .iter()
            .map(|key| text(data, key))
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    })
}

/// The details of a payload; `None` if its message or reason has them.
fn payload_detail(payload: &Payload) -> Option<String> {
    Some(match payload {
        Payload::ThresholdCrossed(shortage) => crossed(shortage),
        Payload::PressureCleared(over) => cleared(over),
        Payload::EvictionDecided(EvictionDecided::Decision(decision)) => decided(decision),
        Payload::EvictionSignalled(signalled) => self::signalled(signalled),
        Payload::EvictionContained(contained) => self::contained(contained),
        Payload::EvictionCompleted(ended) => completed(ended),
        Payload::OomDetected(Detected { scope, limit_owner, trigger, victim, .. }) => {
            oom(victim.as_ref(), 0, *scope, limit_owner.as_deref(), trigger.as_ref())
        }
        Payload::OomIncident(Incident { scope, limit_owner, trigger, victims, .. }) => {
            let more = victims.len().saturating_sub(1);
            oom(victims.first(), more, *scope, limit_owner.as_deref(), trigger.as_ref())
        }
        Payload::OomAverted(Averted { cause, victims, .. }) => {
            let line = named(victims.first(), victims.len().saturating_sub(1));
            format!("{line}: no kill, it was dying already ({})", cause.as_str())
        }
        Payload::LimitsApplied(written) => limits(written),
        Payload::PodAdded(PodReported { qos_class, priority, .. }) => {
            format!("{} priority {priority}", escape(qos_class.as_deref().unwrap_or_default()))
        }
        Payload::PodChanged(pod) => changed(pod),
        _ => return None,
    })
}

fn crossed(shortage: &Shortage) -> String {
    let signal = escape(&shortage.signal);
    if let (Some(observed), Some(threshold)) = (shortage.observed_count, shortage.threshold_count) {
        return format!("{signal} {observed} < {threshold}");
    }
    format!("{signal} {} < {}", bytes(shortage.observed_bytes), bytes(shortage.threshold_bytes))
}

fn cleared(over: &PressureCleared) -> String {
    match over {
        PressureCleared::Shortage(over) => {
            let Shortage { signal, observed_bytes, observed_count, .. } = &over.shortage;
            let observed = match (observed_bytes, observed_count) {
                (Some(bytes), _) => format!(" {}", human_bytes(*bytes)),
                (None, Some(count)) => format!(" {count}"),
                (None, None) => String::new(),
            };
            format!("{}{observed}, after {}", escape(signal), ms(Some(over.crossed_to_cleared_ms)))
        }
        PressureCleared::Headroom(back) => {
            format!("{}, after {}", escape(&back.approach.signal), whole_ms(back.lasted_ms))
        }
        PressureCleared::Stalls(over) => format!("after {}", whole_ms(over.lasted_ms)),
    }
}

fn completed(ended: &EvictionEnded) -> String {
    let EvictionEnded { timeline, freed_bytes, predicted_freed_bytes, .. } = ended;
    let freed = format!("{} came back, {} predicted", bytes(*freed_bytes), bytes(*predicted_freed_bytes));
    if ended.operator.is_some() {
        return format!("ended {} after the order; {freed}", ms(ended.decided_to_dead_ms));
    }
    format!(
        "dead {} and memory back {} after the crossing; {freed}",
        ms(timeline.crossed_to_dead_ms),
        ms(timeline.crossed_to_memory_back_ms),
    )
}

fn signalled(signalled: &EvictionSignalled) -> String {
    let EvictionSignalled { sent, grace_ms, killed_because, timeline, .. } = signalled;
    let (is_term, grace) = (sent == "SIGTERM", grace_ms.map_or_else(|| ms(None), whole_ms));
    if signalled.operator.is_some() {
        return if is_term {
            format!("asked to exit by order, within {grace}")
        } else {
            let after = ms(signalled.decided_to_signalled_ms);
            format!("killed {after} after the order; its grace has passed")
        };
    }
    if is_term {
        let after = ms(timeline.crossed_to_terminated_ms);
        return format!("asked to exit {after} after the crossing, within {grace}");
    }
    let why = match killed_because.as_deref() {
        Some("gracePassed") => "; its grace has passed",
        Some("hardThreshold") => "; the hard threshold was crossed in its grace",
        Some("exhausting") => "; memory would have run out in its grace",
        Some("unanswered") => "; the API server was not to end it, or did not answer",
        _ => "",
    };
    format!("killed {} after the crossing{why}", ms(timeline.crossed_to_signalled_ms))
}

fn contained(contained: &EvictionContained) -> String {
    match &*contained.state {
        "contained" => format!(
            "held at {} of {}: pods fill {} a second, and {} are left",
            human_bytes(contained.memory_high_bytes),
            human_bytes(contained.usage_bytes),
            human_bytes(contained.fill_bytes_per_second),
            human_bytes(contained.headroom_bytes),
        ),
        "released" => format!("released after {}", ms(contained.held_ms)),
        "stuck" => String::from("memory.high could not be restored; the next start restores it"),
        _ => format!("not held back: {}", escape(contained.message.as_deref().unwrap_or_default())),
    }
}

fn decided(decision: &Decision) -> String {
    let would = match (decision.paused, decision.dry_run) {
        (true, _) => "(paused) would ",
        (false, true) => "(dry run) would ",
        (false, false) => "",
    };
    let mut line = match &decision.victim {
        Some(victim) => format!(
            "{would}evict {}: uses {}, requests {}, priority {}",
            escape(&victim.qos_class),
            bytes(victim.usage_bytes),
            human_bytes(victim.request_bytes),
            victim.priority,
        ),
        None => format!("{would}evict a pod that is gone"),
    };
    if let Some(operator) = &decision.operator {
        line.push_str(&format!("; by order of uid {}: {}", operator.uid, escape(&operator.reason)));
    }
    if let Some(next) = decision.ranking.get(1) {
        let name = format!("{}/{}", escape(&next.namespace), escape(&next.name));
        let why = match &*decision.decided_by {
            "exceedsRequest" => format!("{name} stays within its request"),
            "priority" => format!("{name} has priority {}", next.priority),
            "aboveRequest" => {
                let above = next.above_request_bytes.and_then(|above| u64::try_from(above).ok());
                format!("{name} is {} above its request", bytes(above))
            }
            _ => format!("{name} comes after it"),
        };
        line.push_str(&format!("; {why}"));
    }
    line
}

fn oom(
    victim: Option<&Victim>,
    more: usize,
    scope: Option<Scope>,
    limit_owner: Option<&str>,
    trigger: Option<&Trigger>,
) -> String {
    let mut line = named(victim, more);
    line.push_str(&match (scope, limit_owner) {
        (Some(Scope::Container), _) => String::from("; its container's own limit was hit"),
        (Some(Scope::Pod), _) => String::from("; its pod's limit was hit"),
        (_, None) => String::new(),
        (_, Some("/")) => String::from("; the node ran out"),
        (_, Some(owner)) => format!("; the limit of {} was hit", escape(owner)),
    });
    if let Some(trigger) = trigger.filter(|trigger| Some(trigger.pid) != victim.map(|victim| victim.pid)) {
        line.push_str(&format!(" by {}", task(&trigger.comm, trigger.pid, &trigger.place)));
    }
    line
}

/// The first victim, and how many more.
fn named(victim: Option<&Victim>, more: usize) -> String {
    let first = victim.map_or_else(
        || String::from("a process that was not traced"),
        |victim| task(&victim.comm, victim.pid, &victim.place),
    );
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// A process: its name, its id, and its container; the line's subject names the pod.
fn task(comm: &str, pid: u32, place: &Place) -> String {
    let container = place.container.as_deref().map(|name| format!(" in container {}", escape(name)));
    format!("{} (pid {pid}){}", escape(comm), container.unwrap_or_default())
}

fn limits(written: &LimitsWritten) -> String {
    let LimitsWritten { owner, cgroup, files, processes, .. } = written;
    let files = if let (Some(processes), [file, ..]) = (processes, files.as_slice()) {
        format!("{processes} moved from {}", escape(file.old.as_deref().unwrap_or_default()))
    } else {
        let files: Vec<_> =
            files.iter().map(|file| format!("{}={}", escape(&file.file), escape(&file.new))).collect();
        files.join(" ")
    };
    let whose = match (&owner.container, &owner.pod) {
        (Some(container), _) => format!("container {}", escape(container)),
        (None, Some(_)) => String::from("pod"),
        (None, None) => escape(cgroup),
    };
    format!("{whose}: {files}")
}

fn changed(pod: &PodReported) -> String {
    let priority = pod.priority;
    match (pod.old_qos_class.as_deref(), pod.qos_class.as_deref()) {
        (_, None) => String::from("the changed manifest is not in force"),
        (Some(old), Some(new)) if old != new => {
            format!("{} -> {} priority {priority}", escape(old), escape(new))
        }
        (_, Some(new)) => format!("{} priority {priority}", escape(new)),
    }
}

/// A string of the object, escaped; empty if it is missing.
pub(crate) fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).map(escape).unwrap_or_default()
}

fn ms(ms: Option<f64>) -> String {
    ms.map_or_else(|| String::from("unknown time"), |ms| format!("{ms:.1} ms"))
}

fn whole_ms(ms: u64) -> String {
    format!("{ms}.0 ms")
}

/// An amount as [`human_bytes`]; `?` if it is missing.
fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| String::from("?"), human_bytes)
}

/// Bytes as kubectl shows them: the largest of Ki, Mi, Gi that leaves a whole number or one decimal.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size {
            let tenths = bytes.saturating_mul(10) / size;
            return if tenths >= 1_000 || tenths.is_multiple_of(10) {
                format!("{}{unit}", tenths / 10)
            } else {
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            };
        }
    }
    bytes.to_string()
}

/// Makes hostile text harmless to a terminal: escapes characters that move the cursor, break the line, change the
/// direction of writing or are invisible.
pub(crate) fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut safe, character| {
        if is_hidden(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
        safe
    })
}

/// The same in JSON, where these characters occur only in strings: a parser reads `\u` and four digits as the same.
pub(crate) fn escape_json(json: &str) -> Cow<'_, str> {
    escape_strings(json, |character, safe| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            safe.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// The same in YAML whose strings are all double-quoted. Unlike in JSON, no character is written as two.
pub(crate) fn escape_yaml(yaml: &str) -> Cow<'_, str> {
    escape_strings(yaml, |character, safe| safe.push_str(&format!("\\U{:08x}", u32::from(character))))
}

fn escape_strings(text: &str, write: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Line feeds outside strings are layout.
    let is_raw = |character: char| character != '\n' && is_hidden(character);
    if !text.contains(is_raw) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(text.len()), |mut safe, character| {
        if is_raw(character) {
            write(character, &mut safe);
        } else {
            safe.push(character);
        }
        safe
    }))
}

/// Whether a terminal would obey a character, change its writing direction, or show nothing for it.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}
