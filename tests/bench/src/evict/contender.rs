//! Who is measured, and how each is started. [`config`] holds the configuration of each.

mod config;

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, ensure};
use clap::ValueEnum;
use enforcer_tests::process::Process;
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use super::{
    cost,
    house::House,
    scene::{SLICE, THRESHOLD_BYTES, TIMEOUT},
    workload::Work,
};

/// A process that uses no more than this in half a second has come to rest: who starts uses all of it, and who looks
/// every millisecond some of it for ever.
const RESTING_MS: f64 = 150.0;

/// Where the contenders' configurations are written.
const CONFIGS: &str = "/tmp/bench-evict-config";

const SYSTEMD_OOMD: &str = "systemd-oomd.service";

/// One contender.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Contender {
    /// Ourselves
    Enforcer,
    /// Debian's earlyoom
    Earlyoom,
    /// Debian's nohang
    Nohang,
    /// Debian's oomd
    Oomd,
    /// Debian's systemd-oomd
    SystemdOomd,
    /// The kernel alone
    Bare,
    /// A monitor that knows whom to kill
    Floor,
}

impl std::fmt::Display for Contender {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        formatter.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// A contender at work; ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    /// None where the daemon of the house is the contender, or where there is no contender.
    process: Option<Process>,
    /// A unit that systemd runs.
    unit: Option<&'static str>,
    pid: Option<u32>,
}

impl Running {
    /// Its process, whose cost is measured; none for the bare kernel.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// An error where it has ended by itself.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(process) = &mut self.process {
            ensure!(process.lives()?, "the contender has ended by itself");
        }
        if let Some(unit) = self.unit {
            ensure!(main_pid(unit)? == self.pid, "{unit} has ended by itself");
        }
        Ok(())
    }

    /// A contender that is ended elsewhere, or none.
    fn of(pid: Option<u32>) -> Self {
        Self { process: None, unit: None, pid }
    }

    fn process(mut command: Command) -> anyhow::Result<Self> {
        let log = fs::File::create(PathBuf::from(CONFIGS).join("log"))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let process = Process::new(child);
        let pid = Some(process.id());
        let mut running = Self { process: Some(process), unit: None, pid };
        running.settle()?;
        Ok(running)
    }

    fn unit(unit: &'static str) -> anyhow::Result<Self> {
        systemctl(&["restart", unit])?;
        let mut running = Self { process: None, unit: Some(unit), pid: main_pid(unit)? };
        running.settle()?;
        Ok(running)
    }

    /// Waits until it has started: from then on it does next to nothing.
    fn settle(&mut self) -> anyhow::Result<()> {
        let Some(pid) = self.pid else { return Ok(()) };
        let start = Instant::now();
        let mut before_ms = None;
        loop {
            let reported = || fs::read_to_string(PathBuf::from(CONFIGS).join("log")).unwrap_or_default();
            self.check().with_context(reported)?;
            let now_ms = cost::cpu_ms(pid)?;
            if before_ms.is_some_and(|before_ms| now_ms - before_ms < RESTING_MS) {
                return Ok(());
            }
            before_ms = Some(now_ms);
            ensure!(start.elapsed() < TIMEOUT, "the contender does not come to rest");
            thread::sleep(Duration::from_millis(500));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(unit) = self.unit {
            // The next one to start it says what is wrong.
            drop(systemctl(&["stop", unit]));
        }
    }
}

impl Contender {
    /// Whether it is the daemon of the house.
    pub(crate) fn is_daemon(self) -> bool {
        self == Self::Enforcer
    }

    /// Says how its unit is scheduled, if it is one. Once, before anything of systemd's is made: reading units again takes
    /// away empty cgroups that systemd made.
    pub(crate) fn prepare(self) -> anyhow::Result<()> {
        if self != Self::SystemdOomd {
            return Ok(());
        }
        let folder = format!("/run/systemd/system/{SYSTEMD_OOMD}.d");
        fs::create_dir_all(&folder)?;
        fs::write(format!("{folder}/bench.conf"), config::SYSTEMD_OOMD_UNIT)?;
        systemctl(&["daemon-reload"]).map(drop)
    }

