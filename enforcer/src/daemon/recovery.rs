//! What a daemon that did not come to its end left behind: evictions that were under way.

use std::{
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use ulid::Ulid;

use crate::{
    cgroup::CgroupDir,
    journal::{Batch, Event, EventType, Filter, Intent, Journal, Subject},
    model::{CgroupPath, PodName},
    source::{EndedPod, Why},
};

/// How long a signalled pod may take to be empty, before it counts as not signalled.
const DEATH: Duration = Duration::from_secs(2);

/// How far back the log is searched for what was told already.
const BACK: u64 = 10_000;

/// Finds out what came of each eviction, tells what was not told, and answers who was evicted.
///
/// A pod whose cgroup still holds processes was not signalled: it lives, and is judged anew if memory is short.
pub(super) fn evictions(left: &[Intent<'_>], journal: &Journal) -> Vec<EndedPod> {
    let mut ended = Vec::new();
    let told = told(journal);
    for intent in left {
        let Intent::Eviction { id, pod, uid, path, cgroup, threshold_bytes, observed_bytes, decided_ns: _ } =
            intent
        else {
            continue;
        };
        let id = Ulid::from(*id).to_string();
        let gone = is_gone(path, cgroup.0);
        let mut data = Map::from_iter([
            (String::from("evictionId"), json!(id)),
            (String::from("uid"), json!(uid)),
            (String::from("cgroup"), json!(path)),
            (String::from("reconstructed"), json!(true)),
        ]);
        let tell = |kind, data: &Map<String, Value>| {
            if !told.contains(&(kind, id.clone())) {
                let data = Value::Object(data.clone());
                journal.append(Event { kind, subject: subject(pod), data });
            }
        };
        let mut decided = data.clone();
        decided.extend([
            (String::from("signal"), json!("memory.available")),
            (String::from("thresholdBytes"), json!(threshold_bytes)),
            (String::from("observedBytes"), json!(observed_bytes)),
        ]);
        tell(EventType::EvictionDecided, &decided);
        let (kind, message) = if gone {
            ended.push(EndedPod { uid: uid.to_string(), fingerprint: None, why: Why::Evicted });
            (EventType::EvictionCompleted, "the daemon ended meanwhile; the pod has no process any more")
        } else {
            (EventType::EvictionFailed, "the daemon ended before the pod was signalled: it lives on")
        };
        data.insert(String::from("reason"), json!("interrupted"));
        data.insert(String::from("message"), json!(message));
        tell(kind, &data);
    }
    ended
}

fn subject(pod: &str) -> Subject {
    pod.split_once('/').map_or(Subject::Node, |(namespace, name)| {
        Subject::Pod(PodName { namespace: namespace.to_owned(), name: name.to_owned() })
    })
}

/// Whether the cgroup holds no process, or there is none of that id.
fn is_gone(path: &str, id: u64) -> bool {
    let start = Instant::now();
    while is_populated(path, id) {
        if start.elapsed() >= DEATH {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

fn is_populated(path: &str, id: u64) -> bool {
    let events = || {
        let root = CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).ok()?;
        let dir = root.open(&CgroupPath::parse(path).ok()?).ok()?;
        (dir.id().0 == id).then(|| dir.read("cgroup.events").ok()).flatten()
    };
    events().is_some_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// Which evictions the log tells of, and how far.
fn told(journal: &Journal) -> BTreeSet<(EventType, String)> {
    let kinds = vec![EventType::EvictionDecided, EventType::EvictionCompleted, EventType::EvictionFailed];
    let newest = journal.range().newest;
    let mut reader = journal.reader(Some(newest.saturating_sub(BACK)), Filter { kinds, ..Filter::default() });
    let mut told = BTreeSet::new();
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { continue };
        for record in records {
            let event: Option<Value> = serde_json::from_slice(&record.line).ok();
            if let Some(id) = event.as_ref().and_then(|event| event["data"]["evictionId"].as_str()) {
                told.insert((record.kind, id.to_owned()));
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::CgroupId;

    #[test]
    fn an_eviction_is_told_once_and_its_pod_stays_evicted() {
        let journal = Journal::new("n", "b");
        let id = Ulid::generate();
        let left = [Intent::Eviction {
            id: id.into(),
            pod: "default/hog".into(),
            uid: "hog".into(),
            path: "/no/such/cgroup".into(),
            cgroup: CgroupId(1),
            threshold_bytes: 10,
            observed_bytes: 9,
            decided_ns: 0,
        }];
        for _ in 0..2 {
            let ended = evictions(&left, &journal);
            assert_eq!(ended, [EndedPod { uid: String::from("hog"), fingerprint: None, why: Why::Evicted }]);
        }
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let kinds: Vec<_> = records.iter().map(|record| record.kind).collect();
        assert_eq!(
            kinds,
            [EventType::EvictionDecided, EventType::EvictionCompleted],
            "the second start tells nothing"
        );
        assert_eq!(records[0].pod.as_ref().map(ToString::to_string).as_deref(), Some("default/hog"));
    }
}
