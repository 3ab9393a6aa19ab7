//! Counts of test results, from what test binaries print.
use std::{
    fmt,
    io::{self, Write},
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::steps::Steps;

/// How many tests came out which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// What failed, by name, in the order in which it did.
    pub(crate) failures: Vec<String>,
}

impl Tally {
    /// One check that is no test binary.
    pub(crate) fn check(name: &str, passed: bool) -> Self {
        if passed { Self { passed: 1, ..Self::default() } } else { Self::failure(name.to_owned()) }
    }

    /// One failure.
    pub(crate) fn failure(name: String) -> Self {
        Self { failed: 1, failures: vec![name], ..Self::default() }
    }

    /// The same, with where it failed before each name.
    pub(crate) fn of(mut self, place: &str) -> Self {
        for name in &mut self.failures {
            *name = format!("{place}: {name}");
        }
        self
    }

    /// Says what failed, a line each: their own words may be thousands of lines above.
    pub(crate) fn name_failures(&self, steps: Steps) {
        for name in &self.failures {
            steps.say(format_args!("FAIL {name}"));
        }
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
        let Self { passed, failed, ignored, failures } = other;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
        self.failures.extend(failures);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, .. } = self;
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
        (counting.results > 0).then(|| counting.tally.clone())
    }

    /// The test that began and has not ended, where one runs at a time.
    pub(crate) fn running(&self) -> Option<String> {
        let counting = self.counting();
        let (name, result) = outcome(std::str::from_utf8(&counting.line).ok()?)?;
        result.is_empty().then(|| name.to_owned())
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
            let Ok(line) = std::str::from_utf8(&line) else { continue };
            if let Some((name, "FAILED")) = outcome(line) {
                counting.tally.failures.push(name.to_owned());
            }
            if let Some(tally) = Tally::parse(line) {
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

/// A test's name and what came of it: `test NAME ... ok`; nothing as long as it runs.
fn outcome(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name, result.trim_end()))
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
        let sum = Tally { passed: 3, failed: 3, ignored: 1, failures: Vec::new() };
        assert_eq!(counter.count().tally(), Some(sum));
    }

    #[test]
    fn what_failed_and_what_never_ended_is_known_by_name() {
        let mut counter = Counter::new(Vec::new());
        let count = counter.count();
        for piece in ["test a::b ... ok\ntest a::c ... FAI", "LED\ntest result: FAILED. 1 passed; 1 failed\n"]
        {
            counter.write_all(piece.as_bytes()).unwrap();
        }
        assert_eq!((count.tally().unwrap().failures, count.running()), (vec!["a::c".to_owned()], None));
        counter.write_all(b"test a::d ... ").unwrap();
        assert_eq!(count.running().as_deref(), Some("a::d"));
        let mut sum = count.tally().unwrap().of("kernel 6.1");
        sum += Tally::check("fmt", false);
        sum += Tally::check("tidy", true);
        assert_eq!((sum.passed, sum.failed, sum.failures.join(", ")), (2, 2, "kernel 6.1: a::c, fmt".into()));
    }
}