    /// Starts it before there is any pod. The daemon is there already, and the floor must know the pods' cgroups.
    pub(crate) fn start(self, house: &House) -> anyhow::Result<Running> {
        fs::create_dir_all(CONFIGS)?;
        match self {
            Self::Enforcer => Ok(Running::of(house.daemon())),
            Self::Bare | Self::Floor => Ok(Running::of(None)),
            Self::Earlyoom => {
                let threshold = config::earlyoom(THRESHOLD_BYTES);
                Running::process(scored("0", &["/usr/bin/earlyoom", "-M", &threshold, "-r", "3600"])?)
            }
            Self::Nohang => {
                let packaged = fs::read_to_string(config::NOHANG_PACKAGED)
                    .with_context(|| format!("cannot read {}", config::NOHANG_PACKAGED))?;
                let file = written("nohang.conf", &config::nohang(&packaged, THRESHOLD_BYTES)?)?;
                let words = ["/usr/bin/python3.11", "/usr/sbin/nohang", "--monitor", "--config", &file];
                Running::process(scored("0", &words)?)
            }
            // Until it is known what the pods hold.
            Self::Oomd => oomd(u64::MAX >> 20),
            Self::SystemdOomd => {
                let drop_in = "/run/systemd/oomd.conf.d";
                fs::create_dir_all(drop_in)?;
                fs::write(format!("{drop_in}/bench.conf"), config::SYSTEMD_OOMD)?;
                for setting in config::SYSTEMD_SLICE {
                    systemctl(&["set-property", "--runtime", SLICE, setting])?;
                }
                Running::unit(SYSTEMD_OOMD)
            }
        }
    }

    /// Starts what must know the pods' cgroups.
    pub(crate) fn start_among(self, house: &House, work: &Work, running: Running) -> anyhow::Result<Running> {
        if self != Self::Floor {
            return Ok(running);
        }
        let own = std::env::current_exe().context("cannot find this program")?;
        let mut words = vec![own.display().to_string(), "evict".into(), "floor".into(), "--threshold".into()];
        words.push(THRESHOLD_BYTES.to_string());
        for victim in work.expected {
            words.extend(["--kill".into(), house.folder(victim)?.display().to_string()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Running::process(scored("-999", &words)?)
    }

    /// Starts it anew where it must know what the pods hold at rest, and how much is available then.
    ///
    /// oomd knows no `MemAvailable`: its configuration says how much the pods hold when the threshold is reached.
    pub(crate) fn start_at_rest(
        self,
        held_bytes: u64,
        available_bytes: u64,
        running: Running,
    ) -> anyhow::Result<Running> {
        if self != Self::Oomd {
            return Ok(running);
        }
        drop(running);
        oomd(held_bytes + available_bytes.saturating_sub(THRESHOLD_BYTES))
    }
}

/// Starts oomd: whoever it looks after may hold that much.
fn oomd(pods_bytes: u64) -> anyhow::Result<Running> {
    let file = written("oomd.json", &config::oomd(SLICE, pods_bytes))?;
    Running::process(scored("0", &["/usr/bin/oomd", "--interval", "1", "--config", &file])?)
}

/// A program with the score that its package's own unit gives it, scheduled as all contenders are.
fn scored(score: &str, words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["evict", "as", "--score", score, "--"]).args(words);
    Ok(command)
}

/// Takes a score and the lowest real-time priority, and becomes a program.
#[derive(Debug, clap::Args)]
pub(crate) struct Become {
    /// Its `oom_score_adj`
    #[arg(long, allow_negative_numbers = true)]
    score: i16,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    words: Vec<String>,
}

impl Become {
    pub(crate) fn carry_out(&self) -> anyhow::Result<()> {
        fs::write("/proc/self/oom_score_adj", self.score.to_string()).context("cannot take the score")?;
        let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
        set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
            .map_err(|error| anyhow!("cannot take a real-time priority: {error:?}"))?;
        let (program, arguments) = self.words.split_first().context("there is no program")?;
        Err(Command::new(program).args(arguments).exec()).with_context(|| format!("cannot run {program}"))
    }
}

/// Writes a configuration, and answers where.
fn written(name: &str, text: &str) -> anyhow::Result<String> {
    let path = format!("{CONFIGS}/{name}");
    fs::write(&path, text).with_context(|| format!("cannot write {path}"))?;
    Ok(path)
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output();
    let output = output.context("cannot run systemctl: the guest's init must be systemd")?;
    let reported = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "systemctl {}: {}: {reported}", arguments.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main_pid(unit: &str) -> anyhow::Result<Option<u32>> {
    let pid: u32 = systemctl(&["show", "--property=MainPID", "--value", unit])?.parse()?;
    Ok((pid > 0).then_some(pid))
}
