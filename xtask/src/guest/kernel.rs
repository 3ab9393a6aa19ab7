//! The kernels that guests run.
use std::{fmt, path::PathBuf};

use clap::ValueEnum;

/// A kernel by the series that its suite offered when the project began; the lock file has its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum KernelName {
    /// Debian 12's own.
    #[value(name = "6.1")]
    V6_1,
    /// Debian 12's backport.
    #[value(name = "6.12")]
    V6_12,
    /// Sid's present one.
    #[value(name = "7.2")]
    V7_2,
}

impl KernelName {
    pub(crate) const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::V7_2];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7_2 => "7.2",
        }
    }

    /// The suite that it comes from.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "bookworm-backports",
            Self::V7_2 => "sid",
        }
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kernel in the cache, ready to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: KernelName,
    pub(crate) image: PathBuf,
    /// The first part of its initramfs: folders, busybox and modules.
    pub(crate) base: PathBuf,
}
