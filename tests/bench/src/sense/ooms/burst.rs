//! One series of kills, from the processes that die to the events that report them.
use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    kernel_log::KernelLog,
    plan::folder,
    trace::{Trace, Watched},
};

use super::{
    pool::{Container, Pool},
    reader::{Line, Reader},
    tally::Tally,
};

/// What dies: it takes all that it is given.
const EATER: &str = "exec tail /dev/zero";
const GATE: &str = "/tmp/bench-ooms/gate";
/// Emulated guests are slow.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Every incident closes a second after its first mark at the latest.
const SETTLED: Duration = Duration::from_secs(3);

/// A series of kills under way.
#[derive(Debug)]
pub(super) struct Burst<'a> {
    pool: &'a Pool,
    reader: &'a Reader,
    trace: Trace,
    log: KernelLog,
    kills_before: u64,
    /// The container of each process.
    started: HashMap<u32, Container>,
    /// When each was marked, by the kernel's own trace.
    marked_us: HashMap<u32, u64>,
    logged: Vec<String>,
    batches: usize,
    took: Duration,
}

impl<'a> Burst<'a> {
    pub(super) fn begin(pool: &'a Pool, reader: &'a Reader) -> anyhow::Result<Self> {
        reader.take();
        Ok(Self {
            pool,
            reader,
            trace: Trace::record(&[Watched::Event("oom/mark_victim", "")])?,
            log: KernelLog::from_now_on()?,
            kills_before: pool.kills()?,
            started: HashMap::new(),
            marked_us: HashMap::new(),
            logged: Vec::new(),
            batches: 0,
            took: Duration::ZERO,
        })
    }

    /// Has a process in each of these containers run into the limit, all at once.
    pub(super) fn kill(&mut self, numbers: std::ops::Range<usize>) -> anyhow::Result<()> {
        let containers = self.pool.containers();
        let gate = Gate::make(self.batches)?;
        self.batches += 1;
        let mut children = Vec::new();
        for number in numbers {
            let container = containers.get(number % containers.len()).context("no containers")?;
            let child = gate.start(container)?;
            self.started.insert(child.id(), container.clone());
            children.push(child);
        }
        let begin = Instant::now();
        // Held open: one that comes late must not wait for another opening.
        let _opened = gate.open(children.len())?;
        for child in &mut children {
            wait(child)?;
            // The log is read as fast as it grows, as those do who live by it.
            self.logged.extend(self.log.victims()?);
        }
        self.took += begin.elapsed();
        for seen in self.trace.seen()? {
            if let Some(tid) = seen.fields.strip_prefix("pid=").and_then(|rest| rest.split(' ').next()) {
                self.marked_us.insert(tid.parse()?, seen.time_us);
            }
        }
        self.trace.clear()
    }

    /// Has so many run into their limits, as many at once as there are containers.
    pub(super) fn kill_all(&mut self, count: usize) -> anyhow::Result<()> {
        let mut done = 0;
        while done < count {
            let next = count.min(done + self.pool.containers().len());
            self.kill(done..next)?;
            done = next;
        }
        Ok(())
    }

    /// Waits until everything must have been reported, and compares.
    pub(super) fn end(mut self) -> anyhow::Result<Tally> {
        let lines = self.settle();
        self.logged.extend(self.log.victims()?);
        let killed = self.pool.kills()? - self.kills_before;
        ensure!(
            usize::try_from(killed)? >= self.started.len(),
            "the kernel killed {killed} of {}",
            self.started.len()
        );
        Tally::new(
            killed,
            &self.started,
            &self.marked_us,
            &lines,
            self.logged.len(),
            self.took,
            self.batches == self.started.len(),
        )
    }

    /// All lines, once none has come for as long as an incident may take.
    fn settle(&self) -> Vec<Line> {
        let begin = Instant::now();
        let mut lines = self.reader.take();
        let mut quiet = Instant::now();
        while quiet.elapsed() < SETTLED && begin.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(50));
            let more = self.reader.take();
            if !more.is_empty() {
                quiet = Instant::now();
                lines.extend(more);
            }
        }
        lines
    }
}

/// What holds the processes until all are there.
struct Gate {
    path: PathBuf,
}

impl Gate {
    fn make(number: usize) -> anyhow::Result<Self> {
        let path = PathBuf::from(format!("{GATE}{number}"));
        let status = Command::new("mkfifo").arg(&path).status().context("cannot run mkfifo")?;
        ensure!(status.success(), "mkfifo {}: {status}", path.display());
        Ok(Self { path })
    }

    /// Starts one that waits here and joins its container as it goes on.
    fn start(&self, container: &Container) -> anyhow::Result<Child> {
        let procs = folder(&container.cgroup).join("cgroup.procs");
        let script =
            format!("read line < {}; echo 0 > {} || exit 1; {EATER}", self.path.display(), procs.display());
        let mut command = Command::new("sh");
        let command = command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().context("cannot start sh")
    }

    fn open(&self, waiting: usize) -> anyhow::Result<File> {
        let mut gate = OpenOptions::new().write(true).open(&self.path)?;
        gate.write_all("go\n".repeat(waiting).as_bytes()).context("cannot open the gate")?;
        Ok(gate)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A fresh guest has none.
        drop(fs::remove_file(&self.path));
    }
}

fn wait(child: &mut Child) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.signal() == Some(9), "a process was to be killed and ended with {status}");
            return Ok(());
        }
        ensure!(begin.elapsed() < TIMEOUT, "process {} lives after {TIMEOUT:?}", child.id());
        thread::sleep(Duration::from_millis(1));
    }
}
