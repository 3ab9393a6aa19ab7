//! How fast the machine is while the tests run. A machine's processors may be shared with others, and then the same tests
//! take up to three times as long. Budgets are scaled by it.
use std::{
    fmt, fs, hint,
    sync::mpsc::{self, RecvTimeoutError, Sender},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};

/// The processor time of one piece of work on a machine that tests everything, warm, in half an hour. It is derived, not
/// measured there: where a piece took 16.4 ms, the systemd tier, whose tests were the same, took 1.49 times as long.
const REFERENCE: Duration = Duration::from_millis(11);
/// The work then takes 0.2 % of a processor.
const INTERVAL: Duration = Duration::from_secs(20);
/// The unit of /proc/stat in milliseconds (`USER_HZ` is 100 on x86-64 and arm64).
const TICK_MS: u64 = 10;
const TABLE_WORDS: usize = 1 << 17;
const STEPS: usize = 400_000;

/// Measures until it is asked for the result.
pub(crate) struct Pace {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Duration>>,
    before: Stolen,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slowness {
    /// The processor time of a piece of work, divided by that of the reference machine.
    pub(crate) work: f64,
    /// The share of the processor time wanted here that the hypervisor gave to others, 0 to 1.
    pub(crate) stolen: f64,
}

impl Slowness {
    /// By how much the same tests take longer than on the reference machine. A faster machine counts as that one.
    pub(crate) fn factor(self) -> f64 {
        (self.work / (1.0 - self.stolen.clamp(0.0, 0.9))).max(1.0)
    }
}

impl fmt::Display for Slowness {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, stolen } = self;
        let stolen = stolen * 100.0;
        write!(
            to,
            "a piece of work takes {work:.2} times the processor time of the reference machine, and {stolen:.0} % of the \
             wanted processor time was stolen: budgets are multiplied by {:.2}",
            self.factor()
        )
    }
}

impl Pace {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name(String::from("pace")).spawn(move || {
            let mut table: Vec<usize> = (0..TABLE_WORDS).collect();
            let mut took = Vec::new();
            loop {
                let before = thread_time();
                hint::black_box(work(&mut table));
                took.push(thread_time().saturating_sub(before));
                if stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                    return took;
                }
            }
        });
        Ok(Self { stop, thread: thread.context("cannot start a thread")?, before: Stolen::read()? })
    }

    /// The mean since the start.
    pub(crate) fn finish(self) -> anyhow::Result<Slowness> {
        drop(self.stop);
        let took = self.thread.join().ok().context("the thread that measures the pace panicked")?;
        let count = u32::try_from(took.len()).unwrap_or(u32::MAX);
        let mean = took.iter().sum::<Duration>() / count;
        let stolen = Stolen::read()?.share_since(&self.before);
        Ok(Slowness { work: mean.div_duration_f64(REFERENCE), stolen })
    }
}

/// Dependent reads and writes all over a table that is larger than a first-level cache, with branches between: what
/// compilers and emulators do.
fn work(table: &mut [usize]) -> usize {
    let (mut at, mut sum) = (1_usize, 0_usize);
    for step in 0..STEPS {
        let mixed = (table[at % TABLE_WORDS] ^ step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if mixed & 4 == 0 {
            sum = sum.wrapping_add(mixed);
        } else {
            table[at % TABLE_WORDS] = mixed;
        }
        at = mixed >> 24;
    }
    sum
}

/// The processor time that this thread had: without other threads' time, and without steal time (on KVM guests).
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or_default(), now.tv_nsec.try_into().unwrap_or_default())
}

/// Times of all processors together.
struct Stolen {
    stolen: Duration,
    /// Idle time and waiting for a disk do not count.
    wanted: Duration,
}

impl Stolen {
    fn read() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&text).context("/proc/stat has no line `cpu` with its eight times")
    }

    /// proc(5): `cpu user nice system idle iowait irq softirq steal …`; guests' time is part of `user`.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut times = line.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || Some(Duration::from_millis(times.next()?.ok()?.saturating_mul(TICK_MS)));
        let (user, nice, system, _idle, _iowait) = (next()?, next()?, next()?, next()?, next()?);
        let (irq, softirq, stolen) = (next()?, next()?, next()?);
        Some(Self { stolen, wanted: user + nice + system + irq + softirq + stolen })
    }

    fn share_since(&self, before: &Self) -> f64 {
        let wanted = self.wanted.saturating_sub(before.wanted);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if wanted.is_zero() { 0.0 } else { stolen.div_duration_f64(wanted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_slow_or_stolen_from_has_more_time() {
        let factor = |work, stolen| format!("{:.2}", Slowness { work, stolen }.factor());
        assert_eq!(factor(1.0, 0.0), "1.00");
        assert_eq!(factor(2.0, 0.0), "2.00");
        assert_eq!(factor(1.5, 0.25), "2.00");
        assert_eq!(factor(0.5, 0.0), "1.00", "a faster machine does not have less");
    }

    #[test]
    fn stolen_time_is_a_share_of_what_was_wanted() {
        let parse = |line: &str| Stolen::parse(line).unwrap();
        let before = parse("cpu  100 0 50 1000 10 1 2 7 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n");
        let after = parse("cpu  160 0 70 9000 90 1 2 27 0 0\n");
        let share = |from: &Stolen| format!("{:.2}", after.share_since(from));
        assert_eq!(share(&before), "0.20");
        assert_eq!(share(&after), "0.00");
        assert!(Stolen::parse("cpu  100 0 50\n").is_none());
    }

    #[test]
    fn work_takes_processor_time_and_the_thread_ends() {
        let slowness = Pace::start().unwrap().finish().unwrap();
        assert!(slowness.work > 0.0, "{slowness}");
    }
}
