//! Reads and scores processes by an open folder in `/proc`, safe from reused process ids.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags},
    io::Errno,
    process::{Pid, PidfdFlags},
};

/// The most bytes read from a process's file.
const MAX_READ_BYTES: usize = 64 * 1024;

/// The most ids that are tried instead of listing all processes.
const MOST_TRIED: u32 = 1_024;

/// What the kernel appends to the path of a program whose file was replaced while it runs.
const DELETED: &str = " (deleted)";

/// Attempts of a lookup in the dentry cache: a concurrent rename or mount also makes `RESOLVE_CACHED` fail with `EAGAIN`.
const CACHED_LOOKUP_ATTEMPTS: usize = 16;

/// The process file system.
#[derive(Debug)]
pub(super) struct Processes {
    proc: OwnedFd,
}

/// One process, by its folder in /proc: everything done through it is done to this very process, and fails with `ESRCH`
/// once it is dead, even if its id is reused.
#[derive(Debug)]
pub(super) struct Process {
    dir: OwnedFd,
}

impl Processes {
    /// Opens it where it is mounted, usually `/proc`.
    pub(super) fn open(proc: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { proc: rustix::fs::open(proc, flags, Mode::empty())? })
    }

    /// Opens one process, by its id in our own PID namespace.
    pub(super) fn get(&self, pid: u32) -> rustix::io::Result<Process> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Process { dir: rustix::fs::openat(&self.proc, pid.to_string(), flags, Mode::empty())? })
    }

    /// Whether a process may run a program of such a name. For all processes of a host: this is one system call, and to open
    /// each and look is five. What cannot be read may be one.
    pub(super) fn may_run(&self, pid: u32, is_wanted: impl FnOnce(&str) -> bool) -> bool {
        match rustix::fs::readlinkat(&self.proc, format!("{pid}/exe"), Vec::new()) {
            Ok(path) => base_name(&path.to_string_lossy()).is_some_and(is_wanted),
            // A kernel thread, or it is gone.
            Err(errno) => !matches!(errno, Errno::NOENT | Errno::SRCH),
        }
    }

    /// The ids of all visible processes.
    pub(super) fn pids(&self) -> rustix::io::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.proc)? {
            let pid: Option<u32> = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
            pids.extend(pid);
        }
        Ok(pids)
    }

    /// The ids of visible processes above `since`, up to `newest` if that is known; of all without `since`.
    ///
    /// To list the folder has the kernel make an entry for each process, so ids are tried one by one if they are few.
    pub(super) fn started(&self, since: Option<u32>, newest: Option<u32>) -> rustix::io::Result<Vec<u32>> {
        let few = since.zip(newest).filter(|(since, newest)| newest.saturating_sub(*since) <= MOST_TRIED);
        let Some((since, newest)) = few else {
            let mut pids = self.pids()?;
            pids.retain(|pid| since.is_none_or(|since| *pid > since));
            return Ok(pids);
        };
        // Only the id of a process has a pidfd, that of another thread has none.
        let is_process = |pid: &u32| {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
            pid.is_some_and(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).is_ok())
        };
        Ok((since.saturating_add(1)..=newest).filter(is_process).collect())
    }

    /// The id that a process or thread got last: it changes as soon as something is started. Cheap to read.
    pub(super) fn newest(&self) -> rustix::io::Result<u32> {
        let load = read(&self.proc, "loadavg")?;
        load.split_ascii_whitespace().next_back().and_then(|word| word.parse().ok()).ok_or(Errno::INVAL)
    }
}

impl Process {
    /// Its `oom_score_adj`.
    pub(super) fn score(&self) -> rustix::io::Result<i16> {
        let file = open(&self.dir, "oom_score_adj")?;
        let mut content = [0_u8; 16];
        let count = rustix::io::read(&file, &mut content)?;
        std::str::from_utf8(content.get(..count).unwrap_or_default())
            .ok()
            .and_then(|text| text.trim_ascii().parse().ok())
            .ok_or(Errno::INVAL)
    }

