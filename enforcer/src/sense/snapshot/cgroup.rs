//! One cgroup's part of a snapshot: charge, swap, events, pressure, growth.

use std::os::fd::OwnedFd;

use super::{ChargeFiles, Missing, ReadResult, Slope, Split, Stalls, stalls};
use crate::{
    cgroup::{self, CgroupDir},
    model::CgroupId,
    sense::text::{keyed, number, read_into},
};

/// A watched cgroup, with its open counter files.
#[derive(Debug)]
pub struct Guarded {
    id: CgroupId,
    request_bytes: u64,
    charge: ChargeFiles,
    swap: Option<OwnedFd>,
    events: Option<OwnedFd>,
    pressure: Option<OwnedFd>,
    slope: Slope,
}

/// A reading of a cgroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CgroupView {
    /// The cgroup's id.
    pub id: CgroupId,
    /// Its memory request, in bytes.
    pub request_bytes: u64,
    /// Its charge, in bytes.
    pub current_bytes: ReadResult<u64>,
    /// The parts of the charge; [`Missing::Unread`] if it is within the request and so of no concern.
    pub split: ReadResult<Split>,
    /// Its swapped-out memory, in bytes.
    pub swap_bytes: ReadResult<u64>,
    /// Events of it and the cgroups below.
    pub events: ReadResult<EventCounts>,
    /// Its memory pressure.
    pub pressure: ReadResult<Stalls>,
    /// How fast it grows; `None` at the start and after a gap.
    pub growth_bytes_per_second: Option<i64>,
}

/// The counters of `memory.events`, of the cgroup and all below it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EventCounts {
    /// Times that it was reclaimed from although below `memory.low`.
    pub low: u64,
    /// Times that it was above `memory.high`.
    pub high: u64,
    /// Times that it was about to go above `memory.max`.
    pub max: u64,
    /// Times that its limit could not be kept: not a count of kills.
    pub oom: u64,
    /// Processes that the kernel killed.
    pub oom_kill: u64,
    /// Times that it was killed as a whole; 0 before Linux 5.17.
    pub oom_group_kill: u64,
}

impl Guarded {
    /// Opens the files of a cgroup; those that the kernel lacks are left out.
    pub fn open(dir: &CgroupDir, request_bytes: u64) -> Result<Self, cgroup::Error> {
        let optional = |file: &str| match dir.open_read(file) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        };
        Ok(Self {
            id: dir.id(),
            request_bytes,
            charge: ChargeFiles::open(dir)?,
            swap: optional("memory.swap.current")?,
            events: optional("memory.events")?,
            pressure: optional("memory.pressure")?,
            slope: Slope::default(),
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// Takes over the growth of the same cgroup: reopening its files does not reset it.
    pub(super) fn inherit(&mut self, before: &Self) {
        self.slope = before.slope;
    }

    /// Reads it; swap only if `has_swap`. A removed cgroup costs one system call.
    pub(super) fn look(&mut self, now_ns: u64, has_swap: bool, buffer: &mut [u8]) -> CgroupView {
        let current_bytes = self.charge.current_bytes(buffer);
        let mut view = CgroupView::unread(self.id, self.request_bytes);
        view.current_bytes = current_bytes;
        let bytes = match current_bytes {
            Ok(bytes) => bytes,
            Err(missing) => {
                self.slope.reset();
                if missing == Missing::Gone {
                    view.split = Err(missing);
                    view.swap_bytes = Err(missing);
                    view.events = Err(missing);
                    view.pressure = Err(missing);
                    return view;
                }
                u64::MAX
            }
        };
        if current_bytes.is_ok() {
            view.growth_bytes_per_second = self.slope.observe(now_ns, bytes);
        }
        // An unknown charge counts as above the request.
        if bytes > self.request_bytes {
            view.split = self.charge.split(buffer);
        }
        if has_swap {
            view.swap_bytes = read(self.swap.as_ref(), buffer, number);
        }
        view.events = read(self.events.as_ref(), buffer, counts);
        view.pressure = match &self.pressure {
            None => Err(Missing::Absent),
            Some(fd) => read_into(fd, buffer).map_err(Missing::from).and_then(stalls::parse),
        };
        view
    }
}

impl CgroupView {
    fn unread(id: CgroupId, request_bytes: u64) -> Self {
        Self {
            id,
            request_bytes,
            current_bytes: Err(Missing::Unread),
            split: Err(Missing::Unread),
            swap_bytes: Err(Missing::Unread),
            events: Err(Missing::Unread),
            pressure: Err(Missing::Unread),
            growth_bytes_per_second: None,
        }
    }
}

fn read<T>(fd: Option<&OwnedFd>, buffer: &mut [u8], parse: impl FnOnce(&[u8]) -> Option<T>) -> ReadResult<T> {
    let text = read_into(fd.ok_or(Missing::Absent)?, buffer)?;
    parse(text).ok_or(Missing::Malformed)
}

fn counts(text: &[u8]) -> Option<EventCounts> {
    Some(EventCounts {
        low: keyed(text, b"low")?,
        high: keyed(text, b"high")?,
        max: keyed(text, b"max")?,
        oom: keyed(text, b"oom")?,
        oom_kill: keyed(text, b"oom_kill")?,
        oom_group_kill: keyed(text, b"oom_group_kill").unwrap_or(0),
    })
}
