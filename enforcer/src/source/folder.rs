//! Which folder the manifests are read from, and whether the one now at its path is followed.

use std::{fmt, os::fd::AsFd};

use rustix::{
    fs::{AtFlags, StatxFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::loaded::Loaded;
use crate::trust::Untrusted;

/// Distinguishes folders at the same path.
///
/// A file system may give the inode of a removed folder to the next one: the birth time distinguishes these, if the
/// file system keeps it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Identity {
    /// `st_dev`, as the kernel's 32-bit major and minor.
    device: (u32, u32),
    inode: u64,
    /// In seconds and nanoseconds since 1970.
    born: Option<(i64, u32)>,
}

impl Identity {
    pub(super) fn of(folder: impl AsFd) -> Result<Self, Errno> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let stat = rustix::fs::statx(folder, c"", AtFlags::EMPTY_PATH, wanted)?;
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            born: has_birth.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)),
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.device;
        write!(formatter, "device {major}:{minor} inode {}", self.inode)
    }
}

/// Why a folder yields no manifests.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Absence {
    /// There is no folder at its path.
    Missing,
    /// It cannot be opened or listed.
    Unreadable(Errno),
    /// The folder there is not the one that was read last.
    Another(Replaced),
    /// Others than root and the daemon's user may write to it.
    Untrusted(Writable),
    /// It has not answered for that many seconds.
    Stuck(u64),
}

/// The folder that was read last, and the one that is now at its path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Replaced {
    pub(super) was: Option<Identity>,
    pub(super) is: Identity,
}

/// Who may write to a folder, and what to do about it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Writable(pub(super) Untrusted);

impl fmt::Display for Absence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => formatter.write_str("is missing"),
            Self::Unreadable(errno) => write!(formatter, "cannot be read: {errno}"),
            Self::Another(Replaced { was: Some(was), is }) => {
                write!(formatter, "is another folder ({is}) than the one that was read last ({was})")
            }
            Self::Another(Replaced { was: None, is }) => {
                write!(formatter, "is another folder ({is}) than the one that was read last")
            }
            Self::Untrusted(Writable(Untrusted { why, remedy })) => write!(formatter, "{why}: {remedy}"),
            Self::Stuck(seconds) => write!(formatter, "has not answered for {seconds} s"),
        }
    }
}

impl Absence {
    /// What an operator can do; the pods stay unchanged meanwhile.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Missing => {
                "put it back, or run `enforcer reload --accept-empty` if there are no pods any more"
            }
            Self::Another(_) => {
                "put the folder back, or run `enforcer reload --accept-empty` to follow the one that is there, \
                 whatever it holds"
            }
            Self::Unreadable(_) | Self::Untrusted(_) | Self::Stuck(_) => {
                "manifests are read again once that is fixed"
            }
        }
    }
}

/// What decides whether a folder that can be read is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Grounds {
    /// Whether it is the one that was read last.
    pub(super) is_same: bool,
    /// Whether it is the first that this process reads.
    pub(super) is_first: bool,
    /// Whether an operator accepted it.
    pub(super) is_accepted: bool,
}

impl Grounds {
    /// Whether the pods in a folder replace those in force.
    ///
    /// Another folder is followed if no pod is lost by it: no pod is in force, or it holds the very same ones. A daemon
    /// that starts follows any folder that holds pods, as an operator started it on that one; an empty one may be a
    /// mount point whose mount is late.
    pub(super) fn take(self, in_force: &Loaded, found: &Loaded) -> bool {
        self.is_same
            || self.is_accepted
            || in_force.pods.is_empty()
            || (self.is_first && !found.pods.is_empty())
            || in_force.pods == found.pods
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::{
        loaded::{Content, FileContent, merge},
        manifest,
    };

    fn loaded(names: &[&str]) -> Loaded {
        let file = |name: &&str| {
            FileContent {
            name: format!("{name}.yaml"),
            content: Content::Bytes(
                format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c}}]}}\n")
                    .into_bytes(),
            ),
        }
        };
        merge(&Loaded::default(), names.iter().map(file), manifest::parse)
    }

    #[test]
    fn no_pod_is_lost_by_another_folder() {
        let grounds = |is_same, is_first, is_accepted| Grounds { is_same, is_first, is_accepted };
        let (none, one, other) = (loaded(&[]), loaded(&["a"]), loaded(&["b"]));
        let cases = [
            // The same folder counts, empty or not, and what an operator has accepted.
            (grounds(true, false, false), &one, &none, true),
            (grounds(false, false, true), &one, &none, true),
            // Another one, while the daemon runs: not, unless it makes no difference.
            (grounds(false, false, false), &one, &none, false),
            (grounds(false, false, false), &one, &other, false),
            (grounds(false, false, false), &one, &one, true),
            (grounds(false, false, false), &none, &other, true),
            // At a start: unless it is empty.
            (grounds(false, true, false), &one, &none, false),
            (grounds(false, true, false), &one, &other, true),
            (grounds(false, true, false), &none, &none, true),
        ];
        for (grounds, in_force, found, taken) in cases {
            assert_eq!(
                grounds.take(in_force, found),
                taken,
                "{grounds:?} {:?} {:?}",
                in_force.pods,
                found.pods
            );
        }
    }

    #[test]
    fn a_folder_made_anew_is_another_though_it_has_the_same_inode() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("pods");
        let identity = || Identity::of(fs::File::open(&path).unwrap()).unwrap();
        fs::create_dir(&path).unwrap();
        let first = identity();
        fs::rename(&path, temp.path().join("away")).unwrap();
        fs::rename(temp.path().join("away"), &path).unwrap();
        assert_eq!(identity(), first);
        fs::remove_dir(&path).unwrap();
        // Times of birth have the grain of a tick.
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::create_dir(&path).unwrap();
        let second = identity();
        assert_ne!(second, first);
        let json = serde_json::to_string(&second).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&json).unwrap(), second, "{json}");
    }
}
