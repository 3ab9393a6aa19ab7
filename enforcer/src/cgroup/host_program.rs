//! Finds a program among the processes of the host, again and again.

use std::{path::Path, time::Instant};

use super::{
    process::{Process, Processes},
    recent::Recent,
};

/// A program of the host, known by its file name.
#[derive(Debug)]
pub struct HostProgram {
    processes: Processes,
    name: String,
    recent: Recent,
    /// The process that the last search found.
    found: Option<u32>,
}

impl HostProgram {
    /// The program of that file name, to be found below `proc`.
    pub fn new(proc: &Path, name: &str) -> rustix::io::Result<Self> {
        let processes = Processes::open(proc)?;
        Ok(Self { processes, name: name.to_owned(), recent: Recent::default(), found: None })
    }

    /// A process of the host that runs it, under any user; `None` if there is none. After the first two searches only
    /// processes are looked at that were started since, and now and then all.
    ///
    /// Fails if /proc or process 1 cannot be read.
    pub fn find(&mut self, now: Instant) -> rustix::io::Result<Option<u32>> {
        let init = self.processes.get(1)?;
        self.find_where(now, |process| {
            Ok(!process.is_below_kubepods()? && process.runs_program_of(&init, false)?)
        })
    }

    fn find_where(
        &mut self,
        now: Instant,
        is_hosts: impl Fn(&Process) -> rustix::io::Result<bool>,
    ) -> rustix::io::Result<Option<u32>> {
        let (processes, name) = (&self.processes, &self.name);
        // A process that cannot be identified is none.
        let runs_it = |pid: &u32| {
            if !processes.may_run(*pid, |program| program == name) {
                return false;
            }
            let process = processes.get(*pid);
            let is_it = |process: Process| {
                Ok(process.executable()?.is_some_and(|program| program == *name) && is_hosts(&process)?)
            };
            process.and_then(is_it).unwrap_or(false)
        };
        if let Some(pid) = self.found.take() {
            if runs_it(&pid) {
                self.found = Some(pid);
                return Ok(self.found);
            }
            // Another process may run it too.
            self.recent = Recent::default();
        }
        let newest = processes.newest().ok();
        if !self.recent.wants_look(newest, now) {
            return Ok(None);
        }
        let since = self.recent.look(newest, now);
        self.found = processes.started(since, newest)?.into_iter().find(runs_it);
        Ok(self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{components::tests::Running, recent::AT_THE_LATEST},
        *,
    };

    #[test]
    fn a_program_is_found_while_it_runs() {
        let now = Instant::now();
        let mut program = HostProgram::new(Path::new("/proc"), "enforcer-searched").unwrap();
        let mut find = |now| program.find_where(now, |_| Ok(true)).unwrap();
        assert_eq!(find(now), None);
        let running = Running::start("enforcer-searched");
        // It may have been started before it runs that program.
        assert_eq!(find(now + AT_THE_LATEST), Some(running.id()));
        assert_eq!(find(now + AT_THE_LATEST), Some(running.id()));
        let other = Running::start("enforcer-searched");
        drop(running);
        assert_eq!(find(now + AT_THE_LATEST), Some(other.id()), "another one, which was not looked for");
        drop(other);
        assert_eq!(find(now + AT_THE_LATEST), None);
    }
}
