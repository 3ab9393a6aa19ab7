//! The daemon's own log. It goes to stderr through a bounded queue, as no thread may wait for the reader of stderr.
//!
//! A stopped journald reads nothing. Then lines are dropped and counted, and once it reads again, the place is marked.
//! `tracing-appender` has such a queue too, but bounds it by lines of any length, cannot mark the place, and brings
//! rolling files and a calendar along.

mod json;
mod level;

use std::{
    io,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::MakeWriter;

pub(crate) use self::{
    json::Json,
    level::{changeable, filter, set},
};
use crate::raw;

/// The capacity of the queue, in bytes.
const MAX_BYTES: usize = 128 * 1024;

/// The writing thread's stack, in bytes: its call depth is small.
const STACK_BYTES: usize = 128 * 1024;

/// How long the process waits for queued lines at its end.
const FLUSH: Duration = Duration::from_secs(1);

/// The time limit for all last words, in seconds.
const LAST_WORDS_S: u32 = 3;

static LOG: Log = Log::new();

/// The log of this process.
#[derive(Debug)]
struct Log {
    queue: Mutex<Queue>,
    /// Notified when there is something to write, and when all is written.
    changed: Condvar,
    dropped: AtomicU64,
    /// Whether lines are JSON.
    is_json: AtomicBool,
}

/// Lines to be written.
#[derive(Debug)]
struct Queue {
    text: Vec<u8>,
    /// How many lines were dropped after them.
    dropped: u64,
    /// Whether the lines that were taken last are still being written.
    is_writing: bool,
}

impl Queue {
    const fn new() -> Self {
        Self { text: Vec::new(), dropped: 0, is_writing: false }
    }

    /// Appends a line if there is room. After a dropped line there is none until the place is marked.
    fn push(&mut self, line: &[u8]) -> bool {
        let has_room = self.dropped == 0 && self.text.len().saturating_add(line.len()) <= MAX_BYTES;
        if has_room {
            self.text.extend_from_slice(line);
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
        has_room
    }

    /// Takes all queued lines, and a line that marks where others were dropped.
    fn take(&mut self, is_json: bool) -> Vec<u8> {
        let mut text = std::mem::take(&mut self.text);
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            let marked = format!("{dropped} log lines were dropped here: stderr took none");
            let marked = if is_json {
                let time = jiff::Timestamp::now().to_string();
                let line = serde_json::json!({"time": time, "level": "WARN", "target": "enforcer", "message": marked});
                format!("{line}\n")
            } else {
                format!(" WARN enforcer: {marked}\n")
            };
            text.extend_from_slice(marked.as_bytes());
        }
        text
    }

    fn is_empty(&self) -> bool {
        self.text.is_empty() && self.dropped == 0
    }
}

impl Log {
    const fn new() -> Self {
        Self {
            queue: Mutex::new(Queue::new()),
            changed: Condvar::new(),
            dropped: AtomicU64::new(0),
            is_json: AtomicBool::new(false),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        if self.queue().push(line) {
            self.changed.notify_all();
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes forever. Lines that stderr refuses, as when its reader is gone, are lost.
    fn write(&self, mut out: impl FnMut(&[u8]) -> rustix::io::Result<usize>) {
        let mut queue = self.queue();
        loop {
            while queue.is_empty() {
                queue.is_writing = false;
                self.changed.notify_all();
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.is_writing = true;
            let text = queue.take(self.is_json.load(Ordering::Relaxed));
            drop(queue);
            let mut rest = text.as_slice();
            while !rest.is_empty() {
                match out(rest) {
                    Ok(0) => break,
                    Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                    Err(rustix::io::Errno::INTR) => {}
                    // Another process that shares the pipe has set it to non-blocking.
                    Err(rustix::io::Errno::AGAIN) => thread::sleep(Duration::from_millis(10)),
                    Err(_) => break,
                }
            }
            queue = self.queue();
        }
    }

    /// Waits until all lines are written, at most that long.
    fn flush(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        let mut queue = self.queue();
        while !queue.is_empty() || queue.is_writing {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            (queue, _) = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The writer for log lines, which never waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines(());

/// Starts the thread that writes to stderr. Its own lines are JSON if the others are.
pub(crate) fn start(is_json: bool) -> io::Result<Lines> {
    LOG.is_json.store(is_json, Ordering::Relaxed);
    // With std's handle, any other write to stderr would wait for its lock.
    let write = || LOG.write(|text| rustix::io::write(io::stderr(), text));
    thread::Builder::new().name(String::from("log")).stack_size(STACK_BYTES).spawn(write)?;
    Ok(Lines(()))
}

/// How many lines have been dropped.
pub(crate) fn dropped() -> u64 {
    LOG.dropped.load(Ordering::Relaxed)
}

/// Writes to stderr right before the end. If stderr blocks, the kernel ends this process after 3 s (SIGALRM): one that
/// hangs here would not be restarted.
pub fn last_words(say: impl FnOnce()) {
    raw::end_after(LAST_WORDS_S);
    LOG.flush(FLUSH);
    say();
}

/// Does something that may replace this process after [`last_words`]: the alarm would outlive that, and end the new one.
pub fn without_alarm<T>(work: impl FnOnce() -> T) -> T {
    raw::end_after(0);
    let done = work();
    raw::end_after(LAST_WORDS_S);
    done
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl io::Write for Lines {
    /// Queues one whole event, as the formatter writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LOG.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn what_has_no_room_is_counted_where_it_was_dropped() {
        let mut queue = Queue::new();
        let line = [b'x'; 1024];
        let taken = (0..200).filter(|_| queue.push(&line)).count();
        assert_eq!(taken, MAX_BYTES / line.len());
        assert!(!queue.push(b"y"), "no line overtakes a dropped one");
        let text = String::from_utf8(queue.take(false)).unwrap();
        let (lines, mark) = text.split_at(MAX_BYTES);
        assert!(lines.bytes().all(|byte| byte == b'x'));
        assert!(mark.contains(&format!(" {} log lines were dropped here", 201 - taken)), "{mark}");
        assert!(!queue.push(&vec![b'x'; 2 * MAX_BYTES]));
        let text = String::from_utf8(queue.take(true)).unwrap();
        let marked: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&marked["level"], text.lines().count()), (&"WARN".into(), 1), "{text}");
        assert!(queue.push(b"z") && queue.take(true) == b"z" && queue.is_empty());
    }

    #[test]
    fn a_reader_that_hangs_stops_no_other() {
        let log: &'static Log = Box::leak(Box::new(Log::new()));
        let (let_go, held) = mpsc::channel::<()>();
        let written = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&written);
        thread::spawn(move || {
            log.write(move |text| {
                let _gone = held.recv();
                sink.lock().unwrap().extend_from_slice(text);
                Ok(text.len())
            });
        });
        let line = format!("{}\n", "x".repeat(1023));
        for _ in 0..1_000 {
            log.push(line.as_bytes());
        }
        log.flush(Duration::from_millis(10));
        let dropped = log.dropped.load(Ordering::Relaxed);
        assert!(dropped > 0 && written.lock().unwrap().is_empty());
        drop(let_go);
        log.flush(Duration::from_mins(1));
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let kept = text.lines().filter(|line| line.starts_with('x')).count();
        assert_eq!(u64::try_from(kept).unwrap() + dropped, 1_000, "seen = written + dropped");
        assert!(text.contains("log lines were dropped here"));
    }
}
