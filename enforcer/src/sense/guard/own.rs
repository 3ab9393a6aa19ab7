//! The PID namespace of this process.
use std::{io, path::Path};

use enforcer_common::guard::Own;
use rustix::fs::{major, minor, stat};

/// The inode number of the machine's own PID namespace (`PROC_PID_INIT_INO`, `linux/proc_ns.h`).
const INITIAL_INO: u64 = 0xEFFF_FFFC;

/// A PID namespace, as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidNamespace {
    dev: u64,
    ino: u64,
}

impl PidNamespace {
    /// The namespace of this process.
    pub(crate) fn of_this_process(proc: &Path) -> io::Result<Self> {
        let stat = stat(proc.join("self/ns/pid"))?;
        // Within the kernel, the minor number has 20 bits (`linux/kdev_t.h`).
        let dev = (u64::from(major(stat.st_dev)) << 20) | u64::from(minor(stat.st_dev));
        Ok(Self { dev, ino: stat.st_ino })
    }

    /// Whether it is the machine's own; process ids in records are then the ones that we see.
    #[must_use]
    pub const fn is_initial(self) -> bool {
        self.ino == INITIAL_INO
    }

    /// How the programs recognise this process.
    pub(in crate::sense) fn own(self) -> Own {
        Own { namespace_dev: self.dev, namespace_ino: self.ino, pid: std::process::id().into() }
    }

    /// A namespace, for tests of the rules.
    #[cfg(test)]
    pub(crate) const fn new(dev: u64, ino: u64) -> Self {
        Self { dev, ino }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_has_a_number() {
        let namespace = PidNamespace::of_this_process(Path::new("/proc")).unwrap();
        assert_ne!(namespace.ino, 0);
        assert_eq!(namespace.own().pid, u64::from(std::process::id()));
        assert!(PidNamespace::new(4, INITIAL_INO).is_initial());
        assert!(!PidNamespace::new(4, INITIAL_INO - 1).is_initial());
    }
}
