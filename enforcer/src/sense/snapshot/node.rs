//! The machine's part of a snapshot: memory, pressure, zones.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};

use super::{Missing, ReadResult, Slope, Stalls, Zones, stalls};
use crate::sense::{
    Meminfo, MeminfoError, MemoryInfo, NODE_PRESSURE, PROC_MEMINFO, page_bytes, text::read_into,
};

/// Paths of the node's files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodePaths {
    /// The memory summary.
    pub meminfo: PathBuf,
    /// Pressure of memory.
    pub pressure: PathBuf,
    /// The zones.
    pub zoneinfo: PathBuf,
}

impl Default for NodePaths {
    fn default() -> Self {
        Self {
            meminfo: PROC_MEMINFO.into(),
            pressure: NODE_PRESSURE.into(),
            zoneinfo: PathBuf::from("/proc/zoneinfo"),
        }
    }
}

/// A reading of the node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeView {
    /// The memory summary.
    pub memory: ReadResult<MemoryInfo>,
    /// Its memory pressure.
    pub pressure: ReadResult<Stalls>,
    /// The zones with their watermarks. Their buffer is kept if a reading fails.
    pub zones: Zones,
    /// Why there are no zones; `None` if there are.
    pub zones_missing: Option<Missing>,
    /// How fast `MemAvailable` changes, in bytes per second; negative if it falls.
    pub available_slope_bytes_per_second: Option<i64>,
}

impl NodeView {
    pub(super) fn unread() -> Self {
        Self {
            memory: Err(Missing::Unread),
            pressure: Err(Missing::Unread),
            zones: Zones::with_room(),
            zones_missing: Some(Missing::Unread),
            available_slope_bytes_per_second: None,
        }
    }
}

/// The node's open files.
#[derive(Debug)]
pub struct NodeFiles {
    meminfo: Meminfo,
    pressure: Option<OwnedFd>,
    zoneinfo: Option<OwnedFd>,
    page_bytes: u64,
    slope: Slope,
}

impl NodeFiles {
    /// Opens them. The memory summary is required, the others may be missing.
    pub fn open(paths: &NodePaths) -> Result<Self, MeminfoError> {
        Ok(Self {
            meminfo: Meminfo::open(&paths.meminfo)?,
            pressure: open(&paths.pressure),
            zoneinfo: open(&paths.zoneinfo),
            page_bytes: page_bytes(),
            slope: Slope::default(),
        })
    }

    /// Reads the node.
    pub(super) fn look(&mut self, now_ns: u64, buffer: &mut [u8], view: &mut NodeView) {
        view.memory = self.meminfo.read().map_err(|error| match error {
            MeminfoError::Read(errno) => errno.into(),
            MeminfoError::Malformed => Missing::Malformed,
        });
        view.available_slope_bytes_per_second = if let Ok(memory) = view.memory {
            self.slope.observe(now_ns, memory.available_bytes)
        } else {
            self.slope.reset();
            None
        };
        view.pressure = match &self.pressure {
            None => Err(Missing::Absent),
            Some(fd) => read_into(fd, buffer).map_err(Missing::from).and_then(stalls::parse),
        };
        view.zones_missing = match &self.zoneinfo {
            None => Some(Missing::Absent),
            Some(fd) => match read_whole(fd, buffer) {
                Err(missing) => Some(missing),
                Ok(text) => (!view.zones.read(text, self.page_bytes)).then_some(Missing::Malformed),
            },
        };
    }

    /// The available memory, and how fast it changes.
    pub(super) fn available(&mut self, now_ns: u64) -> (Option<u64>, Option<i64>) {
        match self.meminfo.read() {
            Ok(memory) => (Some(memory.available_bytes), self.slope.observe(now_ns, memory.available_bytes)),
            Err(_) => (None, None),
        }
    }

    /// The buffer size for every file: the zones of a machine with many CPUs are by far the longest.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.zoneinfo.as_ref().map_or(LEAST_BUFFER_BYTES, room_for)
    }
}

const LEAST_BUFFER_BYTES: usize = 8 * 1_024;

/// The buffer size for the whole of that file.
pub(in crate::sense) fn room_for(file: &OwnedFd) -> usize {
    let mut room = vec![0; LEAST_BUFFER_BYTES];
    while room.len() < MAX_BUFFER_BYTES && read_whole(file, &mut room) == Err(Missing::Malformed) {
        room.resize(room.len() * 2, 0);
    }
    // It grows a little with the counters.
    if room.len() == LEAST_BUFFER_BYTES { room.len() } else { room.len() + LEAST_BUFFER_BYTES }
}

/// The zones of a machine are not read if their text is longer.
const MAX_BUFFER_BYTES: usize = 1 << 20;

/// Reads a file that the kernel returns in pieces; [`Missing::Malformed`] if it does not fit.
pub(in crate::sense) fn read_whole<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> ReadResult<&'a [u8]> {
    let mut end = 0;
    loop {
        let Some(room) = buffer.get_mut(end..).filter(|room| !room.is_empty()) else {
            return Err(Missing::Malformed);
        };
        let offset = u64::try_from(end).or(Err(Missing::Malformed))?;
        match rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *room, offset))? {
            0 => break,
            count => end += count,
        }
    }
    buffer.get(..end).ok_or(Missing::Malformed)
}

fn open(path: &Path) -> Option<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
