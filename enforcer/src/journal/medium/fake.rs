//! A disk in memory from which the power can be taken, and a process that is killed in the middle of a call.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use super::*;

/// What reaches the disk as a whole or not at all.
const SECTOR: usize = 512;

/// Numbers that are the same for the same seed.
#[derive(Clone, Debug)]
pub(in crate::journal) struct Chance(u64);

impl Chance {
    pub(in crate::journal) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(in crate::journal) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(in crate::journal) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub(in crate::journal) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Default)]
struct Inode {
    /// What processes see.
    live: Vec<u8>,
    /// What the disk holds.
    disk: Vec<u8>,
    /// Sectors that the disk has not got yet.
    dirty: BTreeSet<usize>,
    locked: bool,
}

#[derive(Clone, Debug)]
enum NameOp {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

#[derive(Debug)]
struct State {
    inodes: Vec<Inode>,
    live: BTreeMap<String, usize>,
    disk: BTreeMap<String, usize>,
    /// Changes of names that the disk has not got yet.
    name_ops: Vec<NameOp>,
    chance: Chance,
    /// So many calls are done before the process ends in one.
    fuse: Option<u64>,
    /// Of the process, which may have other folders.
    dead: Arc<AtomicBool>,
    /// Nothing more can be written.
    full: bool,
    /// It is mounted read-only.
    read_only: bool,
    /// Of a hundred syncs, so many fail, and what they should have written is forgotten to be unwritten.
    sync_fails_percent: u64,
    /// So many calls were made.
    calls: u64,
}

/// The folder; clones are the same.
#[derive(Clone, Debug)]
pub(in crate::journal) struct Fake(Arc<Mutex<State>>);

#[derive(Debug)]
struct FakeFile {
    fake: Fake,
    inode: usize,
    locks: bool,
    /// Opened for reading alone.
    reads_only: bool,
}

fn gone() -> io::Error {
    io::Error::other("the process has ended")
}

impl Fake {
    pub(in crate::journal) fn new(seed: u64) -> Self {
        Self::of(Arc::default(), seed)
    }

    /// Another folder of the same process.
    pub(in crate::journal) fn beside(&self, seed: u64) -> Self {
        Self::of(Arc::clone(&self.state().dead), seed)
    }

    fn of(dead: Arc<AtomicBool>, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            inodes: Vec::new(),
            live: BTreeMap::new(),
            disk: BTreeMap::new(),
            name_ops: Vec::new(),
            chance: Chance::new(seed),
            fuse: None,
            dead,
            full: false,
            read_only: false,
            sync_fails_percent: 0,
            calls: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The process ends in the call after so many; what it was before.
    pub(in crate::journal) fn arm(&self, calls: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.state().fuse, calls)
    }

    pub(in crate::journal) fn is_dead(&self) -> bool {
        self.state().is_dead()
    }

    pub(in crate::journal) fn kill(&self) {
        self.state().die();
    }

    pub(in crate::journal) fn set_full(&self, full: bool) {
        self.state().full = full;
    }

    /// It is mounted anew; what was opened for reading alone stays so.
    pub(in crate::journal) fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    pub(in crate::journal) fn set_sync_fails(&self, percent: u64) {
        self.state().sync_fails_percent = percent;
    }

    pub(in crate::journal) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// The next process starts: what the last one wrote is there, and its locks are not.
    pub(in crate::journal) fn revive(&self) {
        let mut state = self.state();
        state.dead.store(false, Ordering::Relaxed);
        state.fuse = None;
        for inode in &mut state.inodes {
            inode.locked = false;
        }
    }

    /// The kernel writes some of what is dirty, in an order of its own.
    pub(in crate::journal) fn write_back(&self) {
        let mut state = self.state();
        let State { inodes, chance, .. } = &mut *state;
        for inode in inodes {
            let some: Vec<_> = inode.dirty.iter().copied().filter(|_| chance.percent(30)).collect();
            for sector in some {
                inode.store(sector);
                inode.dirty.remove(&sector);
            }
        }
    }

