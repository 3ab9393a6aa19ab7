//! The guest's ports on this side: sockets that QEMU connects to.
use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::Sender,
    },
    thread,
};

use anyhow::Context as _;

/// What happens while a guest runs.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line of init's report.
    Report(String),
    /// Bytes of a stream went through.
    Carried,
    /// A stream could not be written on this side.
    Broken(io::Error),
    /// QEMU ended.
    Ended,
}

/// One stream of the guest's script.
#[derive(Debug)]
pub(crate) struct Stream {
    carried_bytes: Arc<AtomicU64>,
    thread: thread::JoinHandle<()>,
}

impl Stream {
    /// Listens at `socket` and forwards everything to `sink` at once.
    pub(crate) fn listen(
        socket: &Path,
        mut sink: Box<dyn Write + Send>,
        events: Sender<Event>,
    ) -> anyhow::Result<Self> {
        let listener = bind(socket)?;
        let carried_bytes = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&carried_bytes);
        let thread = spawn(move || {
            let result =
                listener.accept().and_then(|(stream, _)| carry(stream, &mut sink, &counter, &events));
            if let Err(error) = result {
                // The receiver is gone if the guest has been given up already.
                drop(events.send(Event::Broken(error)));
            }
        })?;
        Ok(Self { carried_bytes, thread })
    }

    pub(crate) fn carried_bytes(&self) -> u64 {
        self.carried_bytes.load(Ordering::Acquire)
    }

    /// Waits until everything has been forwarded; QEMU must have ended, or never have started.
    pub(crate) fn finish(self, socket: &Path) {
        // If QEMU never connected, the thread still listens.
        drop(UnixStream::connect(socket));
        drop(self.thread.join());
    }
}

fn carry(
    mut stream: UnixStream,
    sink: &mut dyn Write,
    counter: &AtomicU64,
    events: &Sender<Event>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // A killed QEMU resets its sockets.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        };
        sink.write_all(buffer.get(..count).unwrap_or_default())?;
        sink.flush()?;
        counter.fetch_add(u64::try_from(count).unwrap_or_default(), Ordering::AcqRel);
        drop(events.send(Event::Carried));
    }
}

/// Listens at `socket` for init's report and passes its lines on.
pub(crate) fn listen_for_report(
    socket: &Path,
    events: Sender<Event>,
) -> anyhow::Result<thread::JoinHandle<()>> {
    let listener = bind(socket)?;
    spawn(move || {
        let Ok((stream, _)) = listener.accept() else { return };
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            drop(events.send(Event::Report(line)));
        }
    })
}

fn bind(socket: &Path) -> anyhow::Result<UnixListener> {
    UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))
}

fn spawn(body: impl FnOnce() + Send + 'static) -> anyhow::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("guest-port".into()).spawn(body).context("cannot start a thread")
}
