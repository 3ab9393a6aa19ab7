//! The intent page: what the next process must undo or take over if this one dies, written before it is done.
//!
//! A preallocated, locked, shared mapping on tmpfs. If the run directory is on a disk, the page is private memory of
//! this process. Writing to it is a copy in memory without a disk, a system call or a lock, so the reflex can do it
//! between the decision and the signal. Each user has its own slots.

use std::{
    borrow::Cow,
    fmt,
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    model::{CgroupFile, CgroupId, TemporaryValue},
    raw::SharedWords,
};

/// The page's name in the run directory.
const FILE: &str = "intent";

/// The format's magic number. The last byte is the version.
const MAGIC: u64 = u64::from_le_bytes(*b"enfint\0\x02");

/// Words in a slot: a header and the payload.
const SLOT_WORDS: usize = 128;
const PAYLOAD_BYTES: usize = (SLOT_WORDS - 1) * 8;

/// The slots of the reflex, of its brakes, and of the reconciler: for limits that it lowers, and for the cgroup that it
/// creates. Slot 0 is the page's own header.
const REFLEX: Range<usize> = 1..15;
const BRAKES: Range<usize> = 15..17;
const LIMITS: Range<usize> = 17..63;
const MAKING: Range<usize> = 63..64;
const SLOTS: usize = MAKING.end;

/// The most cgroups of a victim that are written besides its own.
pub const MOST_TARGETS: usize = 16;

/// An action that is about to be done, and that must not be forgotten.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Intent<'a> {
    /// A cgroup's file temporarily holds another value; the original one must be restored.
    Value {
        /// The cgroup's path.
        path: Cow<'a, str>,
        /// Its id. Another cgroup at this path must not be changed.
        cgroup: CgroupId,
        /// The file's two values.
        value: TemporaryValue,
    },
    /// A cgroup is being created and does not have its owner's mark yet.
    Cgroup {
        /// Its path.
        path: Cow<'a, str>,
        /// The mark that it gets, as it is written to the cgroup.
        mark: Cow<'a, str>,
    },
    /// A pod is being evicted.
    Eviction {
        /// The eviction's id, as in events.
        id: u128,
        /// The victim's namespace and name.
        pod: Cow<'a, str>,
        /// Its uid.
        uid: Cow<'a, str>,
        /// Its cgroup's path.
        path: Cow<'a, str>,
        /// Its cgroup's id.
        cgroup: CgroupId,
        /// Whether its own cgroup is killed with all in it. Otherwise only its containers are: other processes in its
        /// own cgroup, such as a sandbox, say nothing about them.
        whole: bool,
        /// The ids of the other cgroups that are killed, at most the first [`MOST_TARGETS`]: those that its containers
        /// use elsewhere, or those of all its containers if it is not killed as a whole.
        targets: Cow<'a, [CgroupId]>,
        /// The signal whose threshold was met, as in events.
        signal: Cow<'a, str>,
        /// Whether the threshold is a hard one.
        hard: bool,
        /// The threshold in the resource's base unit: bytes, or process ids.
        threshold: u64,
        /// How much of the resource was available.
        observed: u64,
        /// When it was decided, in nanoseconds of `CLOCK_BOOTTIME`.
        decided_ns: u64,
    },
}

/// The page could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot map the intent page {path}")]
pub struct IntentError {
    path: String,
    #[source]
    source: io::Error,
}

/// The open page.
#[derive(Debug)]
pub struct Intents {
    /// The slots of the reflex.
    pub reflex: Slots,
    /// The slots of the brakes, which throttle candidates.
    pub brakes: Slots,
    /// The slots of the reconciler's limits.
    pub limits: Slots,
    /// The slot of the cgroup that the reconciler creates.
    pub making: Slots,
    /// What an earlier process of this boot left undone.
    pub left: Vec<Intent<'static>>,
    /// Whether intents outlive this process. They do not if the run directory is on a disk.
    pub lasts: bool,
    /// The file that holds what an earlier process left.
    file: Arc<SharedWords>,
}

/// Some of the page's slots, with one owner.
#[derive(Debug)]
pub struct Slots {
    page: Arc<SharedWords>,
    range: Range<usize>,
    /// One bit for each slot of the range.
    used: u64,
}