    /// Writes its `oom_score_adj`.
    pub(super) fn set_score(&self, score: i16) -> rustix::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, "oom_score_adj", flags, Mode::empty())?;
        rustix::io::write(&file, score.to_string().as_bytes()).map(drop)
    }

    /// Whether it is below a kubepods, and so belongs to a pod.
    pub(super) fn is_below_kubepods(&self) -> rustix::io::Result<bool> {
        // With a cgroup root of its own, systemd's slice has that as a prefix.
        let is_kubepods =
            |name: &str| matches!(name, "kubepods" | "kubepods.slice") || name.ends_with("-kubepods.slice");
        Ok(self.cgroup()?.is_some_and(|cgroup| cgroup.split('/').any(is_kubepods)))
    }

    /// The path of its cgroup in the unified hierarchy, as we see it; `None` without one. In a cgroup namespace, a path
    /// outside its root begins with `/..`.
    pub(super) fn cgroup(&self) -> rustix::io::Result<Option<String>> {
        let text = read(&self.dir, "cgroup")?;
        Ok(text.lines().find_map(|line| line.strip_prefix("0::")).map(cgroup_path).map(str::to_owned))
    }

    /// When it started, in clock ticks since boot.
    pub(super) fn start_ticks(&self) -> rustix::io::Result<u64> {
        // The name, in brackets, may hold anything; after it, the start is the 20th word (proc_pid_stat(5), field 22).
        let text = read(&self.dir, "stat")?;
        let after = text.rsplit_once(')').map(|(_, after)| after);
        after
            .and_then(|after| after.split_ascii_whitespace().nth(19))
            .and_then(|word| word.parse().ok())
            .ok_or(Errno::INVAL)
    }

    /// The base name of its program; `None` for a kernel thread.
    pub(super) fn executable(&self) -> rustix::io::Result<Option<String>> {
        match rustix::fs::readlinkat(&self.dir, "exe", Vec::new()) {
            Ok(path) => Ok(base_name(&path.to_string_lossy()).map(str::to_owned)),
            // A kernel thread has none; nothing can be opened of a process that is gone.
            Err(Errno::NOENT) if self.score().is_ok() => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Whether it is the host's own: root in the user namespace of `init`, which is process 1, and running a file below
    /// the root of `init`. A container's file of the same name is another file. `elsewhere` is as in
    /// [`Self::runs_program_of`].
    pub(super) fn is_host_process(&self, init: &Self, elsewhere: bool) -> rustix::io::Result<bool> {
        Ok(self.is_roots()?
            && self.user_namespace()? == init.user_namespace()?
            && self.runs_program_of(init, elsewhere)?)
    }

    /// Whether its program is below the root of `init`, which is process 1.
    ///
    /// `elsewhere` says whether one that was replaced while it runs counts in another mount namespace, where only its
    /// device can be compared: a pod can have a volume of the host's device at any path.
    pub(super) fn runs_program_of(&self, init: &Self, elsewhere: bool) -> rustix::io::Result<bool> {
        let path = rustix::fs::readlinkat(&self.dir, "exe", Vec::new())?;
        let is_deleted = path.to_bytes().ends_with(DELETED.as_bytes());
        if is_deleted && !elsewhere && self.mount_namespace()? != init.mount_namespace()? {
            return Ok(false);
        }
        let file = cached_stat(&self.dir, "exe")?;
        init.has_program(&path.to_string_lossy(), &file)
    }

    /// Whether `file` is the one at that path below this process's root, by device and inode, and only root can have
    /// written it.
    ///
    /// The path is from `/proc/<pid>/exe`; for a process of another mount namespace it is a path there. A file that was
    /// replaced while it runs has no name any more; then it counts if it is on the device of its former folder.
    ///
    /// A pod chooses its own path, and a file system there may hang, so this uses cached dentries and inodes only. A
    /// running program pins the dentries of its path. Fails with `EAGAIN` if a name of the path is not cached.
    pub(super) fn has_program(&self, path: &str, file: &Statx) -> rustix::io::Result<bool> {
        if file.stx_uid != 0 || file.stx_mode & 0o022 != 0 {
            return Ok(false);
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::openat(&self.dir, "root", flags | OFlags::DIRECTORY, Mode::empty())?;
        let below = |path: &str| match cached_below(&root, path) {
            Ok(found) => cached_stat(&found, "").map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(errno),
        };
        match path.strip_suffix(DELETED) {
            Some(path) if file.stx_nlink == 0 => {
                let folder = path
                    .rsplit_once('/')
                    .map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder });
                Ok(below(folder)?.is_some_and(|folder| device(&folder) == device(file)))
            }
            _ => Ok(below(path)?
                .is_some_and(|found| (device(&found), found.stx_ino) == (device(file), file.stx_ino))),
        }
    }

    /// Its mount namespace.
    fn mount_namespace(&self) -> rustix::io::Result<String> {
        let name = rustix::fs::readlinkat(&self.dir, "ns/mnt", Vec::new())?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// Its user namespace.
    pub(super) fn user_namespace(&self) -> rustix::io::Result<String> {
        let name = rustix::fs::readlinkat(&self.dir, "ns/user", Vec::new())?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// Its IPC namespace.
    pub(super) fn ipc_namespace(&self) -> rustix::io::Result<String> {
        let name = rustix::fs::readlinkat(&self.dir, "ns/ipc", Vec::new())?;
        Ok(name.to_string_lossy().into_owned())
    }

    /// Whether all of its user ids are root's, in our own user namespace.
    pub(super) fn is_roots(&self) -> rustix::io::Result<bool> {
        let status = read(&self.dir, "status")?;
        let ids = status.lines().find_map(|line| line.strip_prefix("Uid:")).ok_or(Errno::INVAL)?;
        Ok(ids.split_ascii_whitespace().all(|id| id == "0"))
    }

    /// The words after its program's name in its command line.
    pub(super) fn arguments(&self) -> rustix::io::Result<Vec<String>> {
        // A program that changed its title separates the words by spaces.
        let line = read(&self.dir, "cmdline")?;
        Ok(line.split(['\0', ' ']).filter(|word| !word.is_empty()).skip(1).map(str::to_owned).collect())
    }

    /// The words after its program's name in its command line, as it was given them; `None` if it shows a title instead.
    pub(super) fn words(&self) -> rustix::io::Result<Option<Vec<String>>> {
        Ok(words(&read(&self.dir, "cmdline")?))
    }

    /// The variables that it was started with, each as `NAME=value`.
    pub(super) fn environment(&self) -> rustix::io::Result<Vec<String>> {
        let text = read(&self.dir, "environ")?;
        // A title may lie over it.
        Ok(text.split('\0').filter(|word| word.contains('=')).map(str::to_owned).collect())
    }

    /// Its root folder.
    pub(super) fn root(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, "root", flags, Mode::empty())
    }

    /// Its PID namespace.
    pub(super) fn pid_namespace(&self) -> rustix::io::Result<String> {
        let name = rustix::fs::readlinkat(&self.dir, "ns/pid", Vec::new())?;
        Ok(name.to_string_lossy().into_owned())
    }
}

/// A command line without its program's name. One of a single word with spaces is a title.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = line.strip_suffix('\0').unwrap_or(line).split('\0');
    let program = words.next().unwrap_or_default();
    let words: Vec<_> = words.map(str::to_owned).collect();
    // A title may leave zeros behind it.
    let is_title = program.contains(' ')
        || program.is_empty()
        || words.iter().all(String::is_empty) && !words.is_empty();
    (!is_title).then_some(words)
}

