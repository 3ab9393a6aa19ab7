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
        let boot = u64::from(crc32fast::hash(boot_id.as_bytes()));
        let is_ours =
            word(&file, 0).load(Ordering::Acquire) == MAGIC && word(&file, 1).load(Ordering::Relaxed) == boot;
        let left = if is_ours {
            (REFLEX.start..SLOTS).filter_map(|slot| read(&file, slot)).collect()
        } else {
            Vec::new()
        };
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
mod tests {
    use super::*;

    fn value(path: &str) -> Intent<'_> {
        let high = |text| CgroupFile::MemoryHigh.parse(text).unwrap();
        let value = TemporaryValue::new(high("max"), high("1048576")).unwrap();
        Intent::Value { path: path.into(), cgroup: CgroupId(42), value }
    }

    fn cgroup() -> Intent<'static> {
        Intent::Cgroup { path: "/kubepods/podx".into(), mark: "{}".into() }
    }

    fn eviction() -> Intent<'static> {
        Intent::Eviction {
            id: u128::MAX - 1,
            pod: "default/hog".into(),
            uid: "6c1a4e95".into(),
            path: "/kubepods/besteffort/pod6c1a4e95".into(),
            cgroup: CgroupId(7),
            whole: true,
            targets: vec![CgroupId(8), CgroupId(u64::MAX)].into(),
            signal: "pid.available".into(),
            hard: true,
            threshold: 1,
            observed: 2,
            decided_ns: 3,
        }
    }

    #[test]
    fn what_was_held_and_not_released_is_left_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
        assert_eq!(first.left, []);
        let done = first.limits.hold(&value("/a")).unwrap();
        let kept = first.limits.hold(&value("/kubepods/burstable/podx")).unwrap();
        let evicting = first.reflex.hold(&eviction()).unwrap();
        let making = first.making.hold(&cgroup()).unwrap();
        first.limits.release(done);
        assert_ne!(kept, evicting);
        assert_ne!(kept, making);
        // Killed: nothing is released.
        drop(first);
        for _killed_too in 0..2 {
            let second = Intents::open_lasting(dir.path(), "b1").unwrap();
            assert_eq!(second.left, [eviction(), value("/kubepods/burstable/podx"), cgroup()]);
        }
        let mut third = Intents::open_lasting(dir.path(), "b1").unwrap();
        assert_eq!(third.forget_left(None), None);
        assert_eq!(third.left, []);
        drop(third);
        assert_eq!(
            Intents::open_lasting(dir.path(), "b1").unwrap().left,
            [],
            "the next start has taken them over"
        );
    }

    #[test]
    fn on_a_disk_nothing_is_written_and_what_was_left_there_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Intents::open_lasting(dir.path(), "b1").unwrap().reflex.hold(&eviction());
        let on_disk = || Intents::open_where(dir.path(), "b1", |_| Ok(false)).unwrap();
        let mut second = on_disk();
        assert!(!second.lasts);
        assert_eq!(second.left, [eviction()]);
        assert_eq!(second.forget_left(None), None);
        let before = std::fs::read(dir.path().join(FILE)).unwrap();
        let held = second.reflex.hold(&eviction()).unwrap();
        let _held = second.limits.hold(&value("/a")).unwrap();
        second.reflex.release(held);
        drop(second);
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), before);
        assert_eq!(on_disk().left, []);
    }

    #[test]
    fn an_eviction_that_goes_on_stays_on_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
        let _held = [first.reflex.hold(&value("/a")), first.reflex.hold(&eviction())];
        drop(first);
        for _killed_again in 0..2 {
            let mut next = Intents::open_lasting(dir.path(), "b1").unwrap();
            let slot = next.forget_left(Some(&eviction())).unwrap();
            let other = next.reflex.hold(&value("/b")).unwrap();
            assert_ne!(slot, other);
            next.reflex.release(other);
        }
        let mut last = Intents::open_lasting(dir.path(), "b1").unwrap();
        assert_eq!(last.left, [eviction()]);
        let slot = last.forget_left(Some(&eviction())).unwrap();
        last.reflex.release(slot);
        assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
    }

    #[test]
    fn what_lies_in_memory_is_known_from_what_lies_on_a_disk() {
        let in_memory = |path: &str| is_in_memory(&File::open(path).unwrap()).unwrap();
        // No file of /proc is ever on tmpfs; /dev is where the machine has one.
        assert!(!in_memory("/proc/self/stat"));
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_tmpfs = |line: &&str| line.split(' ').nth(1) == Some("/dev/shm") && line.contains(" tmpfs ");
        assert_eq!(in_memory("/dev/shm"), mounts.lines().any(|line| is_tmpfs(&line)));
    }

    #[test]
    fn an_eviction_of_containers_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Intents::open_lasting(dir.path(), "b1").unwrap();
        let mut of_containers = eviction();
        let Intent::Eviction { whole, .. } = &mut of_containers else { panic!() };
        *whole = false;
        let _held = first.reflex.hold(&of_containers).unwrap();
        drop(first);
        assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, [of_containers]);
    }

    /// An upgrade reads what the earlier version left.
    #[test]
    fn a_temporary_value_has_the_text_that_its_file_holds() {
        let mut bytes = [0; PAYLOAD_BYTES];
        let len = encode(&value("/a"), &mut bytes).unwrap();
        let expected = b"\x01\x2a\0\0\0\0\0\0\0\x02\0/a\x0b\0memory.high\x03\0max\x07\x001048576";
        assert_eq!(&bytes[..len], expected);
        assert_eq!(decode(expected), Some(value("/a")));
        let unknown = b"\x01\x2a\0\0\0\0\0\0\0\x02\0/a\x0b\0memory.huge\x03\0max\x07\x001048576";
        assert_eq!(decode(unknown), None, "no version writes this file");
    }

    #[test]
    fn another_boot_left_nothing_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mut before = Intents::open_lasting(dir.path(), "b1").unwrap();
        let _held = before.reflex.hold(&eviction());
        drop(before);
        assert_eq!(Intents::open_lasting(dir.path(), "b2").unwrap().left, []);
    }

    #[test]
    fn no_link_is_followed_to_the_page() {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        std::fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, dir.path().join(FILE)).unwrap();
        assert!(Intents::open_lasting(dir.path(), "b1").is_err());
        assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "theirs");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_a_free_slot_is_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut intents = Intents::open_lasting(dir.path(), "b1").unwrap();
        assert_eq!(intents.reflex.hold(&value(&"x".repeat(PAYLOAD_BYTES))), None);
        let mut held: Vec<Slot> =
            (0..REFLEX.len()).map(|_| intents.reflex.hold(&value("/a")).unwrap()).collect();
        assert_eq!(intents.reflex.hold(&value("/a")), None);
        assert!(intents.limits.hold(&value("/a")).is_some(), "the other's slots are its own");
        intents.reflex.release(held.pop().unwrap());
        assert!(intents.reflex.hold(&value("/b")).is_some());
    }

    #[test]
    fn a_torn_or_foreign_slot_is_no_intent() {
        let dir = tempfile::tempdir().unwrap();
        let mut intents = Intents::open_lasting(dir.path(), "b1").unwrap();
        let Some(Slot(slot)) = intents.reflex.hold(&eviction()) else { panic!() };
        word(&intents.reflex.page, slot * SLOT_WORDS + 3).fetch_xor(1, Ordering::Relaxed);
        drop(intents);
        assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
        std::fs::write(dir.path().join(FILE), vec![0xff; SLOTS * SLOT_WORDS * 8]).unwrap();
        assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
        std::fs::write(dir.path().join(FILE), "short").unwrap();
        assert_eq!(Intents::open_lasting(dir.path(), "b1").unwrap().left, []);
    }
}
