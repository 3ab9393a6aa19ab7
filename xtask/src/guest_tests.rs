//! Runs the guest tests on some kernels.
mod batch;
mod lanes;
mod tier;

use std::{
    env, io,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use self::{
    batch::{Batch, batches},
    lanes::Lanes,
    tier::GuestTest,
};
use crate::{
    build::{self, Kind, Product},
    ebpf,
    failure::{Failure, NOT_READY},
    guest::{Guests, Init, exec::Run, kernel::KernelName},
    labelled::Labelled,
    places::Places,
    run,
    steps::Steps,
    tally::{Count, Counter, Tally},
    timeline::Timeline,
};

const MEMORY_MIB: u32 = 2048;
const CPUS: u32 = 2;

/// Guests together take no more of this machine's memory than two parts in so many.
const MEMORY_SHARE: u32 = 3;

/// The tests' program, in the guest and here.
const PROGRAM: &str = "guest";

/// What tests that choose by chance take their seed from.
const SEED: &str = "ENFORCER_TEST_SEED";

/// Where tests run that are about the daemon alone.
const ONE_KERNEL: &[KernelName] = &[KernelName::V6_12];

/// Which tests run where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    /// The kernels.
    pub(crate) kernels: &'a [KernelName],
    /// The kernels on which every test runs, whatever its tier.
    pub(crate) whole_kernels: &'a [KernelName],
    /// Only tests whose name contains this.
    pub(crate) filter: Option<&'a str>,
}

impl<'a> Choice<'a> {
    /// Each test on the kernels of its tier.
    pub(crate) const BY_TIER: Self =
        Self { kernels: &KernelName::ALL, whole_kernels: ONE_KERNEL, filter: None };

    /// Every test on the named kernels. Without a name: by tier, or every test on every kernel with `all`.
    pub(crate) fn of(kernels: &'a [KernelName], all: bool, filter: Option<&'a str>) -> Self {
        match kernels {
            [] if all => Self { whole_kernels: &KernelName::ALL, filter, ..Self::BY_TIER },
            [] => Self { filter, ..Self::BY_TIER },
            kernels => Self { kernels, whole_kernels: kernels, filter },
        }
    }
}

/// `cargo xtask vm test`.
pub(crate) fn command(places: &Places, choice: Choice<'_>, timeout: Duration) -> anyhow::Result<u8> {
    let timeline = Timeline::start();
    let object = ebpf::provide(places, Steps::Out, Kind::Development)?;
    let tally = run(places, choice, object.as_deref(), timeout, &timeline)?;
    tally.summarize(Steps::Out, &timeline);
    Ok(u8::from(tally.failed > 0))
}

