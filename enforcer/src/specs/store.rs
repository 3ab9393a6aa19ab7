//! The pods that a source has, and what has changed since the daemon asked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::pod::ApiPod;
use crate::{
    clock,
    helper::{MOST_ID_BYTES, is_id},
};

/// The largest pod, cut, in JSON.
const MOST_POD_BYTES: usize = 96 << 10;

/// All pods together. The daemon takes no longer change.
pub(super) const MOST_BYTES: usize = 10 << 20;

/// How many removals are remembered; who asked before them gets all pods anew.
const MOST_REMOVALS: usize = 1_024;

/// The pods of a source by uid, cut and written, with the revision at which each has changed.
#[derive(Debug)]
pub(super) struct Store {
    /// It begins at a number that no other store has had: a revision of another process, or of an earlier connection, is
    /// none of this one.
    revision: u64,
    pods: BTreeMap<String, (u64, Vec<u8>)>,
    removals: VecDeque<(u64, String)>,
    /// Removals up to this revision are no longer remembered.
    forgotten: u64,
    /// Whether it has all pods that the source had at one time.
    is_whole: bool,
    /// How many bytes the pods have.
    bytes: usize,
    /// The pods that were left out, as they are too large or too many.
    left_out: BTreeSet<String>,
    /// How many pods could not be read.
    unreadable: u64,
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
    /// The uids of all that are left out.
    pub(super) left_out: Vec<String>,
}

impl Default for Store {
    fn default() -> Self {
        let begin = clock::boottime_ns();
        Self {
            revision: begin,
            pods: BTreeMap::new(),
            removals: VecDeque::new(),
            forgotten: begin,
            is_whole: false,
            bytes: 0,
            left_out: BTreeSet::new(),
            unreadable: 0,
        }
    }
}

impl Store {
    /// The most pods that are kept: a node has some hundred.
    pub(super) const MOST_PODS: usize = 4_096;

    /// Whether it has all pods that the source had at one time.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// A number that grows with each change.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// How many pods of the source are not among these: they cannot be read, or are too large or too many.
    pub(super) fn dropped(&self) -> u64 {
        self.unreadable + u64::try_from(self.left_out.len()).unwrap_or(u64::MAX)
    }

    /// Takes all pods of the source; `None` is one that cannot be read.
    pub(super) fn replace_all(&mut self, pods: &[Option<ApiPod>]) {
        let named: BTreeSet<&str> = pods.iter().flatten().map(|pod| pod.metadata.uid.as_str()).collect();
        let gone: Vec<String> =
            self.pods.keys().filter(|uid| !named.contains(uid.as_str())).cloned().collect();
        for uid in &gone {
            self.remove(uid);
        }
        let dropped = self.dropped();
        self.left_out.clear();
        self.unreadable = u64::try_from(pods.iter().filter(|pod| pod.is_none()).count()).unwrap_or(u64::MAX);
        pods.iter().flatten().for_each(|pod| self.take(pod));
        self.note_dropped(dropped);
        self.complete();
    }

    /// Takes a pod as it is now.
    pub(super) fn put(&mut self, pod: &ApiPod) {
        let dropped = self.dropped();
        self.take(pod);
        self.note_dropped(dropped);
    }

    /// Notes a pod that cannot be read.
    pub(super) fn note_unreadable(&mut self) {
        self.unreadable += 1;
        self.revision += 1;
    }

    /// Makes a change of how many pods were dropped a revision of its own.
    fn note_dropped(&mut self, before: u64) {
        self.revision += u64::from(self.dropped() != before);
    }

    /// Of a pod that is left out, the former state is not kept either: it may have been resized.
    fn take(&mut self, pod: &ApiPod) {
        let uid = pod.metadata.uid.as_str();
        let written = serde_json::to_vec(pod).unwrap_or_default();
        let known = self.pods.get(uid).map(|(_, known)| known);
        if known == Some(&written) {
            return;
        }
        let bytes = self.bytes - known.map_or(0, Vec::len) + written.len();
        let is_room = bytes <= MOST_BYTES && (known.is_some() || self.pods.len() < Self::MOST_PODS);
        if !is_id(uid) || written.len() > MOST_POD_BYTES || !is_room {
            self.forget(uid);
            self.note_left_out(uid);
            return;
        }
        self.left_out.remove(uid);
        self.bytes = bytes;
        self.revision += 1;
        self.pods.insert(uid.to_owned(), (self.revision, written));
    }

    /// Leaves a pod out that cannot be read: its former state is no longer right.
    pub(super) fn leave_out(&mut self, uid: &str) {
        let dropped = self.dropped();
        self.forget(uid);
        self.note_left_out(uid);
        self.note_dropped(dropped);
    }

    fn note_left_out(&mut self, uid: &str) {
        if self.left_out.len() < Self::MOST_PODS {
            self.left_out.insert(uid.chars().take(MOST_ID_BYTES).collect());
        }
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, uid: &str) {
        let dropped = self.dropped();
        self.left_out.remove(uid);
        self.forget(uid);
        self.note_dropped(dropped);
    }

