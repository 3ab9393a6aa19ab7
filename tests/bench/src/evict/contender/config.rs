//! How each contender is configured: the same threshold, as closely as it allows, and its package's defaults else.

use anyhow::ensure;

/// Where its package has nohang's configuration.
pub(super) const NOHANG_PACKAGED: &str = "/etc/nohang/nohang.conf";

/// systemd-oomd goes by pressure, or by swap where there is some: it has no threshold of what is available. The
/// shortest time and the lowest pressure that it takes come closest.
pub(super) const SYSTEMD_OOMD: &str = "[OOM]\nDefaultMemoryPressureDurationSec=1s\n";

/// Its unit's own: it is scheduled as all contenders are.
pub(super) const SYSTEMD_OOMD_UNIT: &str = "[Service]\nCPUSchedulingPolicy=rr\nCPUSchedulingPriority=1\n";

/// What it is to look after.
pub(super) const SYSTEMD_SLICE: &[&str] =
    &["ManagedOOMMemoryPressure=kill", "ManagedOOMMemoryPressureLimit=1%"];

/// earlyoom's `-M`: SIGTERM and SIGKILL both at the threshold, in KiB.
pub(super) fn earlyoom(threshold_bytes: u64) -> String {
    let kib = threshold_bytes >> 10;
    format!("{kib},{kib}")
}

/// nohang's packaged configuration with both of its thresholds at ours, so that it kills at once.
pub(super) fn nohang(packaged: &str, threshold_bytes: u64) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut set = 0;
    for line in packaged.lines() {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        if let Some(key @ ("soft_threshold_min_mem" | "hard_threshold_min_mem")) = key {
            text.push_str(&format!("{key} = {} M\n", threshold_bytes >> 20));
            set += 1;
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    ensure!(set == 2, "nohang's configuration has {set} of the 2 thresholds");
    Ok(text)
}

/// One ruleset of oomd's: when the pods' anonymous memory is above an amount, the largest or fastest growing one goes.
///
/// There is no detector of what is available; this amount comes to the same as long as no other process takes any. It is
/// looked at once a second, which is the shortest that oomd takes, and no pause follows a kill.
pub(super) fn oomd(slice: &str, pods_bytes: u64) -> String {
    let kib = pods_bytes >> 10;
    let pods = ["", "burstable/", "besteffort/"].map(|class| format!("{slice}/kubepods/{class}pod*"));
    let text = serde_json::json!({"rulesets": [{
        "name": "available memory",
        "detectors": [["pods hold too much", {
            "name": "memory_above",
            "args": {"cgroup": format!("{slice}/kubepods"), "threshold_anon": format!("{kib}K"), "duration": "0"},
        }]],
        "actions": [{
            "name": "kill_by_memory_size_or_growth",
            "args": {"cgroup": pods.join(","), "post_action_delay": "0"},
        }],
    }]});
    text.to_string()
}

/// A number of a file with keys, for tests of what is written.
#[cfg(test)]
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line =
        text.lines().find(|line| line.split_once('=').is_some_and(|(found, _)| found.trim() == key))?;
    line.split_once('=').map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: u64 = 200 << 20;

    #[test]
    fn thresholds_are_ours() {
        assert_eq!(earlyoom(THRESHOLD), "204800,204800");
        let packaged = "## text\nsoft_threshold_min_mem = 5 %\nmax_sleep = 3\nhard_threshold_min_mem = 2 %\n";
        let text = nohang(packaged, THRESHOLD).unwrap();
        assert_eq!(value(&text, "soft_threshold_min_mem"), Some("200 M"));
        assert_eq!(value(&text, "hard_threshold_min_mem"), Some("200 M"));
        assert_eq!(value(&text, "max_sleep"), Some("3"));
        assert!(nohang("max_sleep = 3\n", THRESHOLD).is_err());
        let json: serde_json::Value = serde_json::from_str(&oomd("bench.slice", 1 << 30)).unwrap();
        let detector = &json["rulesets"][0]["detectors"][0][1];
        assert_eq!(detector["args"]["threshold_anon"], "1048576K");
        assert_eq!(
            json["rulesets"][0]["actions"][0]["args"]["cgroup"],
            "bench.slice/kubepods/pod*,bench.slice/kubepods/burstable/pod*,bench.slice/kubepods/besteffort/pod*"
        );
    }
}
