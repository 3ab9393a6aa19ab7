//! OOM kills in the kernel's log, which other tools use.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
};

use anyhow::Context as _;
use rustix::fs::{OFlags, SeekFrom, seek};

const LOG: &str = "/dev/kmsg";

/// The longest record that the kernel hands out.
const RECORD_BYTES: usize = 8192;

/// The kernel's log from some moment on.
#[derive(Debug)]
pub struct KernelLog(File);

impl KernelLog {
    /// From now on.
    pub fn from_now_on() -> anyhow::Result<Self> {
        let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
        let log = OpenOptions::new().read(true).custom_flags(flags).open(LOG);
        let log = log.with_context(|| format!("cannot open {LOG}"))?;
        seek(&log, SeekFrom::End(0)).with_context(|| format!("cannot go to the end of {LOG}"))?;
        Ok(Self(log))
    }

    /// The victims' cgroups that the lines since the last call name, each as often as they do. What was overwritten
    /// before it was read is not among them.
    pub fn victims(&mut self) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut record = vec![0; RECORD_BYTES];
        loop {
            match self.0.read(&mut record) {
                Ok(0) => return Ok(found),
                Ok(length) => found.extend(victim(&String::from_utf8_lossy(&record[..length]))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(found),
                // The reader was overtaken; the next read returns the oldest record that is left.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read {LOG}")),
            }
        }
    }
}

/// The cgroup in `4,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/a,task_memcg=/a,task=tail,pid=7,uid=0`.
fn victim(record: &str) -> Option<String> {
    let (_, reported) = record.split_once(";oom-kill:")?;
    let (_, cgroup) = reported.split_once("task_memcg=")?;
    Some(cgroup.split(',').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::victim;

    #[test]
    fn a_victims_cgroup_is_found() {
        let record = "4,5,6,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                      oom_memcg=/p,task_memcg=/p/c1,task=tail,pid=7,uid=0\n";
        assert_eq!(victim(record).as_deref(), Some("/p/c1"));
        assert_eq!(victim("4,5,6,-;Memory cgroup out of memory: Killed process 7 (tail)"), None);
    }
}
