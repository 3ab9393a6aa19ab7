//! Where a pod's spec is from, and how fresh it is.

use serde::Serialize;

use super::ranked;
use crate::serve::{SpecView, View};

/// Where a pod's spec is from, and how old it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Freshness {
    #[serde(flatten)]
    spec: SpecView,
    /// How long ago it was read last.
    age_ms: u64,
}

impl Freshness {
    pub(super) fn of(spec: &SpecView, now_ms: u64) -> Self {
        Self { age_ms: now_ms.saturating_sub(spec.read_ms.ms()), spec: spec.clone() }
    }

    /// Whether the source that gave it answers.
    pub(super) fn is_live(&self) -> bool {
        self.spec.provenance == "live"
    }

    /// In at most `WIDTH` columns: `kubelet 3s`, `stale kubelet 7m`, `disk kubelet 2h`.
    pub(super) fn short(&self) -> String {
        let provenance = if self.is_live() { String::new() } else { format!("{} ", self.spec.provenance) };
        format!("{provenance}{} {}", self.spec.source, age(self.age_ms))
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        format!("{} by {}, read {} ago", self.spec.provenance, self.spec.source, age(self.age_ms))
    }

    /// The widest text that [`Self::short`] gives.
    pub(super) const WIDTH: usize = "stale apiServer 59m".len();
}

/// This moment, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// A duration in its largest unit, in three columns up to 99 days.
pub(super) fn age(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", (seconds / 86_400).min(99)),
    }
}

/// The named pods by where their specs are from: `live by kubelet, read 3s ago (a, b)`. At most `most` names are shown for
/// each. `None` without a kubelet.
pub(super) fn by_origin<'a>(
    view: &View,
    uids: impl Iterator<Item = (String, &'a str)>,
    most: usize,
    now_ms: u64,
) -> Option<String> {
    view.specs.as_ref()?;
    let words: Vec<(String, String)> = uids
        .map(|(name, uid)| {
            let spec = view.pods.iter().find(|pod| pod.uid.as_str() == uid).and_then(|pod| pod.spec.as_ref());
            let words =
                spec.map_or_else(|| String::from("not known"), |spec| Freshness::of(spec, now_ms).words());
            (name, words)
        })
        .collect();
    let known = words.iter().map(|(name, words)| (name.clone(), words.as_str()));
    Some(ranked::excluded(known, most)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::ReadTime;

    fn spec(source: &str, provenance: &str) -> SpecView {
        SpecView { source: source.into(), provenance: provenance.into(), read_ms: ReadTime::at(10_000) }
    }

    #[test]
    fn a_cell_says_source_provenance_and_age() {
        let short = |source, provenance, now_ms| Freshness::of(&spec(source, provenance), now_ms).short();
        assert_eq!(short("kubelet", "live", 13_999), "kubelet 3s");
        assert_eq!(short("kubelet", "disk", 10_000 + 7_200_000), "disk kubelet 2h");
        assert_eq!(short("podsAPI", "live", 5), "podsAPI 0s", "the clock was set back");
        let longest = short("apiServer", "stale", 10_000 + 59 * 60_000);
        assert_eq!((longest.as_str(), longest.len()), ("stale apiServer 59m", Freshness::WIDTH));
        assert_eq!(age(u64::MAX), "99d");
    }

    #[test]
    fn the_document_has_all_of_it() {
        let json = serde_json::to_value(Freshness::of(&spec("kubelet", "live"), 12_000)).unwrap();
        let expected =
            serde_json::json!({"source": "kubelet", "provenance": "live", "readMs": 10_000, "ageMs": 2_000});
        assert_eq!(json, expected);
    }
}
