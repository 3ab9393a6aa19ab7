//! The virtio-serial ports to the host.
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read as _, Write as _},
    os::{fd::AsFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::OFlags,
};

/// How long the kernel may take to announce a port.
const APPEAR: Duration = Duration::from_secs(20);

/// How long the host may take to end the guest after the last report.
const HOST_ENDS_GUEST: Duration = Duration::from_secs(30);

/// Opens the port that the host named `name`, for non-blocking writes.
///
/// A blocking write to such a port spins with interrupts off until the host has taken the data, which would
/// disturb every measurement in the guest.
pub(crate) fn open(name: &str) -> anyhow::Result<File> {
    let end = Instant::now() + APPEAR;
    loop {
        if let Some(path) = find(name).with_context(|| format!("cannot look for the port {name}"))? {
            return OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(i32::try_from(OFlags::NONBLOCK.bits())?)
                .open(&path)
                .with_context(|| format!("cannot open {path}"));
        }
        if Instant::now() >= end {
            bail!("the kernel announced no port {name} within {APPEAR:?}");
        }
        sleep(Duration::from_millis(5));
    }
}

fn find(name: &str) -> io::Result<Option<String>> {
    let class = match fs::read_dir("/sys/class/virtio-ports") {
        Ok(class) => class,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for port in class {
        let port = port?;
        // The name arrives a moment after the port itself.
        let Ok(found) = fs::read_to_string(port.path().join("name")) else { continue };
        let device = Path::new("/dev").join(port.file_name());
        if found.trim_end() == name && device.exists() {
            return Ok(device.to_str().map(str::to_owned));
        }
    }
    Ok(None)
}

/// Writes all of `bytes` and waits where the host is slow.
pub(crate) fn write_all(port: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match port.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::from_borrowed_fd(port.as_fd(), PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The port on which this program itself reports to the host.
pub(crate) struct Report(File);

impl Report {
    pub(crate) fn open() -> anyhow::Result<Self> {
        open("enforcer.report").map(Self)
    }

    /// Sends one line.
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        let line = format!("{}\n", text.replace('\n', " "));
        write_all(&mut self.0, line.as_bytes()).context("cannot report to the host")
    }

    /// Waits for the host to end the guest; returns when it does not.
    pub(crate) fn wait_for_host(mut self) {
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(HOST_ENDS_GUEST.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: 0,
        };
        // The host sends nothing: whatever ends the wait, powering off is next.
        if poll(&mut [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)], Some(&timeout)).is_ok() {
            drop(self.0.read(&mut [0; 1]));
        }
    }
}