/// Whether the process is gone.
pub(super) fn is_gone(errno: Errno) -> bool {
    errno == Errno::NOENT || errno == Errno::SRCH
}

/// Nanoseconds of `CLOCK_BOOTTIME` in clock ticks, as in /proc.
pub(super) fn ticks(ns: u64) -> u64 {
    ns / tick_ns()
}

/// The first nanosecond of a clock tick.
pub(super) fn ns(ticks: u64) -> u64 {
    ticks.saturating_mul(tick_ns())
}

fn tick_ns() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

fn base_name(path: &str) -> Option<&str> {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    path.rsplit('/').next().filter(|name| !name.is_empty())
}

/// The path without the suffix of a removed cgroup.
fn cgroup_path(path: &str) -> &str {
    path.strip_suffix(DELETED).unwrap_or(path)
}

/// Opens a path below `root` as if that were `/`, from the dentry cache only.
fn cached_below(root: &OwnedFd, path: &str) -> rustix::io::Result<OwnedFd> {
    let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::CACHED;
    let look = || rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how);
    let mut looks = std::iter::repeat_with(look).take(CACHED_LOOKUP_ATTEMPTS);
    looks.find(|found| !matches!(found, Err(Errno::AGAIN))).unwrap_or(Err(Errno::AGAIN))
}

