//! A session of an operator in a terminal, of which the project's pictures are made: a node runs short, the right pod is
//! evicted, and the operator asks why.
//!
//! It runs in a guest with the real daemon in `enforce` and a shell in a real terminal, whose keys are pressed by this program.
//! It prints JSON lines: what the terminal got and when, then the report as a page. Nothing is printed unless the session went as it
//! should.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the caller reads what it prints")]

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use enforcer_tests::{
    daemon::Daemon,
    kernel,
    pods::{Container, pod},
    process::Process,
    stream::{Stream, is},
};
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::json;

/// The terminal. From 30 rows on, `enforcer top` draws the memory as a bar.
const SIZE: Winsize = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
const THRESHOLD: &str = "200Mi";
const PROMPT: &[u8] = b"# ";
/// Emulated guests are slow.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Between two keys.
const KEY: Duration = Duration::from_millis(55);
/// To read a screen.
const SCREEN: Duration = Duration::from_millis(3_500);
/// To see that something has changed.
const GLANCE: Duration = Duration::from_millis(1_200);

fn main() -> ExitCode {
    match play() {
        Ok(lines) => {
            println!("{lines}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn play() -> anyhow::Result<String> {
    let folder = Path::new("/tmp/session");
    let daemon =
        Daemon::start(folder, &format!("mode: enforce\nevictionHard:\n  memory.available: {THRESHOLD}"))?;
    // The operator's commands name no configuration.
    fs::create_dir_all("/etc/enforcer")?;
    fs::copy(folder.join("config.yaml"), "/etc/enforcer/config.yaml")?;
    let mut stream = daemon.follow()?;
    let mut spared = cast(&daemon, &mut stream)?;
    let killed_before = kernel::vmstat("oom_kill")?;

    let mut terminal = Terminal::open()?;
    terminal.until(0, PROMPT)?;
    terminal.clear()?;
    thread::sleep(GLANCE);
    let mut at = terminal.enter("enforcer status")?;
    terminal.until(at, PROMPT)?;
    thread::sleep(SCREEN);
    at = terminal.enter("enforcer top --interval 1s")?;
    terminal.until(at, b"default/batch")?;
    let mut batch = daemon.exec("default/batch", &["workload", "ramp", "--rate", "100Mi"])?;
    stream.wait_for("eviction.completed", TIMEOUT, |event| is(event, "eviction.completed"))?;
    thread::sleep(SCREEN);
    at = terminal.press("q")?;
    terminal.until(at, PROMPT)?;
    thread::sleep(GLANCE);
    at = terminal.enter("enforcer why batch")?;
    terminal.until(at, PROMPT)?;
    thread::sleep(GLANCE);
    let outputs = terminal.close();

    stream.drain(Duration::from_secs(1));
    ensure!(stream.of("eviction.decided").count() == 1, "more than one eviction was decided");
    ensure!(
        stream.of("eviction.completed").all(|event| event["subject"] == "default/batch"),
        "another pod than default/batch was evicted"
    );
    let killed_by_kernel = kernel::vmstat("oom_kill")? - killed_before;
    ensure!(killed_by_kernel == 0, "the kernel's OOM killer was faster: {killed_by_kernel} kills");
    for process in &mut spared {
        ensure!(process.lives()?, "process {} of a pod that was to be spared has ended", process.id());
    }
    let report = daemon.verb(&["-o", "html", "report"]).output().context("cannot run enforcer report")?;
    ensure!(report.status.success(), "enforcer report: {}", String::from_utf8_lossy(&report.stderr));
    let page = String::from_utf8(report.stdout).context("the report is no UTF-8")?;
    drop(batch.kill());
    batch.wait()?;
    drop(spared);
    daemon.stop()?;

    let rows = json!({"rows": SIZE.ws_row, "columns": SIZE.ws_col}).to_string();
    let outputs = outputs.iter().map(|(ms, bytes)| json!({"ms": ms, "bytes": bytes}).to_string());
    let lines: Vec<_> =
        [rows].into_iter().chain(outputs).chain([json!({"report": page}).to_string()]).collect();
    Ok(lines.join("\n"))
}

/// The pods: three with their processes, of which one has met the limit of a container, and `batch`, whose process comes later.
fn cast(daemon: &Daemon, stream: &mut Stream) -> anyhow::Result<Vec<Process>> {
    let one = |requests, limits| [Container { name: "app", requests, limits }];
    for (name, container) in [
        ("db", one("cpu: 100m, memory: 256Mi", "cpu: 100m, memory: 256Mi")),
        ("web", one("memory: 300Mi", "memory: 400Mi")),
        ("cache", one("memory: 100Mi", "")),
        ("batch", one("", "")),
    ] {
        daemon.manifest(&format!("{name}.yaml"), &pod(name, 0, &container))?;
        stream.wait_for_pod("limits.applied", &format!("default/{name}"), TIMEOUT)?;
    }
    let mut over = daemon.exec("default/web", &["workload", "spike", "--size", "600Mi"])?;
    stream.wait_for_pod("oom.incident", "default/web", TIMEOUT)?;
    over.wait()?;
    [("db", "200Mi"), ("web", "240Mi"), ("cache", "250Mi")]
        .iter()
        .map(|(name, size)| {
            daemon.exec_until_ready(&format!("default/{name}"), &["workload", "hold", "--size", size])
        })
        .collect()
}

/// What the terminal got: milliseconds since its start, and the bytes.
type Outputs = Vec<(u64, Vec<u8>)>;

/// A shell in a terminal.
struct Terminal {
    controller: File,
    shell: Child,
    outputs: Arc<Mutex<Outputs>>,
}

impl Terminal {
    fn open() -> anyhow::Result<Self> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let end = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        tcsetwinsize(&end, SIZE)?;
        let controller = File::from(controller);
        let outputs = Arc::<Mutex<Outputs>>::default();
        let (mut reader, kept) = (controller.try_clone()?, Arc::clone(&outputs));
        let start = Instant::now();
        thread::spawn(move || {
            let mut chunk = [0; 16 * 1024];
            while let Ok(count @ 1..) = reader.read(&mut chunk) {
                let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let bytes = chunk.get(..count).unwrap_or_default().to_vec();
                kept.lock().unwrap_or_else(PoisonError::into_inner).push((ms, bytes));
            }
        });
        // A session of its own, whose terminal this is.
        let shell = Command::new("setsid")
            .args(["-c", "sh", "-i"])
            .env("TERM", "xterm-256color")
            .env("PS1", "# ")
            .env("HOME", "/tmp")
            .env_remove("NO_COLOR")
            .stdin(Stdio::from(end.try_clone()?))
            .stdout(Stdio::from(end.try_clone()?))
            .stderr(Stdio::from(end))
            .spawn()
            .context("cannot start a shell in a terminal")?;
        Ok(Self { controller, shell, outputs })
    }

    /// All that the terminal got.
    fn text(&self) -> Vec<u8> {
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        outputs.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect()
    }

    /// Waits until the terminal got `wanted`, behind the first `after` bytes.
    fn until(&self, after: usize, wanted: &[u8]) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let text = self.text();
            let new = text.get(after..).unwrap_or_default();
            if new.windows(wanted.len()).any(|window| window == wanted) {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!(
                    "the terminal shows no {:?} but {:?}",
                    String::from_utf8_lossy(wanted),
                    String::from_utf8_lossy(new)
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types a line as a person does. Returns how many bytes the terminal had got before its end was entered.
    fn enter(&mut self, line: &str) -> anyhow::Result<usize> {
        for key in line.chars() {
            self.controller.write_all(key.encode_utf8(&mut [0; 4]).as_bytes())?;
            thread::sleep(KEY);
        }
        self.press("\r")
    }

    /// Presses a key. Returns how many bytes the terminal had got before.
    fn press(&mut self, key: &str) -> anyhow::Result<usize> {
        let at = self.text().len();
        self.controller.write_all(key.as_bytes())?;
        Ok(at)
    }

    /// Clears the screen with what the shell says at its start, and forgets that.
    fn clear(&mut self) -> anyhow::Result<()> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let at = self.press("\x0c")?;
        self.until(at, PROMPT)
    }

    /// Ends the shell; returns what the terminal got until then.
    fn close(mut self) -> Outputs {
        let outputs = self.outputs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        drop(self.shell.kill());
        drop(self.shell.wait());
        outputs
    }
}
