use std::time::Duration;

use enforcer_common::record::{Edge, Header, MarkVictim, VERSION};
use proptest::prelude::*;
use rstest::rstest;
use tokio::time::timeout;
use zerocopy::IntoBytes as _;

use super::{fake::ring, *};

/// Long enough for what is in memory, short enough for a test that fails.
const TIMEOUT: Duration = Duration::from_secs(20);

fn edge(time_ns: u64) -> Edge {
    Edge::new(0, 1, time_ns)
}

/// Drains the ring until `count` records have come, and gives what was counted with them.
async fn drained(ring: impl RecordRing, count: usize) -> (Vec<Record>, RingStats) {
    let stats = RingStats::default();
    let (sink, mut source) = mpsc::channel(4);
    let mut records = Vec::new();
    {
        let draining = drain(ring, sink, &stats);
        let reading = async {
            while records.len() < count {
                records.push(source.recv().await.unwrap());
            }
            drop(source);
        };
        let (drained, ()) =
            timeout(TIMEOUT, async { tokio::join!(draining, reading) }).await.expect("woken no more");
        drained.unwrap();
    }
    (records, stats)
}

#[test]
fn every_record_is_counted_once() {
    let stats = RingStats::default();
    assert!(stats.decode(edge(2).as_bytes()).is_some());
    assert!(stats.decode(Edge::new(7, 1, 2).as_bytes()).is_none());
    assert!(stats.decode(Header::new(99, 8).as_bytes()).is_none());
    assert!(stats.decode(&[1, 2, 3]).is_none());
    assert!(stats.decode(&edge(2).as_bytes()[..16]).is_none());
    assert_eq!((stats.records(), stats.unknown(), stats.malformed()), (1, 2, 2));
}

#[rstest]
fn a_record_may_lie_across_the_end_at_every_place(#[values(0, 1)] rounds: usize) {
    const SIZE_BYTES: usize = 512;
    for start in (0..SIZE_BYTES).step_by(8) {
        let (producer, mut ring) = ring(SIZE_BYTES, rounds * SIZE_BYTES + start);
        let mark = MarkVictim { time_ns: 7, comm: *b"a name of sixtee", ..MarkVictim::EMPTY };
        for record in [mark.as_bytes(), edge(8).as_bytes()] {
            assert!(producer.output(record));
        }
        let records: Vec<_> = ring.waiting().iter().map(|bytes| decode(bytes).unwrap()).collect();
        assert!(
            matches!(&records[..], [Record::Mark(mark), Record::KswapdWoke { time_ns: 8, node: 1 }] if mark.comm == "a name of sixtee"),
            "{start}: {records:?}"
        );
    }
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (producer, mut ring) = ring(128, 0);
    let sent = (0..10).filter(|time_ns| producer.output(edge(*time_ns).as_bytes())).count();
    // 32 bytes each with its header, and the kernel never fills the last one.
    assert_eq!((sent, producer.stored(), producer.dropped()), (3, 3, 7));
    assert_eq!(ring.waiting().len(), 3);
    assert!(producer.output(edge(10).as_bytes()), "there is room again");
}

#[test]
fn what_is_being_written_holds_up_what_comes_after_it() {
    let (producer, mut ring) = ring(512, 0);
    let first = producer.reserve(24).unwrap();
    let given_up = producer.reserve(24).unwrap();
    assert!(producer.output(edge(2).as_bytes()));
    assert_eq!(ring.waiting().len(), 0);
    given_up.discard();
    assert_eq!((ring.waiting().len(), producer.woken()), (0, 0));
    first.commit(edge(1).as_bytes());
    assert_eq!(producer.woken(), 1);
    let times: Vec<_> = ring.waiting().iter().map(|bytes| decode(bytes).unwrap()).collect();
    assert!(
        matches!(times[..], [Record::KswapdWoke { time_ns: 1, .. }, Record::KswapdWoke { time_ns: 2, .. }]),
        "{times:?}"
    );
}

