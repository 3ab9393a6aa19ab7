//! Files that are not what was written: never a panic, never a wrong claim.

use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};

use super::random::{events, file, keep, settings};
use crate::flight::{Account, Item, NotARecording, Recording, replay};

/// A file with keys in it, and several frames.
fn sound() -> Vec<u8> {
    let mut runner = TestRunner::deterministic();
    let (mut all, mut keys) = (Vec::new(), 0);
    while all.iter().map(Vec::len).sum::<usize>() < 5_000 || keys < 3 {
        let first = settings().new_tree(&mut runner).unwrap().current();
        // Each begins with a key.
        all.extend(keep(&first, &events().new_tree(&mut runner).unwrap().current()));
        keys += 1;
    }
    file(&all)
}

fn records(recording: &Recording<'_>) -> Vec<Vec<u8>> {
    let bytes = |item: &Item<'_>| match item {
        Item::Record { at: _, bytes } => Some(bytes.to_vec()),
        Item::Damage(_) => None,
    };
    recording.items.iter().filter_map(bytes).collect()
}

/// Every record that is given out was written, in this order.
fn is_part(part: &[Vec<u8>], whole: &[Vec<u8>]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|record| rest.any(|one| one == record))
}

/// What a damaged file may say: what was written, without what is missing, and that something is.
///
/// Not each is run again as well: that takes minutes.
fn check(bytes: &[u8], written: &[Vec<u8>], sound: &Account, is_replayed: bool) {
    match Recording::read(bytes) {
        Err(
            NotARecording::Magic
            | NotARecording::Short { .. }
            | NotARecording::Header
            | NotARecording::Version { .. }
            | NotARecording::Shape { .. },
        ) => {}
        Ok(recording) => {
            assert!(!recording.whole, "damage that is not reported");
            for damage in recording.damages() {
                assert!(damage.at + damage.bytes <= bytes.len(), "{damage:?}");
            }
            assert!(is_part(&records(&recording), written));
            if is_replayed {
                let account = replay(&recording);
                // Between two engines the sound file itself has a difference at a key, and nowhere else.
                assert!(account.equal <= sound.equal);
            }
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_reported_and_its_beginning_is_used() {
    let whole = sound();
    let recording = Recording::read(&whole).unwrap();
    assert!(recording.whole);
    let (written, account) = (records(&recording), replay(&recording));
    let mut before = 0;
    for end in 0..whole.len() {
        let cut = &whole[..end];
        check(cut, &written, &account, end % 16 == 0);
        if let Ok(part) = Recording::read(cut) {
            let kept = records(&part);
            assert!(written.starts_with(&kept));
            // The longer it is, the more is used.
            assert!(kept.len() >= before);
            before = kept.len();
            let last = part.damages().last().unwrap();
            assert!(last.what.contains("no end"), "{last:?}");
        }
    }
    assert_eq!(before, written.len(), "with all but the end everything is used");
}

#[test]
fn any_flipped_bit_is_reported_and_the_rest_is_used() {
    let whole = sound();
    let recording = Recording::read(&whole).unwrap();
    let (written, account) = (records(&recording), replay(&recording));
    let mut copy = whole.clone();
    // Each byte, with a bit that goes round.
    for place in 0..whole.len() {
        copy[place] ^= 1 << (place % 8);
        check(&copy, &written, &account, place % 16 == 0);
        if let Ok(rest) = Recording::read(&copy) {
            // One frame at the most is lost: it holds 1 KiB, and a record more.
            let lost = written.len() - records(&rest).len();
            let damage = rest.damages().next().unwrap();
            assert!(damage.at <= place || place < damage.at + 200, "{damage:?} for byte {place}");
            assert!(lost < written.len() / 2, "{lost} records are lost with byte {place}");
        }
        copy[place] = whole[place];
    }
}

#[test]
fn frames_that_are_missing_doubled_or_exchanged_are_reported() {
    let whole = sound();
    let recording = Recording::read(&whole).unwrap();
    let (written, account) = (records(&recording), replay(&recording));
    let marks: Vec<_> =
        whole.windows(4).enumerate().filter(|(_, four)| *four == b"\xf5FRM").map(|(at, _)| at).collect();
    assert!(marks.len() > 5, "{marks:?}");
    for pair in marks.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let without = [&whole[..from], &whole[to..]].concat();
        check(&without, &written, &account, true);
        let doubled = [&whole[..to], &whole[from..]].concat();
        assert!(!Recording::read(&doubled).unwrap().whole);
    }
    for three in marks.windows(3) {
        let [from, middle, to] = three else { panic!() };
        let exchanged =
            [&whole[..*from], &whole[*middle..*to], &whole[*from..*middle], &whole[*to..]].concat();
        assert!(!Recording::read(&exchanged).unwrap().whole);
    }
    let behind = [&whole[..], &[0]].concat();
    assert!(!Recording::read(&behind).unwrap().whole);
}

#[test]
fn what_is_no_recording_is_reported_as_what_it_is() {
    let whole = sound();
    assert_eq!(Recording::read(b"{}").unwrap_err(), NotARecording::Magic);
    assert_eq!(Recording::read(b"").unwrap_err(), NotARecording::Short { bytes: 0 });
    assert_eq!(Recording::read(&whole[..20]).unwrap_err(), NotARecording::Short { bytes: 20 });
    let with = |place: usize, byte: u8| {
        let mut other = whole.clone();
        other[place] = byte;
        let crc = crc32fast::hash(&other[..48]).to_le_bytes();
        other[48..52].copy_from_slice(&crc);
        Recording::read(&other).unwrap_err()
    };
    assert_eq!(with(8, 9), NotARecording::Version { found: 9, program: "1.2.3".into() });
    assert_eq!(with(12, !whole[12]), NotARecording::Shape { program: "1.2.3".into() });
}

#[test]
fn the_version_before_is_read_and_older_ones_are_not() {
    let whole = sound();
    let with = |version: u8| {
        let mut other = whole.clone();
        other[8] = version;
        let crc = crc32fast::hash(&other[..48]).to_le_bytes();
        other[48..52].copy_from_slice(&crc);
        Recording::read(&other).map(|recording| (recording.whole, recording.processes.len()))
    };
    assert_eq!(with(2), Ok((true, 0)));
    assert_eq!(with(1), Err(NotARecording::Version { found: 1, program: "1.2.3".into() }));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_reported(bytes: Vec<u8>) {
        prop_assert!(Recording::read(&bytes).is_err());
        let mut begun = sound()[..52].to_vec();
        begun.extend_from_slice(&bytes);
        let recording = Recording::read(&begun).unwrap();
        prop_assert!(!recording.whole && records(&recording).is_empty());
    }
}