/// A slot that holds an intent until it is released.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "an intent that is never released is undone by the next start"]
pub struct Slot(usize);

impl Intents {
    /// Opens the page in the run directory, creates it if it does not exist, and reads what was left in it.
    ///
    /// What was left stays until it is [forgotten](Self::forget_left): the process that takes it over may be killed
    /// too.
    ///
    /// What another boot left is not read: its cgroups are gone.
    pub fn open(run_dir: &Path, boot_id: &str) -> Result<Self, IntentError> {
        Self::open_where(run_dir, boot_id, is_in_memory)
    }

    /// Reads what an earlier process of this boot left, and changes nothing.
    pub fn look(run_dir: &Path, boot_id: &str) -> Result<Vec<Intent<'static>>, IntentError> {
        let path = run_dir.join(FILE);
        let failed = |source| IntentError { path: path.display().to_string(), source };
        // Mapping it needs the right to write.
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let bytes = u64::try_from(SLOTS * SLOT_WORDS * 8).map_err(io::Error::other).map_err(failed)?;
        // A page of another size says nothing.
        if file.metadata().map_err(failed)?.len() != bytes {
            return Ok(Vec::new());
        }
        let page = SharedWords::map(&file, SLOTS * SLOT_WORDS).map_err(failed)?;
        let left = if is_of(&page, boot(boot_id)) { left(&page) } else { Vec::new() };
        Ok(left)
    }

    /// Like [`Self::open`], but treats any folder as being in memory.
    #[cfg(test)]
    pub(crate) fn open_lasting(run_dir: &Path, boot_id: &str) -> Result<Self, IntentError> {
        Self::open_where(run_dir, boot_id, |_| Ok(true))
    }

    fn open_where(
        run_dir: &Path,
        boot_id: &str,
        is_in_memory: impl FnOnce(&File) -> io::Result<bool>,
    ) -> Result<Self, IntentError> {
        let path = run_dir.join(FILE);
        let failed = |source| IntentError { path: path.display().to_string(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // Never follow a link: this process may write everywhere.
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed)?;
        let lasts = is_in_memory(&file).map_err(failed)?;
        Self::on(&file, lasts, boot_id).map_err(failed)
    }

    /// Puts the page on the file if that is in memory. A store to a mapping of a file on a disk may wait for the disk,
    /// and an eviction must not. In that case the page is in private memory.
    fn on(file: &File, lasts: bool, boot_id: &str) -> io::Result<Self> {
        let file = Arc::new(map(file)?);
        let boot = boot(boot_id);
        let is_ours = is_of(&file, boot);
        let left = if is_ours { left(&file) } else { Vec::new() };
        if !is_ours {
            clear(&file, None);
        }
        let page =
            if lasts { Arc::clone(&file) } else { Arc::new(SharedWords::anonymous(SLOTS * SLOT_WORDS)?) };
        word(&page, 1).store(boot, Ordering::Relaxed);
        word(&page, 0).store(MAGIC, Ordering::Release);
        let slots = |range| Slots { page: Arc::clone(&page), range, used: 0 };
        Ok(Self {
            reflex: slots(REFLEX),
            brakes: slots(BRAKES),
            limits: slots(LIMITS),
            making: slots(MAKING),
            left,
            lasts,
            file,
        })
    }

    /// Removes what was left from the page, once it is taken over. An eviction that goes on stays on the page, in the slot
    /// that is returned. Call it before anything is held.
    pub fn forget_left(&mut self, going_on: Option<&Intent<'_>>) -> Option<Slot> {
        self.left.clear();
        let is_it = |slot: &usize| going_on.is_some() && read(&self.file, *slot).as_ref() == going_on;
        // Without a gap: this process may be killed at any moment.
        let stays = self.reflex.range.clone().find(is_it).filter(|_| self.lasts);
        clear(&self.file, stays);
        match stays {
            Some(slot) => {
                self.reflex.used |= 1 << (slot - self.reflex.range.start);
                Some(Slot(slot))
            }
            None => going_on.and_then(|going_on| self.reflex.hold(going_on)),
        }
    }
}

/// The number by which a page names its boot.
fn boot(boot_id: &str) -> u64 {
    u64::from(crc32fast::hash(boot_id.as_bytes()))
}