    /// The power fails: of what was not synced, anything may be there or not.
    pub(in crate::journal) fn cut(&self) {
        let mut state = self.state();
        let State { inodes, chance, name_ops, disk, live, .. } = &mut *state;
        for op in std::mem::take(name_ops) {
            if chance.percent(50) {
                apply(disk, op);
            }
        }
        for inode in inodes.iter_mut() {
            for sector in std::mem::take(&mut inode.dirty) {
                if chance.percent(50) {
                    inode.store(sector);
                }
            }
            // The length may be there before what it is the length of.
            if inode.live.len() > inode.disk.len() && chance.percent(30) {
                inode.disk.resize(inode.live.len(), 0);
            }
            inode.live.clone_from(&inode.disk);
        }
        live.clone_from(disk);
    }

    /// A folder on tmpfs after a reboot.
    pub(in crate::journal) fn wipe(&self) {
        let mut state = self.state();
        state.live.clear();
        state.disk.clear();
        state.name_ops.clear();
    }

    pub(in crate::journal) fn put(&self, name: &str, bytes: &[u8]) {
        let file = self.open(name, Access::Make).unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(bytes, 0).unwrap();
    }

    pub(in crate::journal) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.live.get(name)?;
        Some(state.inodes[*inode].live.clone())
    }

    fn call(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        if state.is_dead() {
            return Err(gone());
        }
        state.calls += 1;
        match &mut state.fuse {
            Some(0) => {
                state.die();
                Err(gone())
            }
            Some(left) => {
                *left -= 1;
                Ok(state)
            }
            None => Ok(state),
        }
    }

