//! Describes events in words, for the command line and journald.

use std::borrow::Cow;

use serde_json::Value;

/// The details of an event of that type (without its prefix), from its data; empty if the type says everything.
pub(crate) fn detail(kind: &str, data: &Value) -> String {
    match kind {
        "threshold.crossed" => crossed(data),
        "pressure.cleared" => cleared(data),
        "eviction.decided" => decided(data),
        "eviction.signalled" => signalled(data),
        "eviction.contained" => contained(data),
        "eviction.completed" if data.get("operator").is_some() => format!(
            "ended {} after the order; {} came back, {} predicted",
            ms(data, "decidedToDeadMs"),
            bytes(data, "freedBytes"),
            bytes(data, "predictedFreedBytes"),
        ),
        "eviction.completed" => format!(
            "dead {} and memory back {} after the crossing; {} came back, {} predicted",
            ms(data, "crossedToDeadMs"),
            ms(data, "crossedToMemoryBackMs"),
            bytes(data, "freedBytes"),
            bytes(data, "predictedFreedBytes"),
        ),
        "oom.detected" | "oom.incident" | "oom.averted" => oom(kind, data),
        "limits.applied" => limits(data),
        "pod.added" => format!("{} priority {}", text(data, "qosClass"), number(data, "priority")),
        "pod.changed" => changed(data),
        _ => ["message", "reason"]
            .iter()
            .map(|key| text(data, key))
            .find(|text| !text.is_empty())
            .unwrap_or_default(),
    }
}

fn crossed(data: &Value) -> String {
    let signal = text(data, "signal");
    if data.get("thresholdCount").is_some() {
        return format!("{signal} {} < {}", number(data, "observedCount"), number(data, "thresholdCount"));
    }
    format!("{signal} {} < {}", bytes(data, "observedBytes"), bytes(data, "thresholdBytes"))
}

fn cleared(data: &Value) -> String {
    let signal = text(data, "signal");
    let observed = match (data.get("observedBytes"), data.get("observedCount")) {
        (Some(_), _) => format!(" {}", bytes(data, "observedBytes")),
        (None, Some(_)) => format!(" {}", number(data, "observedCount")),
        (None, None) => String::new(),
    };
    let lasted = ["crossedToClearedMs", "lastedMs"].into_iter().find(|key| data.get(key).is_some());
    let lasted = lasted.map_or_else(String::new, |key| format!(", after {}", ms(data, key)));
    format!("{signal}{observed}{lasted}").trim_start_matches(", ").to_owned()
}

fn signalled(data: &Value) -> String {
    if data.get("operator").is_some() {
        return match text(data, "sent").as_str() {
            "SIGTERM" => format!("asked to exit by order, within {}", ms(data, "graceMs")),
            _ => format!("killed {} after the order; its grace has passed", ms(data, "decidedToSignalledMs")),
        };
    }
    if text(data, "sent") == "SIGTERM" {
        let (after, grace) = (ms(data, "crossedToTerminatedMs"), ms(data, "graceMs"));
        return format!("asked to exit {after} after the crossing, within {grace}");
    }
    let why = match text(data, "killedBecause").as_str() {
        "gracePassed" => "; its grace has passed",
        "hardThreshold" => "; the hard threshold was crossed in its grace",
        "exhausting" => "; memory would have run out in its grace",
        _ => "",
    };
    format!("killed {} after the crossing{why}", ms(data, "crossedToSignalledMs"))
}

fn contained(data: &Value) -> String {
    match text(data, "state").as_str() {
        "contained" => format!(
            "held at {} of {}: pods fill {} a second, and {} are left",
            bytes(data, "memoryHighBytes"),
            bytes(data, "usageBytes"),
            bytes(data, "fillBytesPerSecond"),
            bytes(data, "headroomBytes"),
        ),
        "released" => format!("released after {}", ms(data, "heldMs")),
        "stuck" => String::from("memory.high could not be restored; the next start restores it"),
        _ => format!("not held back: {}", text(data, "message")),
    }
}