    fn forget(&mut self, uid: &str) {
        let Some((_, written)) = self.pods.remove(uid) else { return };
        self.bytes -= written.len();
        self.revision += 1;
        self.removals.push_back((self.revision, uid.to_owned()));
        if self.removals.len() > MOST_REMOVALS
            && let Some((revision, _)) = self.removals.pop_front()
        {
            self.forgotten = revision;
        }
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
            left_out: self.left_out.iter().cloned().collect(),
        })
    }
}

impl Since {
    /// It as the body of an answer: the pods are JSON already.
    pub(super) fn body(&self) -> Vec<u8> {
        let list = |uids: &[String]| serde_json::to_vec(uids).unwrap_or_else(|_error| b"[]".to_vec());
        let (removed, left_out) = (list(&self.removed), list(&self.left_out));
        let pods = self.pods.join(&b',');
        [&br#"{"pods":["#[..], &pods, br#"],"removed":"#, &removed, br#","leftOut":"#, &left_out, b"}"]
            .concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::metadata::Metadata, *};

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
        store.replace_all(&[Some(pod("a", "a"))]);
        assert_eq!(store.since(Some(change.revision)).unwrap().removed, ["b", "c"]);
    }

    #[test]
    fn an_old_revision_gets_all_pods() {
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
        for revision in [0, 1, first - 1_000_000, u64::MAX] {
            assert!(store.since(Some(revision)).unwrap().is_whole, "{revision}");
        }
    }

    #[test]
    fn what_is_too_much_is_left_out_and_counted() {
        let mut store = Store::default();
        store.complete();
        store.put(&pod("large", "fits"));
        let revision = store.since(None).unwrap().revision;
        for _ in 0..2 {
            store.put(&pod("large", &"x".repeat(MOST_POD_BYTES)));
            store.put(&pod("", "none"));
        }
        assert_eq!((store.pods.len(), store.dropped()), (0, 2));
        assert!(store.since(Some(revision)).is_some());
        for number in 0..=Store::MOST_PODS {
            store.put(&pod(&number.to_string(), "x"));
        }
        assert_eq!((store.pods.len(), store.dropped()), (Store::MOST_PODS, 3));
        let revision = store.revision();
        store.replace_all(&[Some(pod("large", "fits")), None]);
        assert_eq!((store.pods.len(), store.dropped()), (1, 1));
        assert!(store.revision() > revision);
        store.replace_all(&[]);
        assert_eq!((store.pods.len(), store.dropped(), store.bytes), (0, 0, 0));
    }

    #[test]
    fn of_duplicate_uids_in_a_list_there_is_one_pod_and_none_is_removed() {
        let mut store = Store::default();
        store.replace_all(&[Some(pod("a", "a")), Some(pod("b", "b"))]);
        let revision = store.revision();
        store.replace_all(
            &["first", "second"]
                .map(|name| Some(pod("a", name)))
                .into_iter()
                .chain([Some(pod("b", "b"))])
                .collect::<Vec<_>>(),
        );
        let change = store.since(Some(revision)).unwrap();
        assert_eq!((uids(&change), change.removed.len(), store.pods.len()), (vec!["a".into()], 0, 2));
        let written = store.pods.values().map(|(_, written)| written.len()).sum::<usize>();
        assert_eq!(store.bytes, written);
    }

    #[test]
    fn all_pods_together_are_bounded() {
        let mut store = Store::default();
        store.complete();
        let name = "x".repeat(MOST_POD_BYTES - 1_000);
        for number in 0..1_000 {
            store.put(&pod(&number.to_string(), &name));
        }
        assert!(store.since(None).unwrap().body().len() < super::super::message::MOST_CHANGE_BYTES);
        assert_eq!(store.dropped(), 1_000 - u64::try_from(store.pods.len()).unwrap());
        assert!((100..120).contains(&store.pods.len()), "{}", store.pods.len());
    }

    /// Watch events, lists that are read again and containers that restart, for as long as a daemon may run.
    #[test]
    fn what_is_kept_does_not_grow_with_events_lists_and_restarts() {
        let mut store = Store::default();
        let node = |round: usize| -> Vec<Option<ApiPod>> {
            let pods = (round..round + 100).map(|number| Some(pod(&format!("{number:06}"), "web")));
            pods.chain([None]).collect()
        };
        store.replace_all(&node(0));
        let bytes = store.bytes;
        for round in 1..5_000 {
            // The oldest goes and another comes, by events or in a list; one of them restarts.
            if round % 10 == 0 {
                store.replace_all(&node(round));
            } else {
                store.remove(&format!("{:06}", round - 1));
                store.put(&pod(&format!("{:06}", round + 99), "web"));
            }
            let restarted = format!("{:06}", round + 50);
            store.put(&pod(&restarted, if round % 2 == 0 { "wed" } else { "web" }));
            store.put(&pod(&format!("{round}/large"), "web"));
            store.leave_out(&format!("left-out-{}", round % 10));
            store.note_unreadable();
            assert_eq!((store.pods.len(), store.bytes), (100, bytes), "{round}");
            assert!(store.removals.len() <= MOST_REMOVALS, "{round}");
            assert!(store.left_out.len() <= 20, "{round}: {}", store.left_out.len());
        }
        assert_eq!(store.pods.values().map(|(_, written)| written.len()).sum::<usize>(), bytes);
    }
}
