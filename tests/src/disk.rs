//! Disks for a guest, whose own files are in memory that the kernel cannot reclaim.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A state directory on a small disk of its own, unmounted when this is dropped.
#[derive(Debug)]
pub struct StateDisk(PathBuf);

impl StateDisk {
    /// Mounts one for the daemon whose files are in that folder.
    pub fn mount(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("state");
        fs::create_dir_all(&path)?;
        mount("state", &path, "tmpfs", MountFlags::empty(), c"size=6m,mode=0750").context("cannot mount")?;
        Ok(Self(path))
    }

    /// Takes all the room that there is. Returns the file that takes it.
    pub fn fill(&self) -> anyhow::Result<PathBuf> {
        let ballast = self.0.join("ballast");
        let mut file = fs::File::create(&ballast)?;
        while file.write_all(&[7; 4_096]).is_ok() {}
        Ok(ballast)
    }

    /// Allows writes, or refuses them.
    pub fn set_read_only(&self, is_read_only: bool) -> anyhow::Result<()> {
        let flags = if is_read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(&self.0, flags, "").context("cannot mount anew")
    }
}

impl Drop for StateDisk {
    fn drop(&mut self) {
        let _busy = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A block device of compressed memory, whose page cache is like that of any file.
#[derive(Debug)]
pub struct Disk(u32);

impl Disk {
    /// Creates one of that size.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let added = fs::read_to_string("/sys/class/zram-control/hot_add").context("there is no zram")?;
        let number = added.trim().parse().with_context(|| format!("zram's number is {added:?}"))?;
        fs::write(format!("/sys/block/zram{number}/disksize"), bytes.to_string())
            .with_context(|| format!("zram{number} cannot have {bytes} bytes"))?;
        Ok(Self(number))
    }

    /// Its device file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // One that is still open goes with the guest.
        drop(fs::write("/sys/class/zram-control/hot_remove", self.0.to_string()));
    }
}