fn decided(data: &Value) -> String {
    let victim = data.get("victim").unwrap_or(&Value::Null);
    let mut line = format!(
        "{}evict {}: uses {}, requests {}, priority {}",
        match (data.get("dryRun"), data.get("paused")) {
            (_, Some(Value::Bool(true))) => "(paused) would ",
            (Some(Value::Bool(true)), _) => "(dry run) would ",
            _ => "",
        },
        text(victim, "qosClass"),
        bytes(victim, "usageBytes"),
        bytes(victim, "requestBytes"),
        number(victim, "priority"),
    );
    if let Some(operator) = data.get("operator") {
        line.push_str(&format!(
            "; by order of uid {}: {}",
            number(operator, "uid"),
            text(operator, "reason")
        ));
    }
    let next = data.get("ranking").and_then(Value::as_array).and_then(|ranking| ranking.get(1));
    if let Some(next) = next {
        let key = text(data, "decidedBy");
        let name = format!("{}/{}", text(next, "namespace"), text(next, "name"));
        let why = match key.as_str() {
            "exceedsRequest" => format!("{name} stays within its request"),
            "priority" => format!("{name} has priority {}", number(next, "priority")),
            "aboveRequest" => format!("{name} is {} above its request", bytes(next, "aboveRequestBytes")),
            _ => format!("{name} comes after it"),
        };
        line.push_str(&format!("; {why}"));
    }
    line
}

fn oom(kind: &str, data: &Value) -> String {
    let victims = data.get("victims").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let first = data.get("victim").or_else(|| victims.first()).unwrap_or(&Value::Null);
    let mut line = task(first);
    if victims.len() > 1 {
        line.push_str(&format!(" and {} more", victims.len() - 1));
    }
    if kind == "oom.averted" {
        line.push_str(&format!(": no kill, it was dying already ({})", text(data, "cause")));
        return line;
    }
    line.push_str(&match text(data, "scope").as_str() {
        "container" => String::from("; its container's own limit was hit"),
        "pod" => String::from("; its pod's limit was hit"),
        _ => match text(data, "limitOwner").as_str() {
            "" => String::new(),
            "/" => String::from("; the node ran out"),
            owner => format!("; the limit of {owner} was hit"),
        },
    });
    let trigger = data.get("trigger").unwrap_or(&Value::Null);
    if trigger.get("pid").is_some() && trigger.get("pid") != first.get("pid") {
        line.push_str(&format!(" by {}", task(trigger)));
    }
    line
}

/// A process of an event: its name, its id, and its container; the line's subject names the pod.
fn task(task: &Value) -> String {
    let container = text(task, "container");
    let place = if container.is_empty() { String::new() } else { format!(" in container {container}") };
    format!("{} (pid {}){place}", text(task, "comm"), number(task, "pid"))
}

fn limits(data: &Value) -> String {
    let files = data.get("files").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let files: Vec<_> =
        files.iter().map(|file| format!("{}={}", text(file, "file"), text(file, "new"))).collect();
    let files = match (data.get("processes"), text(data, "reason").as_str()) {
        (Some(processes), "moved") => {
            format!("{} moved from {}", escape(&processes.to_string()), moved_from(data))
        }
        _ => files.join(" "),
    };
    let container = text(data, "container");
    let whose = match (container.as_str(), data.get("pod")) {
        ("", None) => text(data, "cgroup"),
        ("", Some(_)) => String::from("pod"),
        (container, _) => format!("container {container}"),
    };
    format!("{whose}: {files}")
}

/// The cgroup that the processes were moved from.
fn moved_from(data: &Value) -> String {
    data.pointer("/files/0").map(|file| text(file, "old")).unwrap_or_default()
}

fn changed(data: &Value) -> String {
    let (old, new) = (text(data, "oldQosClass"), text(data, "qosClass"));
    match new.as_str() {
        "" => String::from("the changed manifest is not in force"),
        _ if old == new || old.is_empty() => format!("{new} priority {}", number(data, "priority")),
        _ => format!("{old} -> {new} priority {}", number(data, "priority")),
    }
}

/// A string of the object, escaped; empty if it is missing.
pub(crate) fn text(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).map(escape).unwrap_or_default()
}

fn number(object: &Value, key: &str) -> String {
    // Anything that is not a number is text, and escaped.
    object.get(key).map(|value| escape(&value.to_string())).unwrap_or_default()
}

fn ms(object: &Value, key: &str) -> String {
    match object.get(key).and_then(Value::as_f64) {
        Some(ms) => format!("{ms:.1} ms"),
        None => String::from("unknown time"),
    }
}

/// A field in bytes, as [`human_bytes`]; `?` if it is missing.
fn bytes(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_u64).map_or_else(|| String::from("?"), human_bytes)
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
