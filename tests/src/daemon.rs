//! A real daemon in a folder of its own.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer::sense;
use serde_json::Value;

use crate::{
    process::{Process, wait_for_end},
    replay,
    stream::Stream,
    wait::TIMEOUT,
};

/// How often it is asked whether it is ready, or what it has decided: on an emulated machine each answer costs it time that it
/// needs to come to that.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running daemon; it is killed when this is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Daemon {
    /// Starts `enforcer run` with its files in `folder`, which is created, and waits until it is ready.
    ///
    /// `settings` are further lines of the configuration, at its top level; the cgroups are its own unless they say
    /// otherwise.
    pub fn start(folder: &Path, settings: &str) -> anyhow::Result<Self> {
        Self::start_with(folder, settings, &[])
    }

    /// The same, with options of `enforcer run`.
    pub fn start_with(folder: &Path, settings: &str, options: &[&str]) -> anyhow::Result<Self> {
        let mut daemon = Self::launch_with(folder, settings, &[], options)?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// The same without waiting, through a command that executes its further arguments, such as `nice`; `None` runs the
    /// daemon directly.
    pub fn launch(folder: &Path, settings: &str, wrapper: &[&str]) -> anyhow::Result<Self> {
        Self::launch_with(folder, settings, wrapper, &[])
    }

    fn launch_with(
        folder: &Path,
        settings: &str,
        wrapper: &[&str],
        options: &[&str],
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("pods"))
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let shown = folder.display();
        let ownership = if settings.contains("ownership:") { "" } else { "ownership: enforcer\n" };
        let config = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n{ownership}\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{settings}\n"
        );
        fs::write(folder.join("config.yaml"), config)?;
        // Kills from before this daemon must not be in its journal. If another daemon runs, it keeps its pins.
        if !folder.join("state").exists() {
            drop(sense::unpin());
        }
        Self::spawn(folder, wrapper, options)
    }

    fn spawn(folder: &Path, wrapper: &[&str], options: &[&str]) -> anyhow::Result<Self> {
        let log = File::create(folder.join("log"))?;
        let child = wrapped(wrapper, folder)
            .arg("run")
            .args(options)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run enforcer: is it on the PATH?")?;
        Ok(Self { child, folder: folder.to_owned() })
    }

    /// Kills it, and starts the next one with the same configuration at once, while the kernel still ends the killed
    /// one; then waits until the first is gone and the second is ready. Returns how long the second took after the
    /// first.
    pub fn succeed(&mut self) -> anyhow::Result<Duration> {
        self.child.kill()?;
        let next = Self::spawn(&self.folder, &[], &[])?;
        // It is waited for.
        drop(std::mem::replace(self, next));
        let end = Instant::now();
        self.wait_until_ready()?;
        Ok(end.elapsed())
    }

    /// Waits until it is ready.
    pub fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.is_ready()? {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the daemon ended with {status}:\n{}", self.log());
            }
            ensure!(start.elapsed() < TIMEOUT, "the daemon is not ready after {TIMEOUT:?}:\n{}", self.log());
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Whether it says that it is ready; false also if nothing listens yet, or the connection is closed.
    pub fn is_ready(&self) -> io::Result<bool> {
        const NOT_YET: [io::ErrorKind; 4] = [
            io::ErrorKind::NotFound,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
        ];
        match self.get("/readyz") {
            Ok(answer) => Ok(answer.starts_with("HTTP/1.0 200")),
            Err(error) if NOT_YET.contains(&error.kind()) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The whole answer of its observe socket, head and all.
    pub fn get(&self, path: &str) -> io::Result<String> {
        use io::{Read as _, Write as _};
        let mut socket = std::os::unix::net::UnixStream::connect(self.folder.join("run/observe.sock"))?;
        socket.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The folder of all its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of its manifests.
    #[must_use]
    pub fn pods(&self) -> PathBuf {
        self.folder.join("pods")
    }

    /// Writes a manifest, or replaces it in one step.
    pub fn manifest(&self, name: &str, yaml: &str) -> anyhow::Result<()> {
        let pods = self.pods();
        let fresh = pods.join(format!(".{name}.new"));
        fs::write(&fresh, yaml)?;
        fs::rename(fresh, pods.join(name)).with_context(|| format!("cannot place the manifest {name}"))
    }

    /// Removes a manifest.
    pub fn remove_manifest(&self, name: &str) -> anyhow::Result<()> {
        fs::remove_file(self.pods().join(name)).with_context(|| format!("cannot remove {name}"))
    }

    /// Waits until it has made the cgroups of a pod whose manifest was just added, or has refused to. `enforcer exec`
    /// gives up after seconds, which may be too short on an emulated machine.
    pub fn wait_until_decided(&self, target: &str) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut parts = target.split('/');
        let (namespace, name) = (parts.next(), parts.next());
        loop {
            let answer = self.get("/v1/pods")?;
            let (_, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
            let view: Value = serde_json::from_str(body).with_context(|| format!("{answer:?}"))?;
            let mut pods = view["pods"].as_array().into_iter().flatten();
            let pod = pods.find(|pod| pod["namespace"].as_str() == namespace && pod["name"].as_str() == name);
            // A scope that systemd makes exists from its first process on.
            let stands = |container: &Value| {
                container["cgroupId"].is_u64()
                    || container["cgroup"]
                        .as_str()
                        .is_some_and(|path| Path::new(path).extension() == Some("scope".as_ref()))
            };
            let is_decided = pod.is_some_and(|pod| match pod["state"].as_str() {
                Some("active") => pod["containers"].as_array().into_iter().flatten().all(stands),
                state => state != Some("pending"),
            });
            if is_decided {
                return Ok(());
            }
            ensure!(start.elapsed() < TIMEOUT, "no cgroups of {target} after {TIMEOUT:?}: {view}");
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Runs a command in a container, once that exists: `target` is `namespace/pod` or `namespace/pod/container`.
    pub fn exec(&self, target: &str, arguments: &[&str]) -> anyhow::Result<Child> {
        self.wait_until_decided(target)?;
        command(&self.folder)
            .args(["exec", target, "--"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run enforcer exec {target}"))
    }

    /// The same with a load, and waits until it says that it is ready.
    pub fn exec_until_ready(&self, target: &str, arguments: &[&str]) -> anyhow::Result<Process> {
        self.wait_until_decided(target)?;
        let mut child = self
            .verb(&["exec", target, "--"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run enforcer exec {target}"))?;
        let mut lines = BufReader::new(child.stdout.take().context("its output is not piped")?);
        let mut line = String::new();
        while !line.contains(r#""state":"ready""#) {
            line.clear();
            ensure!(lines.read_line(&mut line)? > 0, "{target}: {arguments:?} ended before it was ready");
        }
        // Kept open: a load whose reports no process reads dies of SIGPIPE.
        child.stdout = Some(lines.into_inner());
        Ok(Process::new(child))
    }

    /// Holds memory in a container: `size` bytes, or as `64Mi`.
    pub fn hold(&self, target: &str, size: &str) -> anyhow::Result<Process> {
        self.exec_until_ready(target, &["workload", "hold", "--huge", "--size", size])
    }

    /// A verb of the command line, with this daemon's configuration.
    #[must_use]
    pub fn verb(&self, arguments: &[&str]) -> Command {
        let mut command = command(&self.folder);
        command.args(arguments);
        command
    }

    /// All events, of which none may be missing.
    pub fn events(&self) -> anyhow::Result<Vec<Value>> {
        let output = self.verb(&["-o", "jsonl", "events"]).output()?;
        let lines = String::from_utf8(output.stdout)?;
        let events: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let mut expected = None;
        for event in &events {
            let sequence: u64 = event["sequence"].as_str().context("no sequence")?.parse()?;
            ensure!(expected.is_none_or(|expected| expected == sequence), "{expected:?} is missing: {event}");
            expected = Some(sequence + 1);
        }
        Ok(events)
    }

    /// Follows the event stream from its beginning.
    pub fn follow(&self) -> anyhow::Result<Stream> {
        Stream::follow(self.verb(&["-o", "jsonl", "events", "-f"]))
    }

    /// Waits until it has ended.
    pub fn wait_for_end(&mut self) -> anyhow::Result<ExitStatus> {
        wait_for_end(&mut self.child, TIMEOUT)
            .with_context(|| format!("the daemon still runs:\n{}", self.log()))
    }

    /// The process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    /// Its resident memory in bytes, by `VmRSS` of /proc.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .context("/proc/<pid>/status has no VmRSS")?;
        Ok(kib * 1024)
    }

    /// Asks it to stop, and waits for it. A replay must then give the same decisions.
    pub fn stop(self) -> anyhow::Result<()> {
        self.stop_and_replay().map(|_| ())
    }

    /// The same; returns how many decisions were replayed.
    pub fn stop_and_replay(mut self) -> anyhow::Result<usize> {
        rustix::process::kill_process(rustix_pid(&self.child)?, rustix::process::Signal::TERM)?;
        let status = wait_for_end(&mut self.child, TIMEOUT)
            .with_context(|| format!("the daemon does not stop:\n{}", self.log()))?;
        ensure!(status.success(), "the daemon ended with {status}:\n{}", self.log());
        replay::check(&self)
    }
}

fn rustix_pid(child: &Child) -> anyhow::Result<rustix::process::Pid> {
    let raw = i32::try_from(child.id()).context("a pid beyond i32")?;
    rustix::process::Pid::from_raw(raw).context("pid 0")
}

impl Drop for Daemon {
    #[expect(clippy::print_stderr, reason = "the test runner shows it beside the panic")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the log of the daemon in {}:\n{}", self.folder.display(), end_of(&self.log()));
        }
        // It may have ended already, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The last lines of a log.
fn end_of(log: &str) -> &str {
    const LINES: usize = 200;
    log.rmatch_indices('\n').nth(LINES).and_then(|(at, _)| log.get(at + 1..)).unwrap_or(log)
}

fn command(folder: &Path) -> Command {
    wrapped(&[], folder)
}

fn wrapped(wrapper: &[&str], folder: &Path) -> Command {
    let mut words = wrapper.iter().chain(&["enforcer"]);
    let mut command = Command::new(words.next().unwrap_or(&"enforcer"));
    command.args(words).arg("--config").arg(folder.join("config.yaml"));
    command
}
