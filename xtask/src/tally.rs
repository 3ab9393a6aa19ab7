//! Counts of test results, from what test binaries print.
use std::{
    fmt,
    io::{self, Write},
    ops::AddAssign,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{rounds::Rounds, steps::Steps, timeline::Timeline};

/// How many of the slowest tests are listed.
const SLOWEST: usize = 15;

/// How many guests of one run may need a second boot: one may be chance, a second one shows that something is wrong.
const MOST_REPEATED_BOOTS: u64 = 1;

/// The number of tests by result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// How many guests did not come up at the first attempt and were booted a second time.
    pub(crate) repeated_boots: u64,
    /// Names of failures, in the order in which they occurred.
    pub(crate) failures: Vec<String>,
    /// How long each test took, if tests run one after another.
    pub(crate) durations: Vec<(String, Duration)>,
    /// What repeating tests printed about their rounds, by name; a test may print several.
    pub(crate) rounds: Vec<(String, Rounds)>,
}

impl Tally {
    /// One check that is not a test binary.
    pub(crate) fn check(name: &str, passed: bool) -> Self {
        if passed { Self { passed: 1, ..Self::default() } } else { Self::failure(name.to_owned()) }
    }

    /// One failure.
    pub(crate) fn failure(name: String) -> Self {
        Self { failed: 1, failures: vec![name], ..Self::default() }
    }

    /// The same, with the place of the failure before each name.
    pub(crate) fn of(mut self, place: &str) -> Self {
        let durations = self.durations.iter_mut().map(|(name, _)| name);
        let rounds = self.rounds.iter_mut().map(|(name, _)| name);
        for name in self.failures.iter_mut().chain(durations).chain(rounds) {
            *name = format!("{place}: {name}");
        }
        self
    }

    /// How many tests ran.
    pub(crate) fn count(&self) -> u64 {
        self.passed + self.failed
    }

    /// Whether the run as a whole failed: a test did, or more guests needed a second boot than chance explains.
    pub(crate) fn is_failure(&self) -> bool {
        self.failed > 0 || self.has_too_many_boots()
    }

    fn has_too_many_boots(&self) -> bool {
        self.repeated_boots > MOST_REPEATED_BOOTS
    }

    /// Prints the table of steps, the slowest tests, the failures and the counts.
    pub(crate) fn summarize(&self, steps: Steps, timeline: &Timeline) {
        steps.say(timeline.table());
        let mut slowest: Vec<_> = self.durations.iter().collect();
        slowest.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        for (name, took) in slowest.into_iter().take(SLOWEST) {
            steps.say(format_args!("{:>7.1} s  {name}", took.as_secs_f64()));
        }
        steps.say("");
        // Their output may be thousands of lines above.
        for name in &self.failures {
            steps.say(format_args!("FAIL {name}"));
        }
        if self.has_too_many_boots() {
            steps.say(format_args!(
                "FAIL {} guests were booted twice; a run with more than {MOST_REPEATED_BOOTS} fails",
                self.repeated_boots
            ));
        }
        steps.say(format_args!("{self} in {:.0} s", timeline.elapsed().as_secs_f64()));
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
        let Self { passed, failed, ignored, repeated_boots, failures, durations, rounds } = other;
        self.passed += passed;
        self.failed += failed;
        self.ignored += ignored;
        self.repeated_boots += repeated_boots;
        self.failures.extend(failures);
        self.durations.extend(durations);
        self.rounds.extend(rounds);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored, repeated_boots, .. } = self;
        write!(f, "{passed} passed, {failed} failed")?;
        for (count, what) in [(ignored, "ignored"), (repeated_boots, "repeated boots")] {
            if *count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// Forwards a test binary's output, and counts.
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
    /// How many test binaries printed their result.
    results: u64,
    line: Vec<u8>,
    /// The running test and its start, if tests run one at a time.
    running: Option<(String, Instant)>,
    /// The test whose output is being shown, after all tests have ended.
    shown: Option<String>,
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
    /// The sum; `None` if no test binary came to its end.
    pub(crate) fn tally(&self) -> Option<Tally> {
        let counting = self.counting();
        (counting.results > 0).then(|| counting.tally.clone())
    }

    /// The test that began and has not ended, if one runs at a time.
    pub(crate) fn running(&self) -> Option<String> {
        self.counting().running.as_ref().map(|(name, _)| name.clone())
    }

    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write> Write for Counter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        let mut counting = self.count.counting();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            counting.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut counting.line);
                counting.take_line(&String::from_utf8_lossy(&line));
            }
        }
        counting.note_start();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Counting {
    fn take_line(&mut self, line: &str) {
        if let Some(tally) = Tally::parse(line) {
            self.tally += tally;
            self.results += 1;
        }
        if let Some(name) =
            line.strip_prefix("---- ").and_then(|line| line.trim_end().strip_suffix(" stdout ----"))
        {
            self.shown = Some(name.to_owned());
        }
        if let (Some(name), Some(rounds)) = (&self.shown, Rounds::parse(line)) {
            self.tally.rounds.push((name.clone(), rounds));
        }
        let (name, result) = match outcome(line) {
            Some((name, result)) => (Some(name.to_owned()), result),
            // Programs that a test runs print between its name and its result.
            None => (None, line.trim_end()),
        };
        if !["ok", "FAILED"].contains(&result) {
            return;
        }
        let running = self.running.take();
        let (name, started) = match (name, running) {
            (Some(name), running) => (name, running.map(|(_, started)| started)),
            (None, Some((name, started))) => (name, Some(started)),
            (None, None) => return,
        };
        if let Some(started) = started {
            self.tally.durations.push((name.clone(), started.elapsed()));
        }
        if result == "FAILED" {
            self.tally.failures.push(name);
        }
    }

    /// Notes the test whose name is in the unfinished line.
    fn note_start(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        if let Some((name, _)) = outcome(&line)
            && self.running.as_ref().is_none_or(|(running, _)| running != name)
        {
            self.running = Some((name.to_owned(), Instant::now()));
        }
    }
}

