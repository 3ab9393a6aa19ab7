use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IoSliceMut, Read as _, Seek as _},
    mem::MaybeUninit,
    os::unix::net::UnixDatagram,
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::json;

use super::{catalog::meaning, *};
use crate::{
    journal::{EventType, Filter, RawEvent, Subject},
    model::PodName,
    sink::feed::Feed,
};

/// Reads an entry as journald does.
fn parse(mut rest: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut fields = BTreeMap::new();
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, behind) = (&rest[..end], &rest[end + 1..]);
        let (name, value, behind) = if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
            (&line[..equals], &line[equals + 1..], behind)
        } else {
            let (length, behind) = behind.split_at(8);
            let length = usize::try_from(u64::from_le_bytes(length.try_into().unwrap())).unwrap();
            assert_eq!(behind[length], b'\n');
            (line, &behind[..length], &behind[length + 1..])
        };
        let name = String::from_utf8(name.to_vec()).unwrap();
        assert!(fields.insert(name, value.to_vec()).is_none());
        rest = behind;
    }
    fields
}

/// Takes an entry as journald does: as a datagram, or as a sealed file.
fn receive(socket: &UnixDatagram) -> (BTreeMap<String, Vec<u8>>, bool) {
    let mut bytes = vec![0; 1 << 20];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received =
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).unwrap();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            let fd = fds.into_iter().next().unwrap();
            let seals = rustix::fs::fcntl_get_seals(&fd).unwrap();
            assert!(seals.contains(rustix::fs::SealFlags::WRITE | rustix::fs::SealFlags::SHRINK));
            let mut file = std::fs::File::from(fd);
            let mut content = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut content).unwrap();
            return (parse(&content), true);
        }
    }
    (parse(&bytes[..received.bytes]), false)
}

fn items(journal: &Journal) -> Vec<Item> {
    Feed::new(journal.clone(), 0, Filter::default(), std::sync::Arc::default()).front(100, usize::MAX)
}

fn journald(path: &std::path::Path, journal: &Journal) -> Journald {
    let settings = JournaldSettings { enabled: true, socket: path.to_owned(), types: Vec::new() };
    Journald::new(&settings, journal).unwrap()
}

#[tokio::test]
async fn an_event_is_an_entry_with_its_fields() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    let journal = Journal::new("n1", "b");
    let pod = Subject::Pod(PodName { namespace: "ns".into(), name: "web".into() });
    let counts = json!({"oom": 1, "oomKill": 1, "oomGroupKill": 0});
    let data = json!({
        "incidentId": "01J8Z3NDEKTSV4RRFFQ69G5FAV", "limitSource": "traced", "kills": 1, "timelineMs": {},
        "counters": counts, "countersBefore": counts, "countersAfter": counts, "reconciled": true,
        "reconciliation": "matched", "reconstructed": false, "scope": "pod",
        "victims": [{"pid": 7, "comm": "a\nb", "container": "app", "cgroup": "/k/app"}],
    });
    journal.append_raw(RawEvent { kind: EventType::OomIncident, subject: pod, data: data.clone() });
    journal.append_raw(RawEvent {
        kind: EventType::ConfigLoaded,
        subject: Subject::Node,
        data: json!({"message": "m"}),
    });
    assert_eq!(journald(&path, &journal).deliver(&items(&journal)).await, Ok(2));
    let (entry, _) = receive(&socket);
    let text = |name: &str| String::from_utf8(entry[name].clone()).unwrap();
    assert_eq!(
        text("MESSAGE"),
        r"pod ns/web had an OOM kill: a\nb (pid 7) in container app; its pod's limit was hit"
    );
    assert_eq!(text("MESSAGE_ID"), "3d65569c05aa1de0b96dbc0e3bb13305");
    assert_eq!((text("PRIORITY"), text("SYSLOG_IDENTIFIER")), ("3".into(), "enforcer".into()));
    assert_eq!(text("ENFORCER_TYPE"), "dev.enforcer.oom.incident");
    assert_eq!(text("ENFORCER_SEQUENCE"), format!("{:020}", 1));
    assert_eq!(text("ENFORCER_CURSOR"), journal.cursor(1).to_string());
    assert_eq!((text("ENFORCER_NAMESPACE"), text("ENFORCER_POD")), ("ns".into(), "web".into()));
    assert_eq!((text("ENFORCER_CONTAINER"), text("OBJECT_CGROUP")), ("app".into(), "/k/app".into()));
    let reported: serde_json::Value = serde_json::from_slice(&entry["ENFORCER_DATA"]).unwrap();
    assert_eq!(reported, data);
    let (entry, _) = receive(&socket);
    assert_eq!(entry["MESSAGE"], b"node n1 has a configuration in force: m");
    assert!(!entry.contains_key("ENFORCER_POD"), "what is not known is not there");
}

