//! A recording as a file.
//!
//! ```text
//! header  89 "ENFREC" 0a · version u16 · 0 u16 · shape u32 · program [u8; 32] · crc32 of all before
//! frame   f5 "FRM" · kind u8 · number u32 · length u32 · payload · crc32 of kind to payload
//! ```
//!
//! Numbers are little-endian. Frames count from 0: first the origin, then names, processes and records, at last the end. A
//! frame of records holds each with its length before it, one of processes a reading of them. A reader skips damage up to the next whole frame.

use std::collections::BTreeMap;

use postcard_schema::{Schema, key::hash::fnv1a64::hash_ty_path};
use serde::{Deserialize, Serialize};

use super::{
    codec::{decode, encode, encode_bytes, split_bytes},
    processes::Processes,
    record::Record,
};
use crate::model::CgroupId;

/// The version of the file's outer format; the rest of the header says nothing about it.
pub const FORMAT_VERSION: u16 = 3;

/// The oldest version that is read: it differs in having no processes.
const OLDEST_VERSION: u16 = 2;

/// The longest record that a reader accepts: far more than the readings of all pods that fit on a node.
pub const MOST_RECORD_BYTES: usize = 1 << 22;

const MAGIC: [u8; 8] = *b"\x89ENFREC\n";
const PROGRAM_BYTES: usize = 32;
const HEADER_BYTES: usize = 8 + 2 + 2 + 4 + PROGRAM_BYTES + 4;
const MARK: [u8; 4] = *b"\xf5FRM";
const FRAME_BYTES: usize = 4 + 1 + 4 + 4;
const CRC_BYTES: usize = 4;

/// Frames of records are closed at this size: one flipped bit loses no more than this, unless a record is longer.
const FRAME_TARGET_BYTES: usize = 1024;

const ORIGIN: u8 = 1;
const NAMES: u8 = 2;
const RECORDS: u8 = 3;
const END: u8 = 4;
const PROCESSES: u8 = 5;

/// Where a recording comes from.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Origin {
    /// The node's name.
    pub node: String,
    /// The boot that its times belong to.
    pub boot_id: String,
    /// The hash of the configuration in force when it was written.
    pub config_hash: String,
    /// Both clocks at one moment, in nanoseconds: `CLOCK_BOOTTIME`, and the wall clock since 1970.
    pub boottime_ns: u64,
    /// The wall clock at that moment.
    pub realtime_ns: u64,
    /// The random part of the first eviction's id; each later decision adds one.
    pub seed: u128,
}

impl Origin {
    /// A moment of the recording by the wall clock, in nanoseconds since 1970.
    #[must_use]
    pub fn wall_ns(&self, at_ns: u64) -> u64 {
        self.realtime_ns.saturating_sub(self.boottime_ns).saturating_add(at_ns)
    }
}

/// The pod that a cgroup belongs to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Schema, Serialize)]
pub struct Member {
    /// The pod's cgroup.
    pub cgroup: CgroupId,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its class, as Kubernetes writes it.
    pub qos_class: String,
}

/// Identifies the encoding of all records: with another one not a byte can be decoded.
#[must_use]
pub fn shape() -> u32 {
    let hash = hash_ty_path::<(Record, Origin, Member)>("recording");
    crc32fast::hash(&hash)
}

/// Writes a recording.
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
    frames: u32,
    records: u64,
    pending: Vec<u8>,
}

impl Writer {
    /// Begins a recording.
    #[must_use]
    pub fn new(program: &str, origin: &Origin) -> Self {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&shape().to_le_bytes());
        let mut name = [0; PROGRAM_BYTES];
        for (slot, byte) in name.iter_mut().zip(program.bytes()) {
            *slot = byte;
        }
        out.extend_from_slice(&name);
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        let mut writer = Self { out, frames: 0, records: 0, pending: Vec::new() };
        writer.value(ORIGIN, origin);
        writer
    }

    /// Names the pods of these cgroups.
    pub fn names(&mut self, members: &[Member]) {
        // Frames of names are bounded like those of records.
        for members in members.chunks(64) {
            self.value(NAMES, members);
        }
    }

    /// Adds readings of processes.
    pub fn processes<'a>(&mut self, all: impl IntoIterator<Item = &'a Processes>) {
        for processes in all {
            self.value(PROCESSES, processes);
        }
    }

    /// Adds an encoded record.
    pub fn record(&mut self, bytes: &[u8]) {
        encode_bytes(bytes, &mut self.pending);
        self.records += 1;
        if self.pending.len() >= FRAME_TARGET_BYTES {
            self.flush();
        }
    }

    /// The bytes that are ready to be written.
    #[must_use]
    pub fn written(&self) -> &[u8] {
        &self.out
    }

    /// Takes those bytes; later ones follow them in the file.
    #[must_use]
    pub fn take_written(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Ends the recording, and returns the bytes not taken before.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.flush();
        let records = self.records;
        self.value(END, &records);
        self.out
    }

    fn flush(&mut self) {
        if !self.pending.is_empty() {
            let payload = std::mem::take(&mut self.pending);
            self.frame(RECORDS, &payload);
        }
    }

    fn value(&mut self, kind: u8, value: &(impl Serialize + ?Sized)) {
        let mut payload = Vec::new();
        encode(value, &mut payload);
        self.frame(kind, &payload);
    }

    fn frame(&mut self, kind: u8, payload: &[u8]) {
        self.out.extend_from_slice(&MARK);
        let begin = self.out.len();
        self.out.push(kind);
        self.out.extend_from_slice(&self.frames.to_le_bytes());
        // A payload is a few KiB, or one record that fitted a ring: far below 4 GiB.
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&length.to_le_bytes());
        self.out.extend_from_slice(payload);
        let crc = crc32fast::hash(self.out.get(begin..).unwrap_or_default());
        self.out.extend_from_slice(&crc.to_le_bytes());
        self.frames += 1;
    }
}