    /// Whether names can be changed.
    fn writable(state: &State) -> io::Result<()> {
        if state.read_only { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    fn room(state: &State) -> io::Result<()> {
        if state.full { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }
}

impl State {
    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    fn die(&mut self) {
        self.dead.store(true, Ordering::Relaxed);
        self.fuse = None;
    }
}

fn apply(names: &mut BTreeMap<String, usize>, op: NameOp) {
    match op {
        NameOp::Link(name, inode) => {
            names.insert(name, inode);
        }
        NameOp::Unlink(name) => {
            names.remove(&name);
        }
        NameOp::Rename(from, to) => {
            if let Some(inode) = names.remove(&from) {
                names.insert(to, inode);
            }
        }
    }
}

impl Inode {
    /// One sector reaches the disk.
    fn store(&mut self, sector: usize) {
        let start = sector * SECTOR;
        let end = (start + SECTOR).min(self.live.len());
        if start < end {
            if self.disk.len() < end {
                self.disk.resize(end, 0);
            }
            self.disk[start..end].copy_from_slice(&self.live[start..end]);
        }
    }

    fn write(&mut self, bytes: &[u8], offset: usize) {
        let end = offset + bytes.len();
        let old = self.live.len();
        if old < end {
            self.live.resize(end, 0);
            self.dirty.extend(old / SECTOR..end.div_ceil(SECTOR));
        }
        self.live[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / SECTOR..end.div_ceil(SECTOR));
    }
}

impl Medium for Fake {
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/fake").join(name)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn MediumFile>> {
        let mut state = self.call()?;
        let reads_only = matches!(access, Access::Read);
        if state.read_only && !reads_only {
            return Err(Errno::ROFS.into());
        }
        let found = state.live.get(name).copied();
        let inode = match (found, access) {
            (Some(_), Access::New) => return Err(Errno::EXIST.into()),
            (Some(inode), _) => inode,
            (None, Access::Read | Access::Write) => return Err(Errno::NOENT.into()),
            (None, Access::Make | Access::New) => {
                Self::room(&state)?;
                let inode = state.inodes.len();
                state.inodes.push(Inode::default());
                let op = NameOp::Link(name.to_owned(), inode);
                apply(&mut state.live, op.clone());
                state.name_ops.push(op);
                inode
            }
        };
        Ok(Box::new(FakeFile { fake: self.clone(), inode, locks: false, reads_only }))
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn MediumFile>> {
        drop(self.open(name, Access::Make)?);
        let mut state = self.call()?;
        let inode = state.live[name];
        if std::mem::replace(&mut state.inodes[inode].locked, true) {
            return Err(Errno::WOULDBLOCK.into());
        }
        Ok(Box::new(FakeFile { fake: self.clone(), inode, locks: true, reads_only: false }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.call()?.live.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.call()?;
        Self::writable(&state)?;
        if !state.live.contains_key(from) {
            return Err(Errno::NOENT.into());
        }
        if state.live.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        let op = NameOp::Rename(from.to_owned(), to.to_owned());
        apply(&mut state.live, op.clone());
        state.name_ops.push(op);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.call()?;
        Self::writable(&state)?;
        if !state.live.contains_key(name) {
            return Err(Errno::NOENT.into());
        }
        let op = NameOp::Unlink(name.to_owned());
        apply(&mut state.live, op.clone());
        state.name_ops.push(op);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.call()?;
        let percent = state.sync_fails_percent;
        if state.chance.percent(percent) {
            return Err(Errno::IO.into());
        }
        let State { disk, name_ops, .. } = &mut *state;
        for op in std::mem::take(name_ops) {
            apply(disk, op);
        }
        Ok(())
    }
}

impl Drop for FakeFile {
    fn drop(&mut self) {
        // The kernel closes the files of a process that has ended, when it starts anew here.
        let mut state = self.fake.state();
        if self.locks && !state.is_dead() {
            state.inodes[self.inode].locked = false;
        }
    }
}

impl FakeFile {
    fn for_writing(&self) -> io::Result<()> {
        if self.reads_only { Err(Errno::BADF.into()) } else { Ok(()) }
    }
}

impl MediumFile for FakeFile {
    fn size(&self) -> io::Result<u64> {
        let state = self.fake.call()?;
        Ok(u64::try_from(state.inodes[self.inode].live.len()).unwrap())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.fake.call()?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let end = offset.checked_add(bytes.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let read = state.inodes[self.inode].live.get(offset..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(read);
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.for_writing()?;
        let offset = usize::try_from(offset).unwrap();
        {
            let mut state = self.fake.state();
            if !state.is_dead() && state.fuse == Some(0) {
                // The kill comes in the middle: some whole pages are written.
                state.die();
                let pages = u64::try_from(bytes.len() / 4_096).unwrap();
                let whole = usize::try_from(state.chance.below(pages + 1)).unwrap() * 4_096;
                state.inodes[self.inode].write(&bytes[..whole], offset);
                return Err(gone());
            }
        }
        let mut state = self.fake.call()?;
        if state.full {
            // What is there already can be written over; of the rest, some may find room.
            let len = state.inodes[self.inode].live.len();
            if offset + bytes.len() > len {
                let bound = u64::try_from(bytes.len()).unwrap();
                let some = usize::try_from(state.chance.below(bound)).unwrap();
                state.inodes[self.inode].write(&bytes[..some], offset);
                return Err(Errno::NOSPC.into());
            }
        }
        state.inodes[self.inode].write(bytes, offset);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.for_writing()?;
        let mut state = self.fake.call()?;
        let len = usize::try_from(len).unwrap();
        let inode = &mut state.inodes[self.inode];
        let old = inode.live.len();
        inode.live.resize(len, 0);
        inode.dirty.extend(old.min(len) / SECTOR..old.max(len).div_ceil(SECTOR));
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let size = self.size()?;
        if size < len { self.set_len(len) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.fake.call()?;
        let percent = state.sync_fails_percent;
        let fails = state.chance.percent(percent);
        let State { inodes, chance, .. } = &mut *state;
        let inode = &mut inodes[self.inode];
        let dirty = std::mem::take(&mut inode.dirty);
        for sector in dirty {
            if !fails || chance.percent(50) {
                inode.store(sector);
            }
        }
        if fails {
            return Err(Errno::IO.into());
        }
        // A length that shrank.
        let len = inode.live.len();
        inode.disk.resize(len, 0);
        Ok(())
    }
}
