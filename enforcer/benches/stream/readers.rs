//! Readers in a process of their own, so that what they do is not counted as the daemon's.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// The first word of the readers' command line.
pub(crate) const WORD: &str = "readers";

/// Nanoseconds of the clock that all processes of this machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// What readers found.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub(crate) readers: u64,
    pub(crate) received: u64,
    /// How many got a gap reported.
    pub(crate) gaps: u64,
    /// How many were hung up on before the end.
    pub(crate) hung_up: u64,
    median_ns: u64,
    p99_ns: u64,
    longest_ns: u64,
}

impl Figures {
    /// Of times in nanoseconds.
    pub(crate) fn of(mut taken: Vec<u64>) -> Self {
        taken.sort_unstable();
        let at = |percent: usize| taken.get(taken.len() * percent / 100).copied().unwrap_or_default();
        Self {
            median_ns: at(50),
            p99_ns: at(99),
            longest_ns: taken.last().copied().unwrap_or_default(),
            ..Self::default()
        }
    }

    pub(crate) fn median_us(&self) -> f64 {
        super::float(self.median_ns) / 1e3
    }

    pub(crate) fn p99_us(&self) -> f64 {
        super::float(self.p99_ns) / 1e3
    }

    pub(crate) fn longest_us(&self) -> f64 {
        super::float(self.longest_ns) / 1e3
    }
}

/// The process, from the other side.
pub(crate) struct Readers {
    child: Child,
    slowest: Arc<AtomicU64>,
    listener: std::thread::JoinHandle<Option<Figures>>,
}

impl Readers {
    pub(crate) fn start(socket: &Path, count: usize, form: &str, stall_seconds: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(WORD)
            .arg(socket)
            .args([count.to_string(), form.to_owned(), stall_seconds.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let slowest = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&slowest);
        let listener = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                match line.parse() {
                    Ok(received) => noted.store(received, Ordering::Relaxed),
                    Err(_) => return serde_json::from_str(&line).ok(),
                }
            }
            None
        });
        Self { child, slowest, listener }
    }

    /// How many events the slowest of them has.
    pub(crate) fn slowest(&mut self) -> u64 {
        self.slowest.load(Ordering::Relaxed)
    }

    /// Waits until all of them have the last event.
    pub(crate) fn end(mut self) -> Figures {
        let figures = self.listener.join().unwrap();
        self.child.wait().unwrap();
        figures.unwrap()
    }
}

/// The process: as many threads as readers.
pub(crate) fn reader_process(words: &[String]) {
    let [socket, count, form, stall_seconds] = <&[String; 4]>::try_from(words).unwrap();
    let count: usize = count.parse().unwrap();
    let stall = Duration::from_secs(stall_seconds.parse().unwrap());
    let progress: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
    let connected = Arc::new(Barrier::new(count + 1));
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (progress, connected) = (Arc::clone(&progress), Arc::clone(&connected));
            let (socket, form) = (socket.clone(), form.clone());
            let reader = move || read(&socket, &form, stall, &connected, progress.get(number).unwrap());
            std::thread::Builder::new().stack_size(256 << 10).spawn(reader).unwrap()
        })
        .collect();
    connected.wait();
    println!("ready");
    let mut said = 0;
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let slowest =
            progress.iter().map(|received| received.load(Ordering::Relaxed)).min().unwrap_or_default();
        if slowest != said {
            said = slowest;
            println!("{slowest}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut all = Vec::new();
    let mut figures = Figures::default();
    for thread in threads {
        let Found { taken, gap, hung_up } = thread.join().unwrap();
        figures.readers += 1;
        figures.received += u64::try_from(taken.len()).unwrap();
        figures.gaps += u64::from(gap);
        figures.hung_up += u64::from(hung_up);
        all.extend(taken);
    }
    let Figures { median_ns, p99_ns, longest_ns, .. } = Figures::of(all);
    let figures = Figures { median_ns, p99_ns, longest_ns, ..figures };
    println!("{}", serde_json::to_string(&figures).unwrap());
    std::io::stdout().flush().unwrap();
}

/// What one reader found: how long each event took, in nanoseconds.
#[derive(Default)]
struct Found {
    taken: Vec<u64>,
    gap: bool,
    hung_up: bool,
}

fn read(socket: &str, form: &str, stall: Duration, connected: &Barrier, received: &AtomicU64) -> Found {
    let mut stream = UnixStream::connect(socket).unwrap();
    let accept = if form == "sse" { "text/event-stream" } else { "application/x-ndjson" };
    // HTTP/1.0, so that the body is not in chunks.
    write!(stream, "GET /v1/events?follow=true HTTP/1.0\r\nAccept: {accept}\r\n\r\n").unwrap();
    let mut pending = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut found = Found::default();
    let head = loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "no answer");
        pending.extend_from_slice(&buffer[..count]);
        if let Some(end) = position(&pending, b"\r\n\r\n") {
            break end + 4;
        }
    };
    assert!(pending.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&pending));
    pending.drain(..head);
    connected.wait();
    std::thread::sleep(stall);
    loop {
        let now = monotonic_ns();
        let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in pending.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
            if let Some(appended) = number_after(line, b"\"appendedNs\":") {
                found.taken.push(now.saturating_sub(appended));
                if position(line, b"\"last\":true").is_some() {
                    received.store(u64::try_from(found.taken.len()).unwrap(), Ordering::Relaxed);
                    return found;
                }
            } else if position(line, b"stream.gap").is_some() {
                found.gap = true;
            }
        }
        pending.drain(..whole);
        received.store(u64::try_from(found.taken.len()).unwrap(), Ordering::Relaxed);
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => {
                found.hung_up = true;
                return found;
            }
            Ok(count) => pending.extend_from_slice(&buffer[..count]),
        }
    }
}

fn position(text: &[u8], of: &[u8]) -> Option<usize> {
    let first = of.first()?;
    let mut from = 0;
    while let Some(at) = text.get(from..)?.iter().position(|byte| byte == first) {
        if text.get(from + at..)?.starts_with(of) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn number_after(line: &[u8], key: &[u8]) -> Option<u64> {
    let digits = line.get(position(line, key)? + key.len()..)?;
    let end = digits.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}
