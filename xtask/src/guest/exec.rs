//! Boots a guest, runs one script in it, and carries its output and status back.
use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{
    failure::{Failure, GUEST_DIED, NOT_READY, PIPE_CLOSED, TIMED_OUT},
    guest::{
        Guests, Init,
        cpus::Cpus,
        initramfs::{self, FileToAdd},
        kernel::Kernel,
        machine::{Clock, Machine, prefixed},
        relay::{self, Event, Stream},
        report::Report,
    },
    run::last_lines,
};

/// How many lines of a failed guest's console are shown.
const CONSOLE_LINES: usize = 40;

/// A machine that takes longer to boot never will: emulated beside others it takes ten to thirty seconds.
const READY: Duration = Duration::from_mins(5);

/// How long output that the guest has sent may take to arrive after its end.
const LAST_BYTES: Duration = Duration::from_secs(20);

/// One run of a guest.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) init: Init,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: Cpus,
    pub(crate) clock: Clock,
    /// From the start of the machine.
    pub(crate) timeout: Duration,
    /// Parameters of the kernel, beside those that every guest has.
    pub(crate) boot: &'a [String],
    pub(crate) files: &'a [FileToAdd],
    pub(crate) script: &'a [u8],
}

impl Run<'_> {
    /// Runs the script and returns its exit status; its streams go to the two sinks as they come.
    pub(crate) fn exec(
        &self,
        guests: &Guests,
        out: Box<dyn Write + Send>,
        err: Box<dyn Write + Send>,
    ) -> anyhow::Result<u8> {
        let folder = tempfile::Builder::new().prefix("enforcer-guest-").tempdir()?;
        let at = |name: &str| folder.path().join(name);
        let (bases, kernel_arguments) = guests.bases(self.kernel, self.init)?;
        let programs = guests.programs_of(self.init);
        let script = self.init.script(self.script);
        let files = [guests.files_of(self.init), self.files].concat();
        initramfs::write_run(&at("initrd"), &bases, self.init.root(), &programs, &files, &script)?;

        let (events, inbox) = channel();
        let out = Stream::listen(&at("out"), out, events.clone())?;
        let err = Stream::listen(&at("err"), err, events.clone())?;
        let report = relay::listen_for_report(&at("report"), events.clone())?;

        let console = Console::create(guests, self.kernel, self.init)?;
        let Self { kernel, memory_mib, cpus, clock, .. } = *self;
        let machine = Machine { kernel, accelerator: guests.accelerator, memory_mib, cpus, clock };
        let mut command = machine.command(&guests.qemu, &console.path, kernel_arguments, self.boot);
        command.arg("-initrd").arg(at("initrd")).args(["-device", "virtio-serial-pci"]);
        for port in ["report", "out", "err"] {
            command.arg("-chardev").arg(prefixed(&format!("socket,id={port},path="), &at(port)));
            command.args(["-device", &format!("virtserialport,chardev={port},name=enforcer.{port}")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(console.append()?);
        let begin = Instant::now();
        let child = command.spawn().context("cannot start QEMU through setpriv")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("QEMU has no pid")?;
        // Good even after the waiter has reaped it.
        let machine = pidfd_open(pid, PidfdFlags::empty()).context("cannot hold QEMU's process")?;
        let waiter = wait_for(child, events)?;

        let end = watch(&inbox, || (out.carried_bytes(), err.carried_bytes()), begin, self.timeout);
        match pidfd_send_signal(&machine, Signal::KILL) {
            // It may have ended by itself.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error).context("cannot end QEMU"),
        }
        drop(waiter.join());
        out.finish(&at("out"));
        err.finish(&at("err"));
        drop(std::os::unix::net::UnixStream::connect(at("report")));
        drop(report.join());
        console.close(end, self)
    }
}

/// How a run ended, as seen from here.
#[derive(Debug)]
enum End {
    Exit(u8),
    NotReady,
    /// The emulator failed, or the guest's kernel did, before the script began.
    DiedBooting,
    TimedOut,
    Died,
    Broken(anyhow::Error),
}

/// Waits for the end of a run; `carried_bytes` is how much of the script's two streams has arrived.
fn watch(
    inbox: &Receiver<Event>,
    carried_bytes: impl Fn() -> (u64, u64),
    begin: Instant,
    timeout: Duration,
) -> End {
    let mut deadline = begin + timeout.min(READY);
    let (mut is_ready, mut exit) = (false, None);
    loop {
        if let Some((status, out_bytes, err_bytes)) = exit {
            let carried = carried_bytes();
            if carried.0 >= out_bytes && carried.1 >= err_bytes {
                return End::Exit(status);
            }
        }
        match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Event::Report(line)) => match line.parse() {
                Ok(Report::Ready(_)) => {
                    is_ready = true;
                    deadline = begin + timeout;
                }
                // Missing parts of the guest are reported beside the script's own output.
                Ok(Report::Warning(text)) => drop(writeln!(io::stderr(), "guest: {text}")),
                Ok(Report::Exit { status, out_bytes, err_bytes }) => {
                    exit = Some((status, out_bytes, err_bytes));
                    deadline = deadline.max(Instant::now() + LAST_BYTES);
                }
                Err(error) => return End::Broken(error),
            },
            Ok(Event::Carried) => {}
            // The reader has closed the pipe, as with any other program in a pipeline.
            Ok(Event::Broken(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                return End::Exit(PIPE_CLOSED);
            }
            Ok(Event::Broken(error)) => {
                return End::Broken(anyhow::Error::new(error).context("cannot pass the guest's output on"));
            }
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) if is_ready => return End::Died,
            Ok(Event::Ended) | Err(RecvTimeoutError::Disconnected) => return End::DiedBooting,
            Err(RecvTimeoutError::Timeout) if is_ready => return End::TimedOut,
            Err(RecvTimeoutError::Timeout) => return End::NotReady,
        }
    }
}