#[tokio::test]
async fn a_large_event_goes_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    let journal = Journal::new("n1", "b");
    let data = json!({"message": "x".repeat(600 << 10)});
    journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
    assert_eq!(journald(&path, &journal).deliver(&items(&journal)).await, Ok(1));
    let (entry, is_file) = receive(&socket);
    assert!(is_file);
    assert!(entry["ENFORCER_DATA"].len() > 600 << 10);
    assert!(entry["MESSAGE"].len() < 3 << 10, "the message is a sentence");
}

#[tokio::test]
async fn what_journald_cannot_take_stays_and_a_new_journald_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let journal = Journal::new("n1", "b");
    for _ in 0..2_000 {
        let data = json!({"pad": "x".repeat(500)});
        journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
    }
    let mut journald = journald(&path, &journal);
    let items = items(&journal);
    let Err(Trouble::Later { why, after: None }) = journald.deliver(&items).await else { panic!() };
    assert!(why.contains("socket"), "{why}");
    for _ in 0..2 {
        drop(std::fs::remove_file(&path));
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut taken = 0;
        // It does not read: the socket is full before all are in it.
        while let Ok(more) = journald.deliver(&items[..]).await {
            taken += more;
        }
        for place in 0..taken {
            let sequence = items[place % items.len()].last;
            let (entry, _) = receive(&socket);
            assert_eq!(entry["ENFORCER_SEQUENCE"], format!("{sequence:020}").into_bytes());
            // Only the first round is without a gap: what was not taken is given again.
            if place + 1 == items.len() {
                break;
            }
        }
        assert!(taken > 0);
    }
}

#[test]
fn journald_is_not_reported_more_than_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let mut journald = journald(&dir.path().join("socket"), &Journal::new("n", "b"));
    journald.sent = MOST_ENTRIES - 1;
    assert_eq!(journald.pace(), None);
    journald.sent = MOST_ENTRIES;
    assert!(journald.pace().unwrap() > Duration::from_secs(29));
    journald.since = Instant::now().checked_sub(WITHIN).unwrap();
    assert_eq!((journald.pace(), journald.sent), (None, 0));
}

/// The ids of `packaging/enforcer.catalog` are those of the types, and each has an entry that says what to do.
#[test]
fn every_type_has_its_entry_in_the_catalog() {
    let catalog = include_str!("../../../../packaging/enforcer.catalog");
    let mut entries = BTreeMap::new();
    for entry in catalog.split("\n-- ").skip(1) {
        let (id, text) = entry.split_once('\n').unwrap();
        assert!(entries.insert(id.to_owned(), text).is_none(), "{id} is there twice");
    }
    let ids: BTreeSet<_> = EventType::ALL.iter().map(|kind| meaning(*kind).message_id.to_owned()).collect();
    assert_eq!(ids.len(), EventType::ALL.len(), "an id stands for two types");
    assert_eq!(ids, entries.keys().cloned().collect());
    for (id, text) in entries {
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let (head, body) = text.split_once("\n\n").unwrap();
        assert!(head.starts_with("Subject: ") && head.contains("\nDefined-By: enforcer"), "{id}");
        assert!(body.trim().split("\n\n").count() == 2, "{id} should say what it means and what to do");
    }
    for kind in EventType::ALL {
        assert!((3..=6).contains(&meaning(*kind).priority), "{kind}");
    }
}
