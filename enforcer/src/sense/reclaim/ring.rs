//! The records of long or frequent stalls.
use std::{fmt, io};

use aya::maps::{MapData, RingBuf};
use enforcer_common::stall::{KIND_STALL, StallKey, StallRecord};

use super::StallKind;
use crate::{
    model::CgroupId,
    sense::{
        KernelRing, RecordRing as _, Undecodable,
        record::{body, comm, header},
    },
};

/// A stall that was long, or the last of many within a second. Times are of `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MuchStall {
    /// When it ended.
    pub time_ns: u64,
    /// The task's cgroup when the stall began.
    pub cgroup: CgroupId,
    /// The cgroup whose limit it was; `None` if the machine was short, or the kernel does not report it.
    pub limit: Option<CgroupId>,
    /// The kind of the stall.
    pub kind: StallKind,
    /// Duration of the stall.
    pub stall_ns: u64,
    /// Sum of the stalls of the same cgroup, limit and kind within about a second, this one included.
    pub window_ns: u64,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the thread. Its user chose it: escape it for display.
    pub comm: String,
}

impl MuchStall {
    /// Decodes one record of the ring of stalls.
    pub fn decode(bytes: &[u8]) -> Result<Self, Undecodable> {
        let kind = header(bytes)?.kind;
        if kind != KIND_STALL {
            return Err(Undecodable::UnknownKind(kind));
        }
        let StallRecord { header: _, time_ns, key, stall_ns, window_ns, tid, tgid, comm: name } =
            body(kind, bytes)?;
        let StallKey { cgroup_id, limit_id, kind: stalled, reserved: _ } = key;
        Ok(Self {
            time_ns,
            cgroup: CgroupId(cgroup_id),
            limit: (limit_id != 0).then_some(CgroupId(limit_id)),
            kind: StallKind::of(stalled).ok_or(Undecodable::UnknownKind(stalled))?,
            stall_ns,
            window_ns,
            tid,
            pid: tgid,
            comm: comm(&name),
        })
    }
}

/// The ring of stalls. It is registered with the runtime at the first wait.
pub struct StallRing {
    ring: Ring,
    unusable: u64,
}

enum Ring {
    Loaded(RingBuf<MapData>),
    Registered(KernelRing),
    /// Registering failed.
    Broken,
}

impl fmt::Debug for StallRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StallRing").field("unusable", &self.unusable).finish_non_exhaustive()
    }
}

impl StallRing {
    pub(in crate::sense) const fn new(ring: RingBuf<MapData>) -> Self {
        Self { ring: Ring::Loaded(ring), unusable: 0 }
    }

    /// The next record. Must be called inside a tokio runtime; safe to cancel. After an error every call fails.
    pub async fn next(&mut self) -> io::Result<MuchStall> {
        loop {
            if let Some(stall) = self.take()? {
                return Ok(stall);
            }
            self.registered()?.readable().await?;
        }
    }

    /// The next record, if there is one already. Must be called inside a tokio runtime.
    pub fn take(&mut self) -> io::Result<Option<MuchStall>> {
        while let Some(decoded) = self.registered()?.next(MuchStall::decode) {
            match decoded {
                Ok(stall) => return Ok(Some(stall)),
                Err(error) => {
                    self.unusable += 1;
                    tracing::debug!(%error, "cannot use a record of a stall");
                }
            }
        }
        Ok(None)
    }

    /// Records that could not be decoded.
    #[must_use]
    pub const fn unusable(&self) -> u64 {
        self.unusable
    }

    fn registered(&mut self) -> io::Result<&mut KernelRing> {
        if let Ring::Loaded(_) = self.ring
            && let Ring::Loaded(ring) = std::mem::replace(&mut self.ring, Ring::Broken)
        {
            self.ring = Ring::Registered(KernelRing::register(ring)?);
        }
        match &mut self.ring {
            Ring::Registered(ring) => Ok(ring),
            Ring::Loaded(_) | Ring::Broken => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use enforcer_common::record::Header;
    use zerocopy::IntoBytes as _;

    use super::*;

    fn record() -> StallRecord {
        StallRecord {
            time_ns: 9,
            key: StallKey { cgroup_id: 5, limit_id: 6, kind: enforcer_common::stall::MEMCG, reserved: 0 },
            stall_ns: 70,
            window_ns: 80,
            tid: 11,
            tgid: 10,
            comm: *b"stress\0\0\0\0\0\0\0\0\0\0",
            ..StallRecord::EMPTY
        }
    }

    #[test]
    fn a_record_reports_who_was_stalled_and_by_whose_limit() {
        let stall = MuchStall::decode(record().as_bytes()).unwrap();
        assert_eq!((stall.cgroup, stall.limit), (CgroupId(5), Some(CgroupId(6))));
        assert_eq!(stall.kind, StallKind::MemcgReclaim);
        assert_eq!((stall.time_ns, stall.stall_ns, stall.window_ns), (9, 70, 80));
        assert_eq!((stall.pid, stall.tid, stall.comm.as_str()), (10, 11, "stress"));
    }

    #[test]
    fn what_is_not_reported_is_not_made_up() {
        let mut record = record();
        record.key.limit_id = 0;
        assert_eq!(MuchStall::decode(record.as_bytes()).unwrap().limit, None);
    }

    #[test]
    fn torn_and_foreign_records_are_refused() {
        let whole = record();
        let bytes = whole.as_bytes();
        for length in 0..bytes.len() {
            assert!(MuchStall::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut unknown = record();
        unknown.key.kind = 77;
        assert_eq!(MuchStall::decode(unknown.as_bytes()), Err(Undecodable::UnknownKind(77)));
        let foreign = StallRecord { header: Header::new(1, StallRecord::SIZE_BYTES), ..whole };
        assert_eq!(MuchStall::decode(foreign.as_bytes()), Err(Undecodable::UnknownKind(1)));
    }
}