fn wait_for(
    mut child: Child,
    events: std::sync::mpsc::Sender<Event>,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let wait = move || {
        drop(child.wait());
        drop(events.send(Event::Ended));
    };
    std::thread::Builder::new().name("guest-end".into()).spawn(wait).context("cannot start a thread")
}

/// A guest's console log: kept when the guest failed, and its end shown.
struct Console {
    path: PathBuf,
}

/// More than one guest of a kernel may run at a time.
static CONSOLES: AtomicU32 = AtomicU32::new(1);

impl Console {
    fn create(guests: &Guests, kernel: &Kernel, init: Init) -> anyhow::Result<Self> {
        let folder = guests.places.target.join("guests");
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let init = match init {
            Init::Own => "",
            Init::Systemd => "-systemd",
            Init::Kube => "-kube",
            Init::Debian12 => "-debian12",
            Init::Debian13 => "-debian13",
        };
        let (own, count) = (std::process::id(), CONSOLES.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(format!("console-{}{init}-{own}-{count}.log", kernel.name));
        fs::write(&path, []).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path })
    }

    /// QEMU's own output goes there as well.
    fn append(&self) -> anyhow::Result<fs::File> {
        let file = fs::File::options().append(true).open(&self.path);
        file.with_context(|| format!("cannot open {}", self.path.display()))
    }

    fn close(self, end: End, run: &Run<'_>) -> anyhow::Result<u8> {
        let (status, what) = match end {
            End::Exit(status) => {
                let removed = fs::remove_file(&self.path);
                removed.with_context(|| format!("cannot remove {}", self.path.display()))?;
                return Ok(status);
            }
            End::Broken(error) => return Err(error),
            End::NotReady => {
                (NOT_READY, format!("was not ready after {} s", run.timeout.min(READY).as_secs()))
            }
            End::DiedBooting => (NOT_READY, "ended before it was ready".to_owned()),
            End::TimedOut => (TIMED_OUT, format!("was still busy after {} s", run.timeout.as_secs())),
            End::Died => (GUEST_DIED, "ended without its script's status".to_owned()),
        };
        let text = fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        Err(Failure::new(
            status,
            format!(
                "the guest (kernel {}) {what}; the end of its console, all of which is in {}:\n{}",
                run.kernel.name,
                self.path.display(),
                shown(&last_lines(&text, CONSOLE_LINES)),
            ),
        )
        .into())
    }
}

fn shown(tail: &str) -> &str {
    if tail.trim().is_empty() { "(nothing)" } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_ends_is_not_ready_until_it_says_so() {
        let end_of = |lines: &[&str]| {
            let (events, inbox) = channel();
            for line in lines {
                events.send(Event::Report((*line).to_owned())).unwrap();
            }
            events.send(Event::Ended).unwrap();
            watch(&inbox, || (5, 0), Instant::now(), Duration::from_mins(1))
        };
        assert!(matches!(end_of(&[]), End::DiedBooting));
        assert!(matches!(end_of(&["warn no tracefs"]), End::DiedBooting));
        assert!(matches!(end_of(&["ready 6.1.0"]), End::Died));
        assert!(matches!(end_of(&["ready 6.1.0", "exit 3 5 0"]), End::Exit(3)));
        assert!(matches!(end_of(&["ready 6.1.0", "exit 3 6 0"]), End::Died));
    }
}
