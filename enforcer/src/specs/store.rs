//! The pods that a source has, and what has changed since the daemon asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::pod::ApiPod;

/// The largest pod, cut, in JSON.
const MOST_POD_BYTES: usize = 64 << 10;

/// How many removals are remembered; who asked before them gets all pods anew.
const MOST_REMOVALS: usize = 1_024;

/// The pods of a source by uid, cut and written, with the revision at which each has changed.
#[derive(Debug, Default)]
pub(super) struct Store {
    revision: u64,
    pods: BTreeMap<String, (u64, Vec<u8>)>,
    removals: VecDeque<(u64, String)>,
    /// Removals up to this revision are no longer remembered.
    forgotten: u64,
    /// Whether it has all pods that the source had at one time.
    is_whole: bool,
    /// How many pods were left out: too many, or too large, or without a uid.
    pub(super) dropped: u64,
}

/// What the daemon is sent.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Since {
    /// Its revision.
    pub(super) revision: u64,
    /// Whether these are all pods.
    pub(super) is_whole: bool,
    /// The pods that have changed, in JSON.
    pub(super) pods: Vec<Vec<u8>>,
    /// The uids of those that are gone.
    pub(super) removed: Vec<String>,
}

impl Store {
    /// The most pods that are kept: a node has some hundred.
    pub(super) const MOST_PODS: usize = 4_096;

    /// A number that grows with each change.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Takes all pods of the source.
    pub(super) fn become_like(&mut self, pods: Vec<ApiPod>) {
        let named: BTreeSet<&str> = pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
        self.retain(|uid| named.contains(uid));
        self.dropped = 0;
        pods.iter().for_each(|pod| self.put(pod));
        self.complete();
    }

    /// Takes a pod as it is now. Of one that is left out, the former state is not kept either: it may have been resized.
    pub(super) fn put(&mut self, pod: &ApiPod) {
        let uid = pod.metadata.uid.as_str();
        let written = serde_json::to_vec(pod).unwrap_or_default();
        let is_room = self.pods.len() < Self::MOST_PODS || self.pods.contains_key(uid);
        if uid.is_empty() || uid.len() > 128 || written.len() > MOST_POD_BYTES || !is_room {
            self.dropped += 1;
            let uid = uid.to_owned();
            return self.remove(&uid);
        }
        if self.pods.get(uid).is_none_or(|(_, known)| *known != written) {
            self.revision += 1;
            self.pods.insert(uid.to_owned(), (self.revision, written));
        }
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &str) {
        if self.pods.remove(uid).is_none() {
            return;
        }
        self.revision += 1;
        self.removals.push_back((self.revision, uid.to_owned()));
        if self.removals.len() > MOST_REMOVALS
            && let Some((revision, _)) = self.removals.pop_front()
        {
            self.forgotten = revision;
        }
    }

    /// Removes all pods but those.
    fn retain(&mut self, is_named: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.pods.keys().filter(|uid| !is_named(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    /// Notes that all pods of the source are there.
    pub(super) fn complete(&mut self) {
        if !std::mem::replace(&mut self.is_whole, true) {
            self.revision += 1;
        }
    }

    /// What has changed since that revision, `None` for all; `None` if nothing has, or while not all pods are there.
    pub(super) fn since(&self, revision: Option<u64>) -> Option<Since> {
        if !self.is_whole || revision == Some(self.revision) {
            return None;
        }
        let after = revision.filter(|after| (self.forgotten..self.revision).contains(after));
        let is_new = |changed: u64| after.is_none_or(|after| changed > after);
        let pods = self.pods.values().filter(|(changed, _)| is_new(*changed));
        let removed = self
            .removals
            .iter()
            .filter(|(gone, uid)| after.is_some() && is_new(*gone) && !self.pods.contains_key(uid));
        Some(Since {
            revision: self.revision,
            is_whole: after.is_none(),
            pods: pods.map(|(_, written)| written.clone()).collect(),
            removed: removed.map(|(_, uid)| uid.clone()).collect(),
        })
    }
}

impl Since {
    /// It as the body of an answer: the pods are JSON already.
    pub(super) fn body(&self) -> Vec<u8> {
        let removed = serde_json::to_vec(&self.removed).unwrap_or_else(|_error| b"[]".to_vec());
        [&br#"{"pods":["#[..], &self.pods.join(&b','), br#"],"removed":"#, &removed, b"}"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::pod::Metadata, *};

    fn pod(uid: &str, name: &str) -> ApiPod {
        let metadata = Metadata { name: name.into(), uid: uid.into(), ..Metadata::default() };
        ApiPod { metadata, ..ApiPod::default() }
    }

    fn uids(since: &Since) -> Vec<String> {
        let read = |pod: &Vec<u8>| serde_json::from_slice::<ApiPod>(pod).unwrap().metadata.uid;
        since.pods.iter().map(read).collect()
    }

    #[test]
    fn nothing_is_said_before_all_is_there() {
        let mut store = Store::default();
        store.put(&pod("a", "a"));
        assert_eq!(store.since(None), None);
        store.complete();
        let all = store.since(None).unwrap();
        assert!(all.is_whole);
        assert_eq!(uids(&all), ["a"]);
        assert_eq!(store.since(Some(all.revision)), None);
        // An empty node is a state as well.
        let mut empty = Store::default();
        empty.complete();
        assert_eq!(uids(&empty.since(None).unwrap()), [""; 0]);
    }

    #[test]
    fn only_what_has_changed_is_sent() {
        let mut store = Store::default();
        for uid in ["a", "b", "c"] {
            store.put(&pod(uid, uid));
        }
        store.complete();
        let first = store.since(None).unwrap().revision;
        store.put(&pod("a", "a"));
        assert_eq!(store.since(Some(first)), None, "nothing is different");
        store.put(&pod("b", "other"));
        store.remove("c");
        store.remove("none");
        let change = store.since(Some(first)).unwrap();
        assert_eq!((uids(&change), change.removed.as_slice()), (vec!["b".into()], &["c".to_owned()][..]));
        assert!(!change.is_whole);
        store.put(&pod("c", "back"));
        let change = store.since(Some(first)).unwrap();
        assert_eq!((uids(&change), change.removed.len()), (vec!["b".into(), "c".into()], 0));
        store.retain(|uid| uid == "a");
        assert_eq!(store.since(Some(change.revision)).unwrap().removed, ["b", "c"]);
    }

    #[test]
    fn who_asks_after_too_long_gets_all() {
        let mut store = Store::default();
        store.put(&pod("stays", "stays"));
        store.complete();
        let first = store.since(None).unwrap().revision;
        for number in 0..=MOST_REMOVALS {
            let uid = number.to_string();
            store.put(&pod(&uid, "x"));
            store.remove(&uid);
        }
        let change = store.since(Some(first)).unwrap();
        assert!(change.is_whole);
        assert_eq!(uids(&change), ["stays"]);
        // A revision of another process, too.
        assert!(store.since(Some(u64::MAX)).unwrap().is_whole);
    }

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let mut store = Store::default();
        store.complete();
        store.put(&pod("large", "fits"));
        store.put(&pod("large", &"x".repeat(MOST_POD_BYTES)));
        store.put(&pod("", "none"));
        for number in 0..=Store::MOST_PODS {
            store.put(&pod(&number.to_string(), "x"));
        }
        assert_eq!((store.pods.len(), store.dropped), (Store::MOST_PODS, 3));
        assert!(!store.pods.contains_key("large"));
    }
}
