//! Whether the processes of a cgroup are dying.
use std::{fs, path::Path};

use crate::cgroup::{CgroupDir, guard::each_process};

/// The processes that a cgroup holds. The greater value needs more work.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Holding {
    /// No process.
    NoProcess,
    /// Processes that are all dying: no signal need be sent again.
    Doomed,
    /// Processes that live, or may live.
    Living,
}

/// `PF_EXITING` of `include/linux/sched.h`.
const EXITING: u64 = 0x4;

/// SIGKILL in the signal masks of `/proc/<pid>/status`.
const KILLED: u64 = 1 << 8;

/// Looks at everything at or below the cgroup.
#[must_use]
pub fn look(dir: &CgroupDir) -> Holding {
    match dir.is_populated() {
        Ok(true) => {}
        Ok(false) => return Holding::NoProcess,
        Err(error) if error.is_gone() => return Holding::NoProcess,
        Err(_) => return Holding::Living,
    }
    let (mut any, mut all) = (false, true);
    let listed = each_process(dir, &mut |pid| {
        any = true;
        all = all && is_dying(Path::new("/proc"), pid);
    });
    // Processes that cannot be seen may live.
    if any && all && listed.is_ok_and(|unseen| unseen.is_none()) { Holding::Doomed } else { Holding::Living }
}

/// Whether the cgroup, or one below it, holds a process that is not dying for certain and was started after `since_ms` on
/// `CLOCK_BOOTTIME`. Unlike with [`look`], one that cannot be seen is none.
pub(super) fn holds_living(dir: &CgroupDir, since_ms: Option<u64>) -> bool {
    if !matches!(dir.is_populated(), Ok(true)) {
        return false;
    }
    let (proc, mut lives) = (Path::new("/proc"), false);
    let is_new = |pid| since_ms.is_none_or(|since_ms| may_be_started_after(proc, pid, since_ms));
    let listed = each_process(dir, &mut |pid| lives = lives || is_new(pid) && !is_dying(proc, pid));
    lives && listed.is_ok()
}

/// Whether the process may have been started after that. The kernel gives the time in ticks, rounded down.
fn may_be_started_after(proc: &Path, pid: u32, since_ms: u64) -> bool {
    let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat"));
    let Some(ticks) = stat.ok().as_deref().and_then(start_ticks) else { return true };
    ticks.saturating_add(1).saturating_mul(1_000) / rustix::param::clock_ticks_per_second().max(1) > since_ms
}

/// `starttime`, the field 22 of `/proc/<pid>/stat` (`do_task_stat` of `fs/proc/array.c`).
fn start_ticks(stat: &str) -> Option<u64> {
    // The name before it may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether every thread of the process is exiting, or is about to.
fn is_dying(proc: &Path, pid: u32) -> bool {
    let tasks = proc.join(pid.to_string()).join("task");
    // A process without this directory is dead.
    let Ok(tasks) = fs::read_dir(tasks) else { return true };
    tasks.flatten().all(|task| {
        let read = |file: &str| fs::read_to_string(task.path().join(file));
        // A signal that is taken out between the two mostly shows as the exit in the second.
        match (read("status"), read("stat")) {
            (Ok(status), Ok(stat)) => is_thread_dying(&stat, &status),
            _ => !task.path().exists(),
        }
    })
}

/// The kernel puts SIGKILL into the pending set of every thread (`complete_signal` of `kernel/signal.c`), and takes it out
/// when the thread begins to exit.
fn is_thread_dying(stat: &str, status: &str) -> bool {
    // The name before it may contain any character.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X" | "x"));
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(0);
    let pending = |key: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & KILLED != 0)
    };
    is_dead || flags & EXITING != 0 || pending("SigPnd") || pending("ShdPnd")
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    use super::*;

    fn stat(state: char, flags: u64) -> String {
        format!("412 (a) R (b) {state} 1 412 412 0 -1 {flags} 98 0 0 0\n")
    }

    fn status(private: u64, shared: u64) -> String {
        format!(
            "Name:\tSigPnd:\nState:\tS\nSigPnd:\t{private:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\tffffffffffffffff\n"
        )
    }

    #[test]
    fn a_thread_dies_by_what_is_pending_or_on_its_way() {
        let none = status(0, 0);
        assert!(!is_thread_dying(&stat('S', 0x40_0000), &none));
        assert!(!is_thread_dying(&stat('D', 0x40_0000), &status(1 << 14, 1 << 14)), "SIGTERM can be ignored");
        assert!(is_thread_dying(&stat('D', 0x40_0000), &status(1 << 8, 0)));
        assert!(is_thread_dying(&stat('T', 0), &status(0, 1 << 8)));
        assert!(is_thread_dying(&stat('R', 0x40_0004), &none));
        assert!(is_thread_dying(&stat('Z', 0), &none));
        assert!(!is_thread_dying("", ""));
    }

    #[test]
    fn a_process_lives_in_a_cgroup_whose_name_is_no_text() {
        let temp = tempfile::tempdir().unwrap();
        let hidden = temp.path().join(OsStr::from_bytes(b"x\xff"));
        fs::create_dir(&hidden).unwrap();
        fs::write(temp.path().join("cgroup.events"), "populated 1\n").unwrap();
        fs::write(hidden.join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        assert!(holds_living(&CgroupDir::unchecked(temp.path()).unwrap(), None));
    }

    #[test]
    fn a_process_is_started_after_what_its_tick_ends_after() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("7");
        fs::create_dir(&folder).unwrap();
        let fields = "S 1 7 7 0 -1 4194304 98 0 0 0 1 2 3 4 20 0 1 0";
        fs::write(folder.join("stat"), format!("7 (a) 9 (b) {fields} 5221 12 3\n")).unwrap();
        let tick_ms = 1_000 / rustix::param::clock_ticks_per_second();
        let begin_ms = 5_221 * tick_ms;
        let is_after = |since_ms| may_be_started_after(temp.path(), 7, since_ms);
        assert!(
            is_after(begin_ms.saturating_sub(1)) && is_after(begin_ms) && is_after(begin_ms + tick_ms - 1)
        );
        assert!(!is_after(begin_ms + tick_ms));
        assert!(may_be_started_after(temp.path(), 8, u64::MAX), "it cannot be seen");
    }

    #[test]
    fn this_process_lives_and_one_that_is_not_there_is_dead() {
        assert!(!is_dying(Path::new("/proc"), std::process::id()));
        assert!(is_dying(Path::new("/proc"), u32::MAX));
    }
}
