//! The end of the program's output.

use std::io::{self, PipeReader, Read as _};

/// How many bytes of output are kept.
const KEPT_BYTES: usize = 1024;

/// The most reads at a time, as much as a pipe holds. A program that writes without end does not keep us reading.
const MOST_READS: usize = 64;

/// The end of its output, and the length of all output.
#[derive(Debug)]
pub(super) struct Tail {
    /// `None` once no process can write any more.
    reader: Option<PipeReader>,
    kept: Vec<u8>,
    bytes: u64,
}

impl Tail {
    /// Makes the pipe non-blocking.
    pub(super) fn new(reader: PipeReader) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { reader: Some(reader), kept: Vec::with_capacity(2 * KEPT_BYTES), bytes: 0 })
    }

    /// The pipe to wait on for more output; `None` if no more can come.
    pub(super) fn reader(&self) -> Option<&PipeReader> {
        self.reader.as_ref()
    }

    /// Reads available output.
    pub(super) fn read(&mut self) {
        let mut buffer = [0_u8; KEPT_BYTES];
        for _ in 0..MOST_READS {
            let Some(reader) = &mut self.reader else { return };
            match reader.read(&mut buffer) {
                Ok(0) => self.reader = None,
                Ok(count) => self.keep(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.reader = None,
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.kept.extend_from_slice(bytes);
        let surplus = self.kept.len().saturating_sub(KEPT_BYTES);
        self.kept.drain(..surplus);
    }

    /// The end of the output with invalid UTF-8 replaced, and the length of all output in bytes.
    pub(super) fn finish(self) -> (String, u64) {
        (String::from_utf8_lossy(&self.kept).into_owned(), self.bytes)
    }
}
