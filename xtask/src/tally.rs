//! Counts of test results, from what test binaries print.
use std::{
    fmt,
    io::{self, Write},
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How many tests came out which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Tally {
    /// One check that is no test binary.
    pub(crate) fn check(passed: bool) -> Self {
        Self { passed: passed.into(), failed: (!passed).into(), ignored: 0 }
    }

    /// The last line of a test binary: `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn parse(line: &str) -> Option<Self> {
        let (_, counts) = line.trim_end().strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Self::default();
        for count in counts.split("; ") {
            let Some((number, kind)) = count.split_once(' ') else { continue };
            match kind {
                "passed" => tally.passed = number.parse().ok()?,
                "failed" => tally.failed = number.parse().ok()?,
                "ignored" => tally.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(tally)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        let Self { passed, failed, ignored } = other;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored } = self;
        write!(f, "{passed} passed, {failed} failed")?;
        if *ignored > 0 { write!(f, ", {ignored} ignored") } else { Ok(()) }
    }
}

/// Passes a test binary's output on, and counts.
#[derive(Debug)]
pub(crate) struct Counter<W> {
    out: W,
    count: Count,
}

/// What a [`Counter`] has counted so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<Mutex<Counting>>);

#[derive(Debug, Default)]
struct Counting {
    tally: Tally,
    /// How many test binaries told their result.
    results: u64,
    line: Vec<u8>,
}

impl<W> Counter<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, count: Count::default() }
    }

    pub(crate) fn count(&self) -> Count {
        self.count.clone()
    }
}

impl Count {
    /// The sum, or nothing where no test binary came to its end.
    pub(crate) fn tally(&self) -> Option<Tally> {
        let counting = self.counting();
        (counting.results > 0).then_some(counting.tally)
    }

    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Write for Counter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        let mut counting = self.count.counting();
        for byte in bytes {
            if *byte != b'\n' {
                counting.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut counting.line);
            if let Some(tally) = std::str::from_utf8(&line).ok().and_then(Tally::parse) {
                counting.tally += tally;
                counting.results += 1;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted_over_pieces() {
        let mut counter = Counter::new(Vec::new());
        assert_eq!(counter.count().tally(), None);
        for piece in ["running 2 tests\ntest resu", "lt: ok. 2 passed; 0 failed; 1 ignored; 0 measured\n"] {
            counter.write_all(piece.as_bytes()).unwrap();
        }
        counter.write_all(b"test result: FAILED. 1 passed; 3 failed; 0 ignored\n").unwrap();
        assert_eq!(counter.count().tally(), Some(Tally { passed: 3, failed: 3, ignored: 1 }));
    }
}
