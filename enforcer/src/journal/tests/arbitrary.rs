//! Whatever the files hold, the log opens, reports what it cannot read, and continues.

use std::sync::Arc;

use proptest::prelude::*;

use crate::journal::{
    Batch, EventType, Filter, Limits, RawEvent, Subject,
    disk::{self, Opened},
    medium::{Medium, fake::Fake},
    retention::{Clock, Now},
    tests::record,
};

/// A file of the log as it may be found: none, any bytes, or what was written with some of it changed.
#[derive(Clone, Debug)]
enum Content {
    Whole,
    Bytes(Vec<u8>),
    Cut(prop::sample::Index),
    Flipped(Vec<(prop::sample::Index, u8)>),
    Longer(usize, u8),
    Gone,
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        2 => Just(Content::Whole),
        2 => prop::collection::vec(any::<u8>(), 0..600).prop_map(Content::Bytes),
        2 => any::<prop::sample::Index>().prop_map(Content::Cut),
        4 => prop::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..6).prop_map(Content::Flipped),
        2 => (1_usize..5_000, prop_oneof![Just(0), any::<u8>()]).prop_map(|(len, byte)| Content::Longer(len, byte)),
        1 => Just(Content::Gone),
    ]
}

impl Content {
    fn put(&self, fake: &Fake, name: &str) {
        let mut bytes = fake.get(name).unwrap_or_default();
        match self {
            Self::Whole => return,
            Self::Bytes(other) => bytes.clone_from(other),
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Flipped(flips) => {
                for (at, with) in flips {
                    let at = at.index(bytes.len().max(1));
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= with;
                    }
                }
            }
            Self::Longer(len, byte) => bytes.resize(bytes.len() + len, *byte),
            Self::Gone => {
                // It may never have been.
                drop(fake.remove(name));
                return;
            }
        }
        fake.put(name, &bytes);
    }
}

fn open(state: &Fake, run: &Fake, boot_id: &str) -> Opened {
    let (state, run): (Arc<dyn Medium>, Arc<dyn Medium>) = (Arc::new(state.clone()), Arc::new(run.clone()));
    let clock = Clock::new(|| Now { wall_ms: 1, boot_ms: 1 });
    disk::open("n1", boot_id, &state, &run, Limits::default(), clock, 2_000).unwrap()
}

fn sequences(opened: &Opened) -> Vec<u64> {
    let mut reader = opened.journal.reader(None, Filter::default());
    let mut read = Vec::new();
    while let Some(batch) = reader.read() {
        match batch {
            Batch::Records(records) => read.extend(records.iter().map(|record| record.sequence)),
            Batch::Gap { .. } => {}
        }
    }
    read
}

proptest! {
    #[test]
    fn any_bytes_are_opened_and_gone_on_from(
        data in content(),
        index in content(),
        last_data in content(),
        last_index in content(),
        tail in content(),
        clean in content(),
        is_next_boot in any::<bool>(),
    ) {
        let (state, run) = (Fake::new(1), Fake::new(2));
        let mut opened = open(&state, &run, "boot-1");
        opened.store.set_sizes(1_500, u64::MAX);
        for sequence in 1..=9 {
            opened.store.append(&[record(sequence)]).unwrap();
        }
        // In the tail alone.
        let event = || RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data: serde_json::json!({}) };
        drop(opened);
        let opened = open(&state, &run, "boot-1");
        opened.journal.append_raw(event());
        drop(opened);
        let mut names = state.names().unwrap();
        names.retain(|name| name.ends_with("ndjson"));
        let (first, last) = (names[0].clone(), names[names.len() - 1].clone());
        prop_assert_ne!(&first, &last);
        data.put(&state, &first);
        index.put(&state, &first.replace("ndjson", "index"));
        last_data.put(&state, &last);
        last_index.put(&state, &last.replace("ndjson", "index"));
        tail.put(&run, "journal.tail");
        clean.put(&state, "clean");

        let boot_id = if is_next_boot { "boot-2" } else { "boot-1" };
        let mut opened = open(&state, &run, boot_id);
        let before = sequences(&opened);
        prop_assert!(before.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", before);
        let next = opened.store.next();
        prop_assert!(before.iter().all(|sequence| *sequence < next), "{:?} before {}", before, next);
        prop_assert_eq!(opened.journal.append_raw(event()), next);
        opened.store.append(&[record(next)]).unwrap();
        let epoch = opened.store.epoch();
        drop(opened);
        let opened = open(&state, &run, boot_id);
        prop_assert!(sequences(&opened).contains(&next));
        prop_assert_eq!(opened.store.epoch(), epoch, "what was brought in order stays so");
        prop_assert!(opened.recovered.set_aside.is_empty(), "{:?}", opened.recovered);
    }
}
