use serde_json::json;

use super::*;
use crate::{
    journal::{EventType, tests::record},
    model::PodName,
};

fn event(kind: EventType, pod: Option<&str>) -> RawEvent {
    let subject = pod.map_or(Subject::Node, |name| {
        Subject::Pod(PodName { namespace: "default".into(), name: name.into() })
    });
    RawEvent { kind, subject, data: json!({"a": 1}) }
}

fn sequences(reader: &mut Reader) -> Vec<u64> {
    let mut read = Vec::new();
    while let Some(batch) = reader.read() {
        match batch {
            Batch::Records(records) => read.extend(records.iter().map(|record| record.sequence)),
            Batch::Gap { .. } => panic!("a gap"),
        }
    }
    read
}

#[test]
fn an_event_is_one_line_of_cloudevents() {
    let journal = Journal::new("n1", "b1");
    journal.append_raw(event(EventType::PodAdded, Some("web\n")));
    let Some(Batch::Records(records)) = journal.reader(None, Filter::default()).read() else { panic!() };
    let text = std::str::from_utf8(&records[0].line).unwrap();
    assert_eq!(text.matches('\n').count(), 1);
    let value: Value = serde_json::from_str(text).unwrap();
    assert_eq!(value["specversion"], "1.0");
    assert_eq!(value["type"], "dev.enforcer.pod.added");
    assert_eq!(value["subject"], "default/web\n");
    assert_eq!(value["source"], "urn:enforcer:n1:b1");
    assert_eq!(value["sequence"], "00000000000000000001");
    assert!(value["time"].as_str().unwrap().ends_with('Z'));
    assert_eq!(value["id"].as_str().unwrap().len(), 26);
}

#[test]
fn a_reader_gets_what_it_wants_from_where_it_was() {
    let journal = Journal::new("n1", "b1");
    for _ in 0..300 {
        journal.append_raw(event(EventType::LimitsApplied, Some("a")));
        journal.append_raw(event(EventType::OomDetected, Some("b")));
    }
    let only = Filter { kinds: vec![EventType::OomDetected], ..Filter::default() };
    assert_eq!(sequences(&mut journal.reader(Some(590), only)), [592, 594, 596, 598, 600]);
    let pod = Filter { pod: Some("default/a".into()), ..Filter::default() };
    assert_eq!(sequences(&mut journal.reader(Some(597), pod)), [599]);
    let elsewhere = Filter { namespace: Some("kube-system".into()), ..Filter::default() };
    assert!(sequences(&mut journal.reader(None, elsewhere)).is_empty());
}

#[test]
fn a_reader_that_falls_behind_learns_what_it_missed() {
    let journal = Journal::in_memory("n1", "b1", 2_000);
    let mut reader = journal.reader(None, Filter::default());
    for _ in 0..100 {
        journal.append_raw(event(EventType::PodAdded, None));
    }
    let oldest = journal.range().oldest;
    assert!(oldest > 1);
    let Some(Batch::Gap { from: 1, to }) = reader.read() else { panic!("no gap") };
    assert_eq!(to + 1, oldest);
    assert_eq!(sequences(&mut reader), (oldest..=100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_at_the_end_waits_for_the_next() {
    let journal = Journal::new("n1", "b1");
    let mut reader = journal.reader(None, Filter::default());
    assert!(reader.read().is_none());
    let ((), sequence) =
        tokio::join!(reader.readable(), async { journal.append_raw(event(EventType::PodAdded, None)) });
    assert_eq!(sequences(&mut reader), [sequence]);
}

/// A full disk kept a start from making a segment's index whole.
#[test]
fn what_no_segment_gives_yet_stays_in_memory() {
    let mut log = Log::new(1, None, 1, 10_000);
    for sequence in 1..=5 {
        log.push(record(sequence));
    }
    (log.written, log.unreadable_end) = (5, 4);
    log.trim();
    assert_eq!(log.oldest(), 1);
    log.unreadable_end = 0;
    log.trim();
    assert_eq!(log.oldest(), 5);
}

#[test]
fn the_room_of_a_burst_is_given_back_once_it_is_written() {
    let mut log = Log::new(1, None, 1, 1 << 20);
    log.has_disk = true;
    for sequence in 1..=3_000 {
        log.push(record(sequence));
    }
    assert_eq!(log.records.len(), 3_000, "no segment has them");
    log.written = 2_990;
    log.trim();
    assert_eq!(log.records.len(), 10);
    assert!(log.records.capacity() <= window::MOST_ROOM * BATCH_RECORDS, "{}", log.records.capacity());
    assert_eq!(log.behind(2_990, 100).len(), 10);
}