/// Why bytes cannot be read as a recording at all.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotARecording {
    /// It does not begin as a recording.
    #[error("it is not a recording of enforcer: its first bytes are not those of one")]
    Magic,
    /// It ends within its header.
    #[error("it ends after {bytes} bytes, within its header: nothing can be read from it")]
    Short {
        /// Its length.
        bytes: usize,
    },
    /// Its header is damaged.
    #[error("its header is damaged (bytes 0 to {}): nothing can be read from it", HEADER_BYTES - 1)]
    Header,
    /// It has another format version.
    #[error(
        "its format is version {found}, written by enforcer {program:?}; this enforcer reads \
         versions {OLDEST_VERSION} to {FORMAT_VERSION}"
    )]
    Version {
        /// The version in the file.
        found: u16,
        /// The program that wrote it.
        program: String,
    },
    /// It has another encoding of the records: the engine that wrote it kept other state.
    #[error(
        "it was written by enforcer {program:?}, whose eviction engine keeps other state than this one: replay it with \
         that version"
    )]
    Shape {
        /// The program that wrote it.
        program: String,
    },
}

/// A damaged or missing part of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damage {
    /// The byte of the file where it begins.
    pub at: usize,
    /// The number of bytes skipped; 0 if something is missing.
    pub bytes: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// The next item of a recording.
#[derive(Clone, Debug)]
pub enum Item<'a> {
    /// A whole record, encoded.
    Record {
        /// The byte of the file where it begins.
        at: usize,
        /// The encoded record.
        bytes: &'a [u8],
    },
    /// Damaged or missing here.
    Damage(Damage),
}

impl Item<'_> {
    /// The record, decoded; `None` if this is damage.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        match self {
            Self::Record { at: _, bytes } => decode(bytes),
            Self::Damage(_) => None,
        }
    }
}

/// A recording that was read.
#[derive(Clone, Debug, Default)]
pub struct Recording<'a> {
    /// The program that wrote it.
    pub program: String,
    /// Where it comes from; `None` if that cannot be read.
    pub origin: Option<Origin>,
    /// The pod of each cgroup.
    pub names: BTreeMap<CgroupId, Member>,
    /// Readings of processes, in order; recordings of older versions have none.
    pub processes: Vec<Processes>,
    /// Its records and damages, in order.
    pub items: Vec<Item<'a>>,
    /// Whether nothing is missing of what was written.
    pub whole: bool,
}

impl<'a> Recording<'a> {
    /// Reads a file's bytes. Whatever they are, each item returned is as it was written; all else is reported as
    /// [`Damage`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, NotARecording> {
        let program = header(bytes)?;
        let mut reader = Reader { bytes, at: HEADER_BYTES, expected: 0, records: 0, ended: false };
        let mut recording = Self { program, ..Self::default() };
        while reader.at < bytes.len() {
            reader.next(&mut recording);
        }
        if !reader.ended {
            reader.damage(&mut recording, 0, "no end: the file is truncated or damaged");
        }
        let whole = recording.damages().next().is_none();
        Ok(Self { whole, ..recording })
    }

    /// All its damages.
    pub fn damages(&self) -> impl Iterator<Item = &Damage> {
        self.items.iter().filter_map(|item| match item {
            Item::Damage(damage) => Some(damage),
            Item::Record { .. } => None,
        })
    }
}

fn header(bytes: &[u8]) -> Result<String, NotARecording> {
    if !bytes.starts_with(MAGIC.get(..bytes.len().min(MAGIC.len())).unwrap_or_default()) {
        return Err(NotARecording::Magic);
    }
    let whole = bytes.first_chunk::<HEADER_BYTES>().ok_or(NotARecording::Short { bytes: bytes.len() })?;
    let (covered, crc) = whole.split_at(HEADER_BYTES - CRC_BYTES);
    if crc32fast::hash(covered).to_le_bytes() != *crc {
        return Err(NotARecording::Header);
    }
    let mut rest = covered.get(MAGIC.len()..).unwrap_or_default();
    let cut = NotARecording::Header;
    let found = u16::from_le_bytes(fixed(&mut rest).ok_or(cut.clone())?);
    let _reserved: [u8; 2] = fixed(&mut rest).ok_or(cut.clone())?;
    let found_shape = u32::from_le_bytes(fixed(&mut rest).ok_or(cut.clone())?);
    let name: [u8; PROGRAM_BYTES] = fixed(&mut rest).ok_or(cut)?;
    let program = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
    if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&found) {
        return Err(NotARecording::Version { found, program });
    }
    if found_shape != shape() {
        return Err(NotARecording::Shape { program });
    }
    Ok(program)
}

