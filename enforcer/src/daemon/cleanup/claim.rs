//! Makes sure that no daemon runs, and that none begins before the cleanup is done.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::FlockOperation, process::geteuid, thread::CapabilitySet};

use super::super::{
    handover::{self, Refusal},
    instance_lock::{FILE, InstanceLock},
};
use crate::{
    cgroup::{CgroupDir, Left, Survey},
    config::{Config, Mode},
    journal,
    model::CgroupPath,
    serve::Observe,
};

/// The lock in the journal's folder.
const JOURNAL_LOCK: &str = "lock";

/// Why nothing is undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// A daemon runs.
    #[error("a daemon runs ({holder}), so nothing is undone; stop it first: systemctl stop enforcer")]
    Runs {
        /// The process, as far as it is known.
        holder: String,
    },
    /// Marks could not even be read.
    #[error("only root, with CAP_SYS_ADMIN, can undo what the daemon has done")]
    NotRoot,
}

/// What a daemon would hold. Dropping it lets one start.
#[derive(Debug)]
pub(super) struct Claim {
    _instance: InstanceLock,
    _journal: Option<File>,
}

/// Takes what a daemon holds in any mode, and waits for one that is still ending, for at most `patience` each.
pub(super) async fn take(config: &Config, patience: Duration) -> Result<Claim, Refused> {
    let has_capability = rustix::thread::capabilities(None)
        .is_ok_and(|capabilities| capabilities.effective.contains(CapabilitySet::SYS_ADMIN));
    if !geteuid().is_root() || !has_capability {
        return Err(Refused::NotRoot);
    }
    let instance = InstanceLock::take_within(patience, Mode::Enforce).await;
    let instance = instance.map_err(|held| Refused::Runs { holder: held.holder().to_owned() })?;
    // One in another mode holds only these.
    let socket = Observe::path(&config.run_dir);
    let lock = journal::folder(&config.state_dir).join(JOURNAL_LOCK);
    let rest = async || {
        is_silent(&socket).await?;
        unlocked(&lock)
    };
    let journal = handover::take(patience, rest).await;
    let journal = journal.map_err(|running| Refused::Runs { holder: running.holder() })?;
    Ok(Claim { _instance: instance, _journal: journal })
}

/// A daemon that runs, or is ending.
#[derive(Debug, Eq, PartialEq)]
enum Running {
    /// It listens on the socket.
    Listens { socket: PathBuf, pid: Option<i32> },
    /// It has the journal.
    Writes { lock: PathBuf },
}

impl Refusal for Running {
    fn is_held(&self) -> bool {
        true
    }

    fn holder(&self) -> String {
        match self {
            Self::Listens { socket: _, pid: Some(pid) } => format!("process {pid}"),
            Self::Listens { socket, pid: None } => format!("a process that listens on {}", socket.display()),
            Self::Writes { lock } => handover::holder(lock),
        }
    }
}

/// Whether no process listens on the socket. One that cannot be asked may run.
async fn is_silent(socket: &Path) -> Result<(), Running> {
    let pid = match tokio::net::UnixStream::connect(socket).await {
        Ok(stream) => stream.peer_cred().ok().and_then(|peer| peer.pid()),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::ConnectionRefused => {
                return Ok(());
            }
            _ => None,
        },
    };
    Err(Running::Listens { socket: socket.to_owned(), pid })
}

/// The journal's lock, if there is a journal. One that cannot be opened is no daemon's.
fn unlocked(lock: &Path) -> Result<Option<File>, Running> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let Ok(file) = OpenOptions::new().read(true).custom_flags(flags).open(lock) else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(_) => Err(Running::Writes { lock: lock.to_owned() }),
    }
}

/// Leaves out what is below a cgroup that another daemon, in a cgroup namespace of its own, has for the root and claims.
pub(super) fn spare_others(root: &CgroupDir, survey: &mut Survey) -> Vec<Left> {
    let mut claimed: BTreeMap<CgroupPath, bool> = BTreeMap::new();
    survey.marked.retain(|marked| {
        let mut above = std::iter::successors(marked.path.parent(), CgroupPath::parent);
        // Our own claim is on the root.
        !above.any(|path| {
            !path.is_root()
                && *claimed
                    .entry(path)
                    .or_insert_with_key(|path| root.open(path).is_ok_and(|dir| is_claimed(&dir)))
        })
    });
    let claimed = claimed.into_iter().filter(|(_, is_claimed)| *is_claimed);
    claimed
        .map(|(path, _)| Left {
            path: path.to_string(),
            why: String::from("another enforcer runs in there: what it has changed is its own"),
        })
        .collect()
}

/// Whether a daemon that has this cgroup for its root claims it.
fn is_claimed(dir: &CgroupDir) -> bool {
    let Ok(file) = dir.open_write(FILE) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::net::UnixListener};

    use super::*;
    use crate::{
        cgroup::{Mark, Marked},
        model::CgroupId,
    };

    #[test]
    fn what_a_daemon_in_a_container_has_marked_is_its_own_while_it_runs() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("box/inner")).unwrap();
        let lock = temp.path().join("box/inner").join(FILE);
        for claim in [lock.clone(), temp.path().join("box").join(FILE)] {
            fs::write(claim, "").unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let marked = |path: &str| Marked {
            path: CgroupPath::parse(path).unwrap(),
            id: CgroupId(7),
            mark: Some(Mark::new(true, None)),
            is_newer: false,
            is_hooks: false,
            score: None,
            files: BTreeMap::new(),
            usage_bytes: None,
            is_populated: false,
            processes: Vec::new(),
        };
        let rest = || {
            let marked = ["/kubepods", "/box/inner/kubepods/pod1", "/box/kubepods"].map(marked).into();
            let mut survey = Survey { marked, ..Survey::default() };
            let left = spare_others(&root, &mut survey);
            let rest: Vec<_> = survey.marked.iter().map(|marked| marked.path.to_string()).collect();
            (rest, left.into_iter().map(|left| left.path).collect::<Vec<_>>())
        };
        assert_eq!(rest().0.len(), 3, "none runs");
        let held = unlocked(&lock).unwrap();
        let expected = vec![String::from("/kubepods"), String::from("/box/kubepods")];
        assert_eq!(rest(), (expected, vec![String::from("/box/inner")]));
        drop(held);
        assert_eq!(rest().0.len(), 3, "it has ended");
    }

    #[tokio::test]
    async fn who_listens_runs_and_a_socket_that_was_left_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("observe.sock");
        assert_eq!(is_silent(&socket).await, Ok(()));
        let listener = UnixListener::bind(&socket).unwrap();
        let running = is_silent(&socket).await.unwrap_err();
        assert_eq!(running.holder(), format!("process {}", std::process::id()));
        drop(listener);
        assert!(socket.exists());
        assert_eq!(is_silent(&socket).await, Ok(()));
    }

    #[test]
    fn a_journal_that_a_process_has_open_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join(JOURNAL_LOCK);
        assert!(unlocked(&lock).unwrap().is_none(), "there is none");
        fs::write(&lock, "").unwrap();
        let held = unlocked(&lock).unwrap();
        assert_eq!(unlocked(&lock).unwrap_err(), Running::Writes { lock: lock.clone() });
        drop(held);
        assert!(unlocked(&lock).unwrap().is_some());
    }
}