/// The cached attributes of a file (`AT_STATX_DONT_SYNC`); of `dir` itself if `path` is empty.
pub(super) fn cached_stat(dir: impl AsFd, path: &str) -> rustix::io::Result<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, path, flags, StatxFlags::BASIC_STATS)
}

fn device(file: &Statx) -> (u32, u32) {
    (file.stx_dev_major, file.stx_dev_minor)
}

fn open(dir: &OwnedFd, file: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, file, flags, Mode::empty())
}

fn read(dir: &OwnedFd, file: &str) -> rustix::io::Result<String> {
    let file = open(dir, file)?;
    let mut content = Vec::new();
    let mut chunk = [0_u8; 4096];
    loop {
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => break,
            Ok(count) => content.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        if content.len() > MAX_READ_BYTES {
            return Err(Errno::FBIG);
        }
    }
    Ok(String::from_utf8_lossy(&content).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Process {
        Processes::open(Path::new("/proc")).unwrap().get(std::process::id()).unwrap()
    }

    #[test]
    fn we_know_ourselves() {
        let processes = Processes::open(Path::new("/proc")).unwrap();
        assert!(processes.pids().unwrap().contains(&std::process::id()));
        let own = own();
        let exe = std::env::current_exe().unwrap();
        assert_eq!(own.executable().unwrap().as_deref(), exe.file_name().and_then(|name| name.to_str()));
        assert_eq!(own.is_roots().unwrap(), rustix::process::geteuid().is_root());
        assert!(own.pid_namespace().unwrap().starts_with("pid:["));
        let now_ns = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).tv_sec;
        let start_ns = own.start_ticks().unwrap() / rustix::param::clock_ticks_per_second();
        assert!((1..=u64::try_from(now_ns).unwrap()).contains(&start_ns));
    }

    #[test]
    fn a_new_process_shows() {
        let processes = Processes::open(Path::new("/proc")).unwrap();
        let before = processes.newest().unwrap();
        assert!(std::process::Command::new("true").status().unwrap().success());
        assert_ne!(processes.newest().unwrap(), before);
    }

    #[test]
    fn what_was_started_is_found_by_its_id_or_in_the_list() {
        let processes = Processes::open(Path::new("/proc")).unwrap();
        let before = processes.newest().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let (pid, newest) = (child.id(), processes.newest().unwrap());
        let found = |since: Option<u32>, newest: Option<u32>| {
            processes.started(since, newest).unwrap().contains(&pid)
        };
        let by_id = (found(Some(before), Some(newest)), found(Some(pid), Some(newest)));
        let listed = (found(Some(before), None), found(Some(pid), None), found(None, None));
        // A thread has an id too, and is no process.
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let of_thread = processes.started(Some(thread - 1), Some(thread)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Ids begin anew once they have all been given out.
        if before < pid {
            assert_eq!((by_id, listed), ((true, false), (true, false, true)));
        }
        assert_ne!(thread, std::process::id(), "a test has a thread of its own");
        assert_eq!(of_thread, Vec::<u32>::new());
    }

    #[test]
    fn a_title_is_no_command_line() {
        let joined = |line: &str| words(line).map(|words| words.join("|"));
        assert_eq!(joined("/usr/bin/kubelet\0--config\0/a b\0").as_deref(), Some("--config|/a b"));
        assert_eq!(joined("kubelet\0").as_deref(), Some(""));
        for title in ["k3s server\0", "k3s\0\0\0\0", ""] {
            assert_eq!(joined(title), None, "{title:?}");
        }
    }

    #[test]
    fn a_replaced_program_keeps_its_name() {
        assert_eq!(base_name("/usr/bin/kubelet"), Some("kubelet"));
        assert_eq!(base_name("/usr/bin/kubelet (deleted)"), Some("kubelet"));
        assert_eq!(base_name("/"), None);
        assert_eq!(cgroup_path("/a/b (deleted)"), "/a/b");
    }

    #[test]
    fn ticks_are_hundredths_of_a_second() {
        assert_eq!(ticks(12_345_678_901), 12_345_678_901 / 1_000_000_000 * 100 + 34);
        assert_eq!(ticks(ns(1_234)), 1_234);
    }
}