/// Takes the first bytes.
fn fixed<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

/// A whole frame.
struct Frame<'a> {
    kind: u8,
    number: u32,
    payload: &'a [u8],
    bytes: usize,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of the next frame.
    expected: u32,
    /// Records seen.
    records: u64,
    ended: bool,
}

impl<'a> Reader<'a> {
    fn next(&mut self, recording: &mut Recording<'a>) {
        let Some(frame) = self.frame(self.at) else {
            let next = self.resume();
            let bytes = next - self.at;
            self.damage(recording, bytes, "no whole frame");
            self.at = next;
            return;
        };
        if frame.number != self.expected {
            self.damage(recording, 0, "frames are missing before this one, or it is out of order");
        }
        self.expected = frame.number.wrapping_add(1);
        if self.ended {
            self.damage(recording, frame.bytes, "a frame after the end");
        } else {
            let payload_at = self.at + FRAME_BYTES;
            self.take(&frame, payload_at, recording);
        }
        self.at += frame.bytes;
    }

    fn take(&mut self, frame: &Frame<'a>, payload_at: usize, recording: &mut Recording<'a>) {
        match frame.kind {
            ORIGIN => match decode(frame.payload) {
                Some(origin) => recording.origin = Some(origin),
                None => self.damage(recording, frame.bytes, "an origin that cannot be decoded"),
            },
            NAMES => match decode::<Vec<Member>>(frame.payload) {
                Some(members) => {
                    recording.names.extend(members.into_iter().map(|member| (member.cgroup, member)));
                }
                None => self.damage(recording, frame.bytes, "names that cannot be decoded"),
            },
            PROCESSES => match decode(frame.payload) {
                Some(processes) => recording.processes.push(processes),
                None => self.damage(recording, frame.bytes, "processes that cannot be decoded"),
            },
            RECORDS => self.records(frame, payload_at, recording),
            END => {
                self.ended = true;
                let all = decode(frame.payload) == Some(self.records);
                if !all && recording.damages().next().is_none() {
                    self.damage(recording, 0, "the number of records is not the written one");
                }
            }
            _ => self.damage(recording, frame.bytes, "a frame of an unknown kind"),
        }
    }

    fn records(&mut self, frame: &Frame<'a>, payload_at: usize, recording: &mut Recording<'a>) {
        let mut left = frame.payload;
        while !left.is_empty() {
            let at = payload_at + (frame.payload.len() - left.len());
            match split_bytes(left) {
                Some((bytes, rest)) if decode::<Record>(bytes).is_some() => {
                    self.records += 1;
                    recording.items.push(Item::Record { at, bytes });
                    left = rest;
                }
                Some(_) | None => {
                    let bytes = payload_at + frame.payload.len() - at;
                    let what = "a record that cannot be decoded, and the rest of its frame";
                    recording.items.push(Item::Damage(Damage { at, bytes, what }));
                    return;
                }
            }
        }
    }

    /// The frame that begins there, if it is whole.
    fn frame(&self, at: usize) -> Option<Frame<'a>> {
        let rest = self.bytes.get(at..)?.strip_prefix(&MARK)?;
        let mut left = rest;
        let [kind] = fixed(&mut left)?;
        let number = u32::from_le_bytes(fixed(&mut left)?);
        let length = usize::try_from(u32::from_le_bytes(fixed(&mut left)?)).ok()?;
        if length > MOST_RECORD_BYTES + FRAME_TARGET_BYTES {
            return None;
        }
        let (payload, mut left) = left.split_at_checked(length)?;
        let covered = rest.get(..FRAME_BYTES - MARK.len() + length)?;
        let crc = u32::from_le_bytes(fixed(&mut left)?);
        (crc32fast::hash(covered) == crc).then_some(Frame {
            kind,
            number,
            payload,
            bytes: FRAME_BYTES + length + CRC_BYTES,
        })
    }

    /// Where the next whole frame begins; the end of the file if there is none.
    fn resume(&self) -> usize {
        let rest = self.bytes.get(self.at + 1..).unwrap_or_default();
        let begins = rest.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
        let mut places = begins.map(|(place, _)| self.at + 1 + place);
        places.find(|place| self.frame(*place).is_some()).unwrap_or(self.bytes.len())
    }

    fn damage(&self, recording: &mut Recording<'a>, bytes: usize, what: &'static str) {
        recording.items.push(Item::Damage(Damage { at: self.at, bytes, what }));
    }
}