/// Whether a page is of this format and that boot.
fn is_of(page: &SharedWords, boot: u64) -> bool {
    word(page, 0).load(Ordering::Acquire) == MAGIC && word(page, 1).load(Ordering::Relaxed) == boot
}

/// What is in a page's slots.
fn left(page: &SharedWords) -> Vec<Intent<'static>> {
    (REFLEX.start..SLOTS).filter_map(|slot| read(page, slot)).collect()
}

/// Clears all slots, but for one that stays.
fn clear(page: &SharedWords, stays: Option<usize>) {
    for slot in (REFLEX.start..SLOTS).filter(|slot| Some(*slot) != stays) {
        word(page, slot * SLOT_WORDS).store(0, Ordering::Release);
    }
}

impl Slots {
    /// Writes an intent. Returns `None` if no slot is free or the intent is too long. The action must not be done then.
    pub fn hold(&mut self, intent: &Intent<'_>) -> Option<Slot> {
        let free = (0..self.range.len()).find(|place| self.used & (1 << place) == 0)?;
        let mut bytes = [0; PAYLOAD_BYTES];
        let len = encode(intent, &mut bytes)?;
        let slot = self.range.start + free;
        let first = slot * SLOT_WORDS;
        for (place, chunk) in bytes.chunks_exact(8).take(len.div_ceil(8)).enumerate() {
            let value = chunk.try_into().map_or(0, u64::from_le_bytes);
            word(&self.page, first + 1 + place).store(value, Ordering::Relaxed);
        }
        let crc = crc32fast::hash(bytes.get(..len)?);
        let header = u64::from(crc) << 32 | u64::try_from(len).ok()?;
        // The header goes last: a slot with a header has its payload.
        word(&self.page, first).store(header, Ordering::Release);
        self.used |= 1 << free;
        Some(Slot(slot))
    }

    /// Releases a slot: its intent is done, or undone.
    #[expect(clippy::needless_pass_by_value, reason = "a slot is released once")]
    pub fn release(&mut self, slot: Slot) {
        word(&self.page, slot.0 * SLOT_WORDS).store(0, Ordering::Release);
        self.used &= !(1 << (slot.0 - self.range.start));
    }
}

fn map(file: &File) -> io::Result<SharedWords> {
    let bytes = u64::try_from(SLOTS * SLOT_WORDS * 8).map_err(io::Error::other)?;
    if file.metadata()?.len() != bytes {
        file.set_len(0)?;
        file.set_len(bytes)?;
    }
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    SharedWords::map(file, SLOTS * SLOT_WORDS)
}

/// Whether a file is on tmpfs or ramfs, which are never written to a disk.
fn is_in_memory(file: &File) -> io::Result<bool> {
    /// `include/uapi/linux/magic.h`.
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let kind = rustix::fs::fstatfs(file)?.f_type;
    Ok([RAMFS_MAGIC, TMPFS_MAGIC].iter().any(|memory| u64::try_from(kind) == Ok(*memory)))
}

fn word(page: &SharedWords, index: usize) -> &AtomicU64 {
    page.word(index)
}

fn read(page: &SharedWords, slot: usize) -> Option<Intent<'static>> {
    let first = slot * SLOT_WORDS;
    let header = word(page, first).load(Ordering::Acquire);
    let len =
        usize::try_from(header & u64::from(u32::MAX)).ok().filter(|len| (1..=PAYLOAD_BYTES).contains(len))?;
    let mut bytes = Vec::with_capacity(PAYLOAD_BYTES);
    for place in 0..len.div_ceil(8) {
        bytes.extend_from_slice(&word(page, first + 1 + place).load(Ordering::Relaxed).to_le_bytes());
    }
    let bytes = bytes.get(..len)?;
    if u64::from(crc32fast::hash(bytes)) != header >> 32 {
        return None;
    }
    decode(bytes)
}

const VALUE: u8 = 1;
const CGROUP: u8 = 3;
const EVICTION: u8 = 4;
const EVICTION_OF_CONTAINERS: u8 = 5;

/// Writes to a buffer until it is full.
struct Encoder<'a> {
    bytes: &'a mut [u8],
    len: usize,
}

