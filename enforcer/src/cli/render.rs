//! Events as lines for people: time, type, subject and details.

use enforcer_events::EventType;
use serde_json::Value;

use super::times::Times;
use crate::render::{detail, text};
pub(super) use crate::render::{escape, human_bytes};

/// An event as one line, at `now`; anything that is not an event is escaped.
pub(super) fn event(line: &[u8], color: bool, times: Times, now: jiff::Timestamp) -> String {
    let Ok(event) = serde_json::from_slice::<Value>(line) else {
        return escape(&String::from_utf8_lossy(line));
    };
    let kind = text(&event, "type");
    let short = kind.strip_prefix("dev.enforcer.").unwrap_or(&kind);
    let time = text(&event, "time");
    let time = times.column(&time, now);
    let subject = text(&event, "subject");
    let detail = detail(EventType::parse(&kind), event.get("data").unwrap_or(&Value::Null));
    let kind = paint(&format!("{short:<18}"), short, color);
    format!("{time}  {kind}  {subject}{}{detail}", if detail.is_empty() { "" } else { "  " })
}

fn paint(text: &str, kind: &str, color: bool) -> String {
    let code = match kind {
        _ if !color => return text.to_owned(),
        "eviction.decided" | "eviction.signalled" | "oom.detected" | "oom.incident" => "31",
        "eviction.failed" | "pod.rejected" | "config.rejected" | "degraded.entered" | "source.down"
        | "stream.gap" => "33",
        "eviction.completed" | "pod.added" | "limits.applied" | "degraded.left" | "source.up" => "32",
        _ => "36",
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// A name in at most that many columns, without its middle if it is longer.
pub(super) fn shorten(name: &str, most: usize) -> String {
    super::page::fit(name, most)
}

/// Wraps a text at that many columns; a longer word is broken.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    super::page::wrap(text, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_at(line: &[u8]) -> String {
        event(line, false, Times::Ages, "2026-01-31T12:05:30.9Z".parse().unwrap())
    }

    #[test]
    fn a_decision_names_victim_reason_and_runner_up() {
        let line = br#"{"type":"dev.enforcer.eviction.decided","subject":"default/hog","time":"2026-01-31T12:00:00.123456Z","data":{"evictionId":"e","dryRun":false,"hard":true,"graceMs":0,"decidedBy":"exceedsRequest","victim":{"namespace":"default","name":"hog","uid":"u","cgroup":"/","cgroupId":1,"statsMissing":false,"growthBytesPerSecond":0,"qosClass":"BestEffort","usageBytes":1310720000,"requestBytes":0,"priority":0},"ranking":[{"rank":1,"evictable":true,"statsMissing":false,"priority":0,"namespace":"default","name":"hog"},{"rank":2,"evictable":true,"statsMissing":false,"priority":0,"namespace":"default","name":"web"}],"rankedCount":2,"excluded":[],"excludedCount":0,"predictedFreedBytes":0,"message":"","configHash":""}}"#;
        assert_eq!(
            event_at(line),
            "5m30s ago  eviction.decided    default/hog  evict BestEffort: uses 1.2Gi, requests 0, priority 0; default/web stays within its request"
        );
    }

    #[test]
    fn an_oom_kill_names_victim_limit_and_who_was_allocating() {
        let line = br#"{"type":"dev.enforcer.oom.incident","subject":"default/p","time":"2026-01-31T12:00:00.123456Z","data":{"incidentId":"01J8Z3NDEKTSV4RRFFQ69G5FAV","scope":"pod","limitOwner":"/kubepods/podp","trigger":{"pid":412,"tid":412,"comm":"b","container":"c2"},"victims":[{"pid":398,"comm":"a","container":"c1"},{"pid":399,"comm":"a"}],"limitSource":"traced","kills":2,"timelineMs":{},"counters":{"oom":1,"oomKill":2,"oomGroupKill":1},"countersBefore":{"oom":0,"oomKill":0,"oomGroupKill":0},"countersAfter":{"oom":1,"oomKill":2,"oomGroupKill":1},"reconciled":true,"reconciliation":"matched","reconstructed":false}}"#;
        assert_eq!(
            event_at(line),
            "5m30s ago  oom.incident        default/p  a (pid 398) in container c1 and 1 more; its pod's limit was hit by b (pid 412) in container c2"
        );
    }

    #[test]
    fn hostile_names_reach_no_terminal() {
        let line = br#"{"type":"x","subject":"a\u001b[2Jb\n\u202ec","time":"","data":{}}"#;
        let shown = event_at(line);
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        assert!(shown.contains(r"a\u{1b}[2Jb\n\u{202e}c"), "{shown}");
        assert_eq!(event_at(b"\xff\x1b no json"), "\u{fffd}\\u{1b} no json");
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(shorten("default/web", 11), "default/web");
        assert_eq!(shorten("default/a-long-name-0", 11), "defau…ame-0");
        assert_eq!(shorten("é".repeat(40).as_str(), 30).chars().count(), 30);
    }

    #[test]
    fn text_is_wrapped_at_words() {
        assert_eq!(wrap("one two  three fourteen", 9), ["one two", "three", "fourteen"]);
        assert_eq!(wrap("a\nb", 9), ["a\\nb"]);
    }

    #[test]
    fn bytes_are_shown_as_kubectl_does() {
        for (bytes, shown) in
            [(0, "0"), (1023, "1023"), (1 << 20, "1Mi"), (1_610_612_736, "1.5Gi"), (208_666_624, "199Mi")]
        {
            assert_eq!(human_bytes(bytes), shown);
        }
    }
}
