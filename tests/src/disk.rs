//! A disk for page cache: a guest's own files are in memory that the kernel cannot reclaim.

use std::fs;

use anyhow::Context as _;

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