/// A test's name and its result: `test NAME ... ok`; no result as long as it runs.
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
        let sum = Tally { passed: 3, failed: 3, ignored: 1, ..Tally::default() };
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
        // A program that the test runs prints, and then the test ends.
        counter.write_all(b"{\"state\":\"ready\"}\nok\n").unwrap();
        assert_eq!(count.running(), None);
        let timed = count.tally().unwrap().durations;
        assert_eq!(timed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a::c", "a::d"]);
        let mut sum = count.tally().unwrap().of("kernel 6.1");
        sum += Tally::check("fmt", false);
        sum += Tally::check("tidy", true);
        assert_eq!((sum.passed, sum.failed, sum.failures.join(", ")), (2, 2, "kernel 6.1: a::c, fmt".into()));
    }

    #[test]
    fn rounds_belong_to_the_test_whose_output_they_stand_in() {
        let mut counter = Counter::new(Vec::new());
        let shown = "test a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\n\
                     soak: {\"rounds\":2,\"first\":null,\"last\":null}\n\nfailures:\n\n---- b stdout ----\nwords\n\
                     soak: {\"rounds\":3,\"first\":null,\"last\":null}\n\ntest result: FAILED. 1 passed; 1 failed\n";
        counter.write_all(shown.as_bytes()).unwrap();
        let tally = counter.count().tally().unwrap();
        let rounds: Vec<_> =
            tally.rounds.iter().map(|(name, rounds)| (name.as_str(), rounds.count)).collect();
        assert_eq!(rounds, [("a", 2), ("b", 3)]);
    }

    #[test]
    fn a_second_repeated_boot_fails_the_run() {
        let repeated = || Tally { passed: 3, repeated_boots: 1, ..Tally::default() };
        let mut sum = Tally { passed: 2, ..Tally::default() };
        assert_eq!((sum.is_failure(), sum.to_string()), (false, "2 passed, 0 failed".to_owned()));
        sum += repeated();
        assert_eq!(
            (sum.is_failure(), sum.to_string()),
            (false, "5 passed, 0 failed, 1 repeated boots".to_owned())
        );
        sum += repeated();
        assert_eq!((sum.is_failure(), sum.failed, sum.repeated_boots), (true, 0, 2));
        assert!(Tally::failure("kernel 6.1: a".to_owned()).is_failure());
    }
}
