use enforcer_common::record::{
    CGROUP_KNOWN, CONTAINER_INIT, COUNTS_KNOWN, Edge, Header, INIT_KNOWN, KILL_WATCHED, KIND_MARK_VICTIM,
    KIND_PROCESS_EXIT, LIMIT_KNOWN, MEMORY_KNOWN, MarkVictim, ProcessExit, VICTIM_KILLED,
};
use enforcer_events::oom::OomCounts;
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

use super::{Limited, Record, Undecodable, decode, recorded};
use crate::model::CgroupId;

fn victim(flags: u32) -> MarkVictim {
    let mut mark = MarkVictim { flags, tid: 12, tgid: 10, cgroup_id: 77, ..MarkVictim::EMPTY };
    mark.comm[..4].copy_from_slice(b"java");
    mark
}

fn mark(raw: &MarkVictim) -> super::Mark {
    match decode(raw.as_bytes()) {
        Ok(Record::Mark(mark)) => mark,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mark_with_everything() {
    let flags = CGROUP_KNOWN
        | LIMIT_KNOWN
        | KILL_WATCHED
        | VICTIM_KILLED
        | INIT_KNOWN
        | CONTAINER_INIT
        | MEMORY_KNOWN;
    let raw = MarkVictim { limit_cgroup_id: 5, anon_bytes: 4096, ..victim(flags) };
    let mark = mark(&raw);
    assert_eq!((mark.tid, mark.pid, mark.comm.as_str()), (12, Some(10), "java"));
    assert_eq!(mark.cgroup, Some(CgroupId(77)));
    assert_eq!(mark.limit, Some(Limited::Cgroup(CgroupId(5))));
    assert_eq!((mark.killed, mark.container_init), (Some(true), Some(true)));
    assert_eq!(mark.memory.unwrap().anon_bytes, 4096);
}

#[test]
fn what_is_not_known_is_none() {
    let mark = mark(&MarkVictim { tgid: 0, ..victim(0) });
    assert_eq!((mark.pid, mark.cgroup, mark.limit, mark.killed), (None, None, None, None));
    assert_eq!((mark.container_init, mark.memory, mark.uid, mark.oom_score_adj), (None, None, None, None));
}

#[test]
fn unknown_is_not_false() {
    assert_eq!(mark(&victim(KILL_WATCHED)).killed, Some(false));
    assert_eq!(mark(&victim(VICTIM_KILLED)).killed, None, "without a watch the flag says nothing");
    assert_eq!(mark(&victim(INIT_KNOWN)).container_init, Some(false));
}

#[test]
fn no_limit_owner_is_the_machine() {
    assert_eq!(mark(&victim(LIMIT_KNOWN)).limit, Some(Limited::Machine));
}

#[test]
fn a_name_that_is_no_text_is_kept_as_far_as_it_goes() {
    let mut raw = victim(0);
    raw.comm = *b"\xff\xfe\x1b[31m012345678";
    assert_eq!(mark(&raw).comm, "\u{fffd}\u{fffd}\u{1b}[31m012345678");
}

#[test]
fn an_exit_and_the_edges() {
    let raw = ProcessExit { tgid: 10, tid: 12, marked_ns: 3, cgroup_id: 77, ..ProcessExit::EMPTY };
    let Ok(Record::Exit(exit)) = decode(raw.as_bytes()) else { panic!("no exit") };
    assert_eq!((exit.pid, exit.marked_ns, exit.cgroup), (10, 3, Some(CgroupId(77))));
    assert_eq!((exit.exit_code, exit.group_dead), (None, false));
    // Builds before did not tell when the process started.
    let size_bytes = ProcessExit::STARTLESS_BYTES;
    let before = ProcessExit { header: Header::new(KIND_PROCESS_EXIT, size_bytes), ..raw };
    assert_eq!(decode(&before.as_bytes()[..usize::from(size_bytes)]), Ok(Record::Exit(exit)));
    assert_eq!(decode(Edge::new(0, 1, 9).as_bytes()), Ok(Record::KswapdWoke { time_ns: 9, node: 1 }));
    assert_eq!(decode(Edge::new(1, 42, 9).as_bytes()), Ok(Record::DirectReclaim { time_ns: 9, tid: 42 }));
    assert_eq!(decode(Edge::new(2, 42, 9).as_bytes()), Err(Undecodable::UnknownEdge(2)));
}

#[test]
fn a_mark_of_the_build_before_is_read_without_counts() {
    let whole = MarkVictim { counted_oom_kill: 1, ..victim(COUNTS_KNOWN) };
    assert_eq!(mark(&whole).counts, Some(OomCounts { oom_kill: 1, ..OomCounts::default() }));

    let size_bytes = MarkVictim::BYTES_WITHOUT_COUNTERS;
    let before = MarkVictim { header: Header::new(KIND_MARK_VICTIM, size_bytes), ..victim(0) };
    let Ok(Record::Mark(read)) = decode(&before.as_bytes()[..usize::from(size_bytes)]) else {
        panic!("it is a mark")
    };
    assert_eq!((read.tid, read.counts), (before.tid, None));
}

#[test]
fn torn_short_unknown_and_wrong_records_are_reported_apart() {
    let raw = victim(0);
    assert_eq!(decode(&[]), Err(Undecodable::Torn(0)));
    assert_eq!(decode(&raw.as_bytes()[..7]), Err(Undecodable::Torn(7)));
    assert_eq!(
        decode(&raw.as_bytes()[..40]),
        Err(Undecodable::WrongSize { kind: KIND_MARK_VICTIM, actual_bytes: 40, expected_bytes: 208 })
    );
    let lying = Header::new(KIND_MARK_VICTIM, 8);
    assert_eq!(
        decode(lying.as_bytes()),
        Err(Undecodable::WrongSize { kind: KIND_MARK_VICTIM, actual_bytes: 8, expected_bytes: 208 })
    );
    assert_eq!(decode(Header::new(99, 8).as_bytes()), Err(Undecodable::UnknownKind(99)));
    let old = Header { version: 0, ..Header::new(KIND_MARK_VICTIM, 8) };
    assert_eq!(decode(old.as_bytes()), Err(Undecodable::OtherVersion(0)));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        drop(decode(&bytes));
    }

    #[test]
    fn no_body_panics(kind in 0_u32..5, body in proptest::collection::vec(any::<u8>(), 152)) {
        for len in [16, 40, 152] {
            let mut bytes = Header::new(kind, len + 8).as_bytes().to_vec();
            bytes.extend_from_slice(&body[..usize::from(len)]);
            drop(decode(&bytes));
        }
    }
}

#[test]
fn a_real_record_is_whole_or_none() {
    for (kernel, text) in recorded::ALL {
        for record in recorded::parse(text).records {
            assert!(decode(&record).is_ok(), "{kernel}: {record:02x?}");
            for length in 0..record.len() {
                assert!(
                    decode(&record[..length]).is_err(),
                    "{kernel}: the first {length} bytes of {record:02x?}"
                );
            }
            let longer = [&record[..], &[0; 8]].concat();
            assert!(decode(&longer).is_err(), "{kernel}: more than {record:02x?}");
        }
    }
}
