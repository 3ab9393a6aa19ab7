//! Finds cgroups by id.
//!
//! The kernel makes a cgroup's file handle from its id. So a cgroup is opened without walking the hierarchy, and cannot
//! be another one of the same name.
use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use super::Error;
use crate::{
    model::{CgroupId, CgroupPath},
    raw,
};

/// The hierarchy, by its mount.
#[derive(Debug)]
pub struct Handles {
    mount: OwnedFd,
    root: String,
}

/// The result of looking for a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// It exists, at this path.
    Found(CgroupPath),
    /// It is gone.
    Gone,
    /// Unknown: finding it needs `CAP_DAC_READ_SEARCH`, and a path of names that are UTF-8.
    Unknown,
}

impl Handles {
    /// Opens the hierarchy mounted at `mount`.
    pub fn of(mount: &Path) -> Result<Self, Error> {
        let fail = |errno: Errno| Error::Open { path: mount.display().to_string(), source: errno.into() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(mount, flags, Mode::empty()).map_err(fail)?;
        let root = path_of(&fd).ok_or_else(|| fail(Errno::NOENT))?;
        Ok(Self { mount: fd, root })
    }

    /// Where a cgroup is now.
    #[must_use]
    pub fn find(&self, id: CgroupId) -> Sought {
        let opened = match raw::open_by_id(self.mount.as_fd(), id.0) {
            Ok(opened) => opened,
            // The kernel no longer has such a directory: exportfs and open_by_handle_at(2).
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => return Sought::Gone,
            Err(_) => return Sought::Unknown,
        };
        let Some(path) = path_of(&opened) else { return Sought::Unknown };
        // The path of a cgroup that was removed meanwhile leads nowhere, or to another one.
        if rustix::fs::stat(path.as_str()).map_or(true, |stat| stat.st_ino != id.0) {
            return Sought::Gone;
        }
        let below = path.strip_prefix(self.root.as_str());
        let below = below.map(|below| if below.is_empty() { "/" } else { below });
        below.and_then(|below| CgroupPath::parse(below).ok()).map_or(Sought::Unknown, Sought::Found)
    }

    /// The ids of the cgroups above one, nearest first; empty if it is gone.
    #[must_use]
    pub fn above(&self, id: CgroupId, levels: usize) -> Vec<CgroupId> {
        let Ok(mut dir) = raw::open_by_id(self.mount.as_fd(), id.0) else { return Vec::new() };
        let mut above = Vec::new();
        let root = rustix::fs::fstat(&self.mount).map(|stat| stat.st_ino).unwrap_or_default();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for _ in 0..levels {
            let Ok(parent) = rustix::fs::openat(&dir, "..", flags, Mode::empty()) else { break };
            let Ok(stat) = rustix::fs::fstat(&parent) else { break };
            above.push(CgroupId(stat.st_ino));
            if stat.st_ino == root {
                break;
            }
            dir = parent;
        }
        above
    }
}

/// The path of an open directory as this process sees it, if it is UTF-8.
fn path_of(dir: &OwnedFd) -> Option<String> {
    use std::os::fd::AsRawFd as _;

    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    std::fs::read_link(link).ok()?.into_os_string().into_string().ok()
}