/// Builds the tests with this eBPF object, or without one with that which is checked in, and runs them, in as many guests
/// side by side as this machine carries. No two that judge a rate or a
/// latency run at a time.
pub(crate) fn run(
    places: &Places,
    choice: Choice<'_>,
    object: Option<&Path>,
    timeout: Duration,
    timeline: &Timeline,
) -> anyhow::Result<Tally> {
    let steps = Steps::Out;
    let seed = env::var(SEED).ok();
    let seed =
        seed.map(|seed| seed.parse().with_context(|| format!("{SEED}={seed} is no number"))).transpose()?;
    let (guests, batches) = timeline.step("guest tests, built", || (prepare(places, choice, object), 0))?;
    let at_once = at_once()?.min(batches.len());
    let lanes = Lanes::new(batches);
    let sum = Mutex::new(Tally::default());
    let work = || {
        while let Some(taken) = lanes.take() {
            let boot = Boot { guests: &guests, batch: &taken.batch, seed, timeout };
            let tally = timeline.step(&format!("kernel {}", taken.batch.name), || {
                let tally = boot.run(at_once > 1);
                let count = tally.count();
                (tally, count)
            });
            *sum.lock().unwrap_or_else(PoisonError::into_inner) += tally;
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    steps.say("");
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Everything that the guests take, and which tests run together.
fn prepare(
    places: &Places,
    choice: Choice<'_>,
    object: Option<&Path>,
) -> anyhow::Result<(Guests, Vec<Batch>)> {
    let steps = Steps::Out;
    let (kind, products) = (Kind::Development, [Product::GuestTests]);
    let mut guests = Guests::prepare_with(places, steps, choice.kernels, kind, &products, object)?;
    let list = run::text(
        Command::new(build::program(&guests.programs, PROGRAM)?).args(["--list", "--format", "terse"]),
    )?;
    let mut tests = listed(&list)?;
    if let Some(filter) = choice.filter {
        tests.retain(|test| test.matches(filter));
    }
    let batches = batches(&tests, choice.kernels, choice.whole_kernels);
    if batches.is_empty() {
        bail!("no guest test has a name that contains `{}`", choice.filter.unwrap_or_default());
    }
    if batches.iter().any(|batch| batch.init == Init::Systemd) {
        guests = guests.with_init(Init::Systemd, steps)?;
    }
    Ok((guests, batches))
}

/// The tests that the binary lists. A test without a tier is an error: it would run nowhere.
fn listed(list: &str) -> anyhow::Result<Vec<GuestTest>> {
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let (mut tests, mut without) = (Vec::new(), Vec::new());
    for name in names {
        match GuestTest::parse(name) {
            Some(test) => tests.push(test),
            None => without.push(name),
        }
    }
    if !without.is_empty() {
        bail!("these tests say no tier; write #[guest_test(…)] and not #[test]: {}", without.join(", "));
    }
    Ok(tests)
}

/// How many guests this machine carries side by side.
fn at_once() -> anyhow::Result<usize> {
    let cpus = thread::available_parallelism().context("cannot count the cpus")?.get();
    let info = rustix::system::sysinfo();
    let memory_mib = (info.totalram * u64::from(info.mem_unit)) >> 20;
    let by_memory = memory_mib * 2 / u64::from(MEMORY_MIB * MEMORY_SHARE);
    // A guest keeps less than one processor busy: its tests wait for clocks and events.
    Ok((cpus * 3 / 2).min(usize::try_from(by_memory)?).max(1))
}

/// One guest, and the tests that it is to run.
#[derive(Debug)]
struct Boot<'a> {
    guests: &'a Guests,
    batch: &'a Batch,
    seed: Option<u64>,
    timeout: Duration,
}

impl Boot<'_> {
    /// Runs them; a guest that fails as a whole counts as one failed test. Beside others each line says whose it is.
    fn run(&self, beside_others: bool) -> Tally {
        let steps = Steps::Out;
        let Self { guests, batch, seed, timeout } = *self;
        let name = &batch.name;
        let Some(kernel) = guests.kernels.iter().find(|kernel| kernel.name == batch.kernel) else {
            return Tally::failure(format!("kernel {name}: it was not set up"));
        };
        let label = if beside_others { format!("{name}: ") } else { String::new() };
        steps.say(format_args!("\n--- kernel {name} ---"));
        let script = script(&batch.tests, seed, timeout);
        let run = Run {
            kernel,
            init: batch.init,
            memory_mib: MEMORY_MIB,
            cpus: CPUS,
            timeout,
            boot: &[],
            files: &[],
            script: script.as_bytes(),
        };
        let attempt = || {
            let counter = Counter::new(Labelled::new(label.clone(), io::stdout()));
            let count = counter.count();
            let err = Labelled::new(label.clone(), io::stderr());
            (run.exec(guests, Box::new(counter), Box::new(err)), count)
        };
        let begin = Instant::now();
        let (mut ended, mut count) = attempt();
        if let Err(error) = &ended
            && error.downcast_ref::<Failure>().is_some_and(|failure| failure.status == NOT_READY)
        {
            // Nothing of ours has run in it: it is the machine that did not come up.
            steps.say(format_args!("{error:#}\nonce more"));
            (ended, count) = attempt();
        }
        let tally = outcome(&ended, &count).of(&format!("kernel {name}"));
        steps.line(tally.failed == 0, format_args!("kernel {name}: {tally}"), begin.elapsed());
        if let Err(error) = ended {
            steps.say(format_args!("{error:#}"));
        }
        tally
    }
}

/// How long before a guest is ended it tells what everybody in it waits for.
const LAST_WORDS: Duration = Duration::from_mins(1);

/// Tells what each thread of each program does, as far as the kernel tells.
const TELL_ALL: &str = r#"for process in /proc/[0-9]*; do
    [ -n "$(tr -d '\0' < $process/cmdline)" ] || continue
    for task in $process/task/*; do
        echo "$task $(cat $task/comm) in system call $(cat $task/syscall)"
        cat $task/stack
    done
done"#;

/// Runs these tests; their names are paths of Rust, which mean nothing to the shell. If they do not come to their end in
/// time, it is told what they wait for.
fn script(tests: &[String], seed: Option<u64>, timeout: Duration) -> String {
    let seed = seed.map_or_else(String::new, |seed| format!("{SEED}={seed} "));
    let patience = timeout.saturating_sub(LAST_WORDS).as_secs();
    let tests = tests.join(" ");
    // Who sleeps holds nothing open that the guest's end waits for.
    format!(
        "( sleep {patience} > /dev/null 2>&1; {TELL_ALL} ) >&2 2> /dev/null & watch=$!\n\
         env {seed}{PROGRAM} --test-threads=1 --exact {tests}; status=$?\n\
         kill $watch; exit $status"
    )
}

fn outcome(ended: &anyhow::Result<u8>, count: &Count) -> Tally {
    let counted = count.tally();
    let agree = match (ended, &counted) {
        // What the binary says and how it exits must agree.
        (Ok(status), Some(tally)) => (*status == 0) == (tally.failed == 0),
        _ => false,
    };
    let mut tally = counted.unwrap_or_default();
    if !agree {
        let running = count.running().map_or_else(String::new, |test| format!(" in {test}"));
        let why = match ended {
            Ok(status) => format!("exit status {status}"),
            // The lines after it are the console's.
            Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        tally += Tally::failure(format!("the guest ended{running}: {why}"));
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_without_a_tier_is_refused() {
        let tests =
            listed("rig::a::kernel: test\nunits::b::systemd: test\n\n2 tests, 0 benchmarks\n").unwrap();
        assert_eq!(
            tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>(),
            ["rig::a::kernel", "units::b::systemd"]
        );
        let refused = listed("rig::a::kernel: test\nrig::b: test\n").unwrap_err().to_string();
        assert!(refused.ends_with("#[test]: rig::b"), "{refused}");
    }

    #[test]
    fn the_script_names_each_test_and_the_seed() {
        let own = ["rig::a", "rig::units"].map(str::to_owned);
        let script = |seed| script(&own, seed, Duration::from_mins(10));
        assert!(script(None).contains("\nenv guest --test-threads=1 --exact rig::a rig::units;"));
        assert!(
            script(Some(7)).contains("\nenv ENFORCER_TEST_SEED=7 guest ")
                && script(None).contains("sleep 540 ")
        );
    }

    #[test]
    fn kernels_that_are_named_run_everything() {
        let named = [KernelName::V7_2];
        let of = |kernels, all| {
            let choice = Choice::of(kernels, all, None);
            (choice.kernels.len(), choice.whole_kernels.len())
        };
        assert_eq!((of(&[], false), of(&[], true)), ((3, 1), (3, 3)));
        assert_eq!((of(&named, false), of(&named, true)), ((1, 1), (1, 1)));
    }

    #[test]
    fn guest_that_died_is_a_failure() {
        let count = |printed: &str| {
            let mut counter = Counter::new(Vec::new());
            io::Write::write_all(&mut counter, printed.as_bytes()).unwrap();
            counter.count()
        };
        let good = count("test result: ok. 2 passed; 0 failed\n");
        assert_eq!(outcome(&Ok(0), &good), Tally { passed: 2, ..Tally::default() });
        assert_eq!(outcome(&Ok(101), &good).failures, ["the guest ended: exit status 101"]);
        let died = outcome(&Err(anyhow::anyhow!("timed out")), &count("test a ... ok\ntest b ... "));
        assert_eq!((died.failed, died.failures), (1, vec!["the guest ended in b: timed out".to_owned()]));
        let bad = count("test a ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n");
        let sum = outcome(&Ok(101), &bad);
        assert_eq!((sum.passed, sum.failed, sum.failures), (1, 1, vec!["a".to_owned()]));
        assert_eq!(outcome(&Ok(0), &bad).failed, 2);
    }
}
