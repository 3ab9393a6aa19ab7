//! The intent page: whatever a slot holds, it is left out or read as an intent that, written down again, is the same.

use std::{
    fs::OpenOptions,
    io::{Seek as _, SeekFrom, Write as _},
};

use enforcer::journal::{Intent, Intents};

use super::scratch::Scratch;

const BOOT_ID: &str = "6c1a4e95-6bb6-4e6c-bc26-28d2444e470d";

/// A slot: eight bytes of checksum and length, and what it says.
const SLOT_BYTES: usize = 1_024;
const SLOTS: usize = 63;

/// The first byte says what the others are: the slots as they stand, or what sound slots say, each with its length in two bytes
/// before it.
pub fn check(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, slots)) => check_slots(slots),
        Some((_, said)) => check_slots(&framed(said)),
        None => {}
    }
}

/// A checksum would keep nearly everything from the reader.
fn framed(mut said: &[u8]) -> Vec<u8> {
    let mut slots = Vec::new();
    while let Some((length, rest)) = said.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len()).min(SLOT_BYTES - 8);
        let (payload, rest) = rest.split_at(length);
        let mut slot = vec![0; SLOT_BYTES];
        let checksum = u64::from(crc32fast::hash(payload));
        let header = checksum << 32 | u64::try_from(length).unwrap_or(0);
        slot[..8].copy_from_slice(&header.to_le_bytes());
        slot[8..8 + length].copy_from_slice(payload);
        slots.extend_from_slice(&slot);
        said = rest;
    }
    slots
}

fn check_slots(slots: &[u8]) {
    let scratch = Scratch::new("intent");
    let open = || {
        let Ok(page) = Intents::open(scratch.path(), BOOT_ID) else { panic!("the page can be mapped") };
        page
    };
    drop(open());
    let slots = &slots[..slots.len().min(SLOTS * SLOT_BYTES)];
    let mut options = OpenOptions::new();
    let written = options.write(true).open(scratch.path().join("intent")).and_then(|mut file| {
        file.seek(SeekFrom::Start(u64::try_from(SLOT_BYTES).unwrap_or(0)))?;
        file.write_all(slots)
    });
    assert!(written.is_ok(), "{written:?}");
    let mut page = open();
    let left: Vec<Intent<'static>> = page.left.clone();
    assert!(left.len() <= SLOTS);
    let _stays = page.forget_left(None);
    for intent in &left {
        // What was read fits where it came from.
        let Some(slot) = page.reflex.hold(intent) else { panic!("{intent:?} cannot be written down") };
        assert_eq!(open().left, std::slice::from_ref(intent));
        page.reflex.release(slot);
        assert_eq!(open().left, []);
    }
}
