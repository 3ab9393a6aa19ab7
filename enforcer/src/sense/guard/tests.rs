use std::collections::BTreeMap;

use enforcer_common::{
    guard::{CAUSE_FORKED, CAUSE_WRITTEN, KIND_SCORE, KIND_WRITE, ScoreEdge, WriteEdge},
    record::{Header, MarkVictim},
};
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

use super::{
    ForeignWrite, GuardEvent, Process, ScoreCause, WrongScore,
    event::decode,
    table::{Changes, diff},
};
use crate::{model::CgroupId, sense::Undecodable};

fn name<const LEN: usize>(name: &str) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn score() -> ScoreEdge {
    ScoreEdge {
        time_ns: 9,
        cgroup_id: 77,
        start_boottime_ns: 5,
        tgid: 12,
        writer_tgid: 3,
        cause: CAUSE_WRITTEN,
        score: 0,
        wanted: -997,
        comm: name("java"),
        writer_comm: name("choom"),
        ..ScoreEdge::EMPTY
    }
}

#[test]
fn a_wrong_score_with_everything() {
    let event = decode(score().as_bytes(), true).unwrap();
    let process = Process { pid: 12, start_ns: Some(5), comm: String::from("java") };
    let writer = Process { pid: 3, start_ns: None, comm: String::from("choom") };
    assert_eq!(
        event,
        GuardEvent::Score(WrongScore {
            time_ns: 9,
            container: CgroupId(77),
            process,
            pid: Some(12),
            cause: ScoreCause::Written,
            score: 0,
            wanted: -997,
            writer,
        })
    );
}

#[test]
fn foreign_process_ids_are_not_taken_for_ours() {
    let GuardEvent::Score(score) = decode(score().as_bytes(), false).unwrap() else { panic!("no score") };
    assert_eq!((score.pid, score.process.pid), (None, 12));
    let unknown = ScoreEdge { tgid: 0, cause: CAUSE_FORKED, ..self::score() };
    let GuardEvent::Score(score) = decode(unknown.as_bytes(), true).unwrap() else { panic!("no score") };
    assert_eq!((score.pid, score.cause), (None, ScoreCause::Forked));
}

#[test]
fn a_foreign_write() {
    let raw = WriteEdge {
        time_ns: 4,
        cgroup_id: 8,
        writer_start_boottime_ns: 2,
        writer_tgid: 1,
        writer_comm: name("systemd"),
        file: name("memory.max"),
        ..WriteEdge::EMPTY
    };
    let writer = Process { pid: 1, start_ns: Some(2), comm: String::from("systemd") };
    let file = String::from("memory.max");
    let written = ForeignWrite { time_ns: 4, cgroup: CgroupId(8), file, writer };
    assert_eq!(decode(raw.as_bytes(), true), Ok(GuardEvent::Written(written)));
    let longest = WriteEdge { file: [b'x'; 32], ..raw };
    let GuardEvent::Written(written) = decode(longest.as_bytes(), true).unwrap() else { panic!("no write") };
    assert_eq!(written.file.len(), 32);
}

#[test]
fn what_cannot_be_is_refused() {
    let cause = ScoreEdge { cause: 4, ..score() };
    assert_eq!(decode(cause.as_bytes(), true), Err(Undecodable::UnknownEdge(4)));
    let large = ScoreEdge { score: 40_000, ..score() };
    assert_eq!(decode(large.as_bytes(), true), Err(Undecodable::ImpossibleScore(40_000)));
    assert_eq!(decode(MarkVictim::EMPTY.as_bytes(), true), Err(Undecodable::UnknownKind(1)));
    assert_eq!(
        decode(&score().as_bytes()[..40], true),
        Err(Undecodable::WrongSize { kind: KIND_SCORE, actual_bytes: 40, expected_bytes: 96 })
    );
    let lying = Header::new(KIND_WRITE, 8);
    assert_eq!(
        decode(lying.as_bytes(), true),
        Err(Undecodable::WrongSize { kind: KIND_WRITE, actual_bytes: 8, expected_bytes: 88 })
    );
}

fn table(entries: &[(u64, i16)]) -> BTreeMap<CgroupId, i16> {
    entries.iter().map(|(id, score)| (CgroupId(*id), *score)).collect()
}

#[test]
fn only_differences_are_put_in() {
    let (have, want) = (table(&[(1, 5), (2, 6), (3, 7)]), table(&[(2, 6), (3, 8), (4, 9)]));
    let expected = Changes { remove: vec![CgroupId(1)], put: vec![(CgroupId(3), 8), (CgroupId(4), 9)] };
    assert_eq!(diff(&have, &want), expected);
    assert_eq!(diff(&want, &want), Changes { remove: vec![], put: vec![] });
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
        drop(decode(&bytes, true));
    }

    #[test]
    fn a_diff_leads_from_one_to_the_other(
        have in proptest::collection::btree_map(0_u64..20, any::<i16>(), 0..20),
        want in proptest::collection::btree_map(0_u64..20, any::<i16>(), 0..20),
    ) {
        let typed = |table: BTreeMap<u64, i16>| -> BTreeMap<_, _> {
            table.into_iter().map(|(id, score)| (CgroupId(id), score)).collect()
        };
        let (mut have, want) = (typed(have), typed(want));
        let Changes { remove, put } = diff(&have, &want);
        for id in remove {
            prop_assert!(have.remove(&id).is_some());
        }
        have.extend(put);
        prop_assert_eq!(have, want);
    }
}