#[tokio::test]
async fn everything_that_was_stored_comes_in_its_order() {
    // More than a turn, and than the channel holds; the producer goes on while it is read.
    const COUNT: u64 = 5_000;
    let (producer, ring) = ring(4_096, 0);
    let writer = producer.clone();
    let writing = tokio::spawn(async move {
        for time_ns in 0..COUNT {
            while !writer.output(edge(time_ns).as_bytes()) {
                tokio::task::yield_now().await;
            }
        }
    });
    let (records, stats) = drained(ring, usize::try_from(COUNT).unwrap()).await;
    writing.await.unwrap();
    let expected: Vec<_> = (0..COUNT).map(|time_ns| Record::KswapdWoke { time_ns, node: 1 }).collect();
    assert!(records == expected, "records were lost or came in another order");
    assert_eq!((stats.records(), producer.stored()), (COUNT, COUNT));
    assert!(producer.dropped() > 0, "the ring was never full, so the test shows little");
}

#[tokio::test]
async fn a_slow_reader_loses_only_what_is_counted() {
    let (producer, ring) = ring(1_024, 0);
    let (sink, mut source) = mpsc::channel(1);
    let stats = RingStats::default();
    let reading = async {
        let mut reported = 0;
        for round in 0_u64..200 {
            // Bursts of more than the ring holds, between which a single record is read.
            for record in 0..100 {
                producer.output(edge(round * 100 + record).as_bytes());
            }
            reported += u64::from(source.recv().await.is_some());
        }
        while reported < producer.stored() {
            source.recv().await.unwrap();
            reported += 1;
        }
        drop(source);
        reported
    };
    let draining = drain(ring, sink, &stats);
    let (drained, reported) =
        timeout(TIMEOUT, async { tokio::join!(draining, reading) }).await.expect("woken no more");
    drained.unwrap();
    assert_eq!((reported, stats.records()), (producer.stored(), producer.stored()));
    assert_eq!(producer.stored() + producer.dropped(), 20_000, "seen = stored + dropped");
    assert!(producer.dropped() > 10_000, "{}", producer.dropped());
}

#[tokio::test]
async fn what_cannot_be_used_holds_nothing_up() {
    let (producer, ring) = ring(8_192, 0);
    let mark = MarkVictim { tid: 1, ..MarkVictim::EMPTY };
    let newer = MarkVictim { header: Header { version: VERSION + 1, ..mark.header }, ..mark };
    let (unknown, other_edge) = (Header::new(u32::MAX, 8), Edge::new(9, 0, 0));
    let unusable: [&[u8]; 7] = [
        &[],
        &[1],
        &mark.as_bytes()[..8],
        &mark.as_bytes()[..159],
        newer.as_bytes(),
        unknown.as_bytes(),
        other_edge.as_bytes(),
    ];
    for record in unusable {
        assert!(producer.output(record) && producer.output(mark.as_bytes()));
    }
    let (records, stats) = drained(ring, unusable.len()).await;
    assert!(records.iter().all(|record| matches!(record, Record::Mark(mark) if mark.tid == 1)));
    assert_eq!((stats.records(), stats.unknown(), stats.malformed()), (7, 3, 4));
}

proptest! {
    /// Whatever is reserved, committed or given up in whatever order: what was committed comes, in the order in which
    /// it was reserved, and nothing else does.
    #[test]
    fn no_order_of_writing_loses_a_record(
        start in 0_usize..64,
        steps in prop::collection::vec((0_u8..5, 0_usize..200), 0..200),
    ) {
        let (producer, mut ring) = ring(1_024, start * 8);
        let mut open = Vec::new();
        let mut outcome: Vec<Option<bool>> = Vec::new();
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut read: Vec<Vec<u8>> = Vec::new();
        for (step, size_bytes) in steps {
            match step {
                0 | 1 => if let Some(reserved) = producer.reserve(size_bytes) {
                    records.push(vec![u8::try_from(outcome.len() % 251).unwrap(); size_bytes]);
                    open.push((outcome.len(), reserved));
                    outcome.push(None);
                },
                2 | 3 if !open.is_empty() => {
                    let (number, reserved) = open.remove(size_bytes % open.len());
                    outcome[number] = Some(step == 2);
                    if step == 2 { reserved.commit(&records[number]) } else { reserved.discard() }
                },
                _ => read.extend(ring.waiting()),
            }
        }
        for (number, reserved) in open {
            outcome[number] = Some(false);
            reserved.discard();
        }
        read.extend(ring.waiting());
        let committed: Vec<_> =
            records.into_iter().zip(outcome).filter(|(_, outcome)| *outcome == Some(true)).map(|(record, _)| record).collect();
        prop_assert_eq!(read, committed);
    }
}