impl Encoder<'_> {
    fn put(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len.checked_add(part.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(part);
        self.len = end;
        Some(())
    }

    fn number(&mut self, number: u64) -> Option<()> {
        self.put(&number.to_le_bytes())
    }

    fn text(&mut self, text: &str) -> Option<()> {
        self.put(&u16::try_from(text.len()).ok()?.to_le_bytes())?;
        self.put(text.as_bytes())
    }

    /// A value as text. Does not allocate.
    fn shown(&mut self, value: impl fmt::Display) -> Option<()> {
        let start = self.len;
        self.put(&[0; 2])?;
        fmt::Write::write_fmt(self, format_args!("{value}")).ok()?;
        let length = u16::try_from(self.len - start - 2).ok()?;
        self.bytes.get_mut(start..start + 2)?.copy_from_slice(&length.to_le_bytes());
        Some(())
    }
}

impl fmt::Write for Encoder<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.put(part.as_bytes()).ok_or(fmt::Error)
    }
}

fn encode(intent: &Intent<'_>, bytes: &mut [u8]) -> Option<usize> {
    let mut to = Encoder { bytes, len: 0 };
    match intent {
        Intent::Value { path, cgroup, value } => {
            to.put(&[VALUE])?;
            to.number(cgroup.0)?;
            to.text(path)?;
            to.text(&value.file().name())?;
            to.shown(value.original())?;
            to.shown(value.temporary())?;
        }
        Intent::Cgroup { path, mark } => {
            to.put(&[CGROUP])?;
            to.text(path)?;
            to.text(mark)?;
        }
        Intent::Eviction {
            id,
            pod,
            uid,
            path,
            cgroup,
            whole,
            targets,
            signal,
            hard,
            threshold,
            observed,
            decided_ns,
        } => {
            let kind = if *whole { EVICTION } else { EVICTION_OF_CONTAINERS };
            to.put(&[kind, u8::from(*hard)])?;
            to.put(&id.to_le_bytes())?;
            for number in [cgroup.0, *threshold, *observed, *decided_ns] {
                to.number(number)?;
            }
            for text in [signal, pod, uid, path] {
                to.text(text)?;
            }
            let written = targets.get(..MOST_TARGETS).unwrap_or(targets);
            to.put(&[u8::try_from(written.len()).ok()?])?;
            for cgroup in written {
                to.number(cgroup.0)?;
            }
        }
    }
    Some(to.len)
}

/// Reads from a buffer until it is empty.
struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn targets(&mut self) -> Option<Cow<'static, [CgroupId]>> {
        let [count] = self.array()?;
        // No slot is written with more than that.
        let count = Some(count).filter(|count| usize::from(*count) <= MOST_TARGETS)?;
        (0..count).map(|_| self.number().map(CgroupId)).collect()
    }

    fn text(&mut self) -> Option<Cow<'static, str>> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(Cow::Owned(String::from_utf8(text.to_vec()).ok()?))
    }
}

fn decode(bytes: &[u8]) -> Option<Intent<'static>> {
    let mut from = Decoder(bytes);
    let intent = match from.array()? {
        [VALUE] => {
            let cgroup = CgroupId(from.number()?);
            let path = from.text()?;
            let file = CgroupFile::named(&from.text()?)?;
            let (original, temporary) = (file.parse(&from.text()?)?, file.parse(&from.text()?)?);
            Intent::Value { path, cgroup, value: TemporaryValue::new(original, temporary)? }
        }
        [kind @ (EVICTION | EVICTION_OF_CONTAINERS)] => Intent::Eviction {
            whole: kind == EVICTION,
            hard: from.array()? == [1],
            id: from.array().map(u128::from_le_bytes)?,
            cgroup: CgroupId(from.number()?),
            threshold: from.number()?,
            observed: from.number()?,
            decided_ns: from.number()?,
            signal: from.text()?,
            pod: from.text()?,
            uid: from.text()?,
            path: from.text()?,
            targets: from.targets()?,
        },
        [CGROUP] => Intent::Cgroup { path: from.text()?, mark: from.text()? },
        _ => return None,
    };
    from.0.is_empty().then_some(intent)
}

#[cfg(test)]
mod tests;
