//! What a daemon that did not come to its end left behind: evictions that were under way, and values that were written
//! for a while.

use std::{
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::telling;
use crate::{
    cgroup::{self, CgroupDir, Knob, PageSize},
    journal::{Batch, Event, EventType, Filter, Intent, Journal, Subject},
    model::{CgroupId, CgroupPath, PodName},
    source::{EndedPod, Why},
};

/// How long a signalled pod may take to be empty, before it counts as not signalled.
const DEATH: Duration = Duration::from_secs(2);

/// How far back the log is searched for what was told already.
pub(super) const BACK: u64 = 10_000;

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

/// Gives the files back what they held that were written for a while only.
///
/// This is done in every mode: it undoes what a start before did, and never outlives it.
pub(super) fn knobs(left: &[Intent<'_>], journal: &Journal) {
    for intent in left {
        let Intent::Knob { path, cgroup, file, old, new } = intent else { continue };
        let problem = match restore(path, *cgroup, file, (old, new)) {
            Ok(false) => continue,
            Ok(true) => None,
            Err(error) if error.is_gone() => continue,
            Err(error) => Some(error),
        };
        if let Some(error) = problem {
            let message = format!("{path}/{file} is still at {new}, and was {old}: {}", crate::chain(&error));
            telling::degraded(journal, "limits", &message);
        } else {
            let files = json!([{"file": file, "old": new, "new": old}]);
            let data = json!({"cgroup": path, "reason": "interrupted", "files": files});
            journal.append(Event { kind: EventType::LimitsRestored, subject: Subject::Node, data });
        }
    }
}

/// Writes the old value, if the cgroup is the same and still holds the new one. Answers whether it did.
fn restore(path: &str, id: CgroupId, file: &str, (old, new): (&str, &str)) -> Result<bool, cgroup::Error> {
    let Ok(path) = CgroupPath::parse(path) else { return Ok(false) };
    let dir = CgroupDir::mount(Path::new(cgroup::MOUNT))?.open(&path)?;
    let page = PageSize::of_this_machine();
    let held = Knob::parse(file, &dir.read(file)?, page);
    if dir.id() != id || held != Knob::parse(file, new, page) {
        return Ok(false);
    }
    dir.write(file, old)?;
    Ok(true)
}

pub(super) fn subject(pod: &str) -> Subject {
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

/// Whether there is a cgroup of that id there, and it holds processes.
pub(super) fn is_populated(path: &str, id: u64) -> bool {
    let events = || {
        let root = CgroupDir::mount(Path::new(cgroup::MOUNT)).ok()?;
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
