//! Records which thresholds were armed in this boot, so that a restart while one is crossed does not disarm it.
//!
//! The file is in the run directory and names the boot: it need not outlive either, so it is not synced.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::policy::{
    engine::Thresholds,
    threshold::{Threshold, ThresholdValue},
};

/// The file in the run directory.
const FILE: &str = "armed.json";

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 16;

const VERSION: u32 = 1;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Content {
    version: u32,
    boot_id: String,
    thresholds: Vec<String>,
}

/// Returns the thresholds that an earlier process of this boot left armed. An unreadable file arms none.
pub(super) fn read(run_dir: &Path, boot_id: &str, thresholds: &Thresholds) -> Vec<Threshold> {
    let content = match read_content(&run_dir.join(FILE)) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "cannot read {FILE}: a threshold that is crossed now is not armed");
            return Vec::new();
        }
    };
    if (content.version, content.boot_id.as_str()) != (VERSION, boot_id) {
        return Vec::new();
    }
    let was_armed = |threshold: &&Threshold| content.thresholds.contains(&key(threshold));
    thresholds.iter().filter(was_armed).copied().collect()
}

fn read_content(path: &Path) -> io::Result<Content> {
    let length = fs::metadata(path)?.len();
    if length > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it has {length} bytes")));
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Records that exactly these thresholds are armed. The run directory must exist.
pub(super) fn keep(run_dir: &Path, boot_id: &str, armed: &Thresholds) -> io::Result<()> {
    let thresholds = armed.iter().map(key).collect();
    let content = Content { version: VERSION, boot_id: boot_id.to_owned(), thresholds };
    let fresh = run_dir.join(format!(".{FILE}.new"));
    fs::write(&fresh, serde_json::to_vec(&content)?)?;
    fs::rename(&fresh, run_dir.join(FILE))
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
