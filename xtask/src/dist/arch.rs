//! The architectures that artifacts are for, and what compilers and formats call them.
use std::{env, path::PathBuf};

use crate::build::SHIPPED;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    X86_64,
    Aarch64,
}

impl Arch {
    /// Its name in files' names, in RPM and of the kernel (`uname -m`).
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Its name in Debian and in OCI images.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// What rustc calls it.
    pub(crate) fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// What its C compiler is called on a Debian of another architecture.
    pub(crate) fn cross_compiler(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu-gcc",
            Self::Aarch64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// Whether programs for it run here.
    pub(crate) fn is_native(self) -> bool {
        env::consts::ARCH == self.name()
    }

    /// The C compiler, which also links.
    pub(crate) fn compiler(self) -> &'static str {
        if self.is_native() { "cc" } else { self.cross_compiler() }
    }

    /// The folder of cargo's build folder in which its release is.
    pub(crate) fn release(self) -> PathBuf {
        PathBuf::from(self.target()).join(SHIPPED)
    }
}
