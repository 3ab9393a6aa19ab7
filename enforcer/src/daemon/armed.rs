//! Records which thresholds were armed in this boot, so that a restart while one is crossed does not disarm it.
//!
//! The file is in the run directory and names the boot: it need not outlive either, so it is not synced.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    durable::{self, State},
    policy::{
        engine::Thresholds,
        threshold::{Threshold, ThresholdValue},
    },
};

/// The file in the run directory.
const FILE: &str = "armed.json";

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    boot_id: String,
    thresholds: Vec<String>,
}

impl State for Content {
    const MAX_BYTES: u64 = 1 << 16;
    const IS_SYNCED: bool = false;
}

/// Returns the thresholds that an earlier process of this boot left armed. An unreadable file arms none.
pub(super) fn read(run_dir: &Path, boot_id: &str, thresholds: &Thresholds) -> Vec<Threshold> {
    let content = durable::read::<Content>(&run_dir.join(FILE)).unwrap_or_else(|error| {
        tracing::warn!("a threshold that is crossed now is not armed: {}", crate::chain(&error));
        None
    });
    let Some(content) = content.filter(|content| content.boot_id == boot_id) else { return Vec::new() };
    let was_armed = |threshold: &&Threshold| content.thresholds.contains(&key(threshold));
    thresholds.iter().filter(was_armed).copied().collect()
}

/// Records that exactly these thresholds are armed.
pub(super) fn keep(run_dir: &Path, boot_id: &str, armed: &Thresholds) -> io::Result<()> {
    let content = Content { boot_id: boot_id.to_owned(), thresholds: armed.iter().map(key).collect() };
    durable::write(&run_dir.join(FILE), &content)
}

/// Identifies a threshold exactly: a share is written as the bits of its float.
fn key(threshold: &Threshold) -> String {
    let Threshold { signal, value, grace_period_ms, min_reclaim } = threshold;
    let exact = |value: &ThresholdValue| match value {
        ThresholdValue::Amount(amount) => amount.to_string(),
        ThresholdValue::Share(share) => format!("share {:#x}", share.to_bits()),
    };
    let least = min_reclaim.as_ref().map_or_else(|| String::from("none"), exact);
    format!("{}<{}, grace {grace_period_ms} ms, reclaim {least}", signal.as_str(), exact(value))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::policy::{engine::followed, threshold::Signal};

    fn amount(bytes: u64) -> Threshold {
        Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(bytes))
    }

    #[test]
    fn only_the_same_threshold_in_the_same_boot_stays_armed() {
        let dir = tempfile::tempdir().unwrap();
        let soft = Threshold { grace_period_ms: 5, ..amount(200) };
        assert_eq!(read(dir.path(), "b", &followed(&[amount(100)])), []);
        keep(dir.path(), "b", &followed(&[amount(100), soft])).unwrap();
        let now = [
            amount(100),
            amount(1_000),
            soft,
            Threshold { min_reclaim: Some(ThresholdValue::Amount(1)), ..amount(100) },
            Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Share(100.0)),
            Threshold::hard(Signal::PidAvailable, ThresholdValue::Amount(100)),
        ];
        assert_eq!(read(dir.path(), "b", &followed(&now)), [amount(100), soft]);
        assert_eq!(read(dir.path(), "another", &followed(&now)), []);
        keep(dir.path(), "b", &Thresholds::new()).unwrap();
        assert_eq!(read(dir.path(), "b", &followed(&now)), []);
    }

    #[test]
    fn a_damaged_file_arms_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in ["", "{}", "{\"version\":2,\"bootId\":\"b\",\"thresholds\":[]}", "\u{0}"] {
            fs::write(dir.path().join(FILE), wrong).unwrap();
            assert_eq!(read(dir.path(), "b", &followed(&[amount(100)])), [], "{wrong:?}");
        }
        fs::write(dir.path().join(FILE), vec![b' '; 1 << 17]).unwrap();
        assert_eq!(read(dir.path(), "b", &followed(&[amount(100)])), []);
    }
}
