//! Runs the guest tests on some kernels.
mod batch;
mod environment;
mod queue;
mod tier;

use std::{
    cmp::Reverse,
    io,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

pub(crate) use self::{
    batch::Batch,
    environment::{Environment, assignments},
};
use self::{
    batch::batches,
    queue::Queue,
    tier::{GuestTest, Tier},
};
use crate::{
    build::{self, Kind, Product},
    ebpf,
    failure::{Failure, NOT_READY},
    guest::{Guests, Init, exec::Run, kernel::KernelName, machine::Clock},
    labelled::Labelled,
    places::Places,
    run,
    setup::kube,
    steps::Steps,
    tally::{Count, Counter, Tally},
    timeline::Timeline,
};

const MEMORY_MIB: u32 = 2048;
/// The memory of a Kubernetes node.
const NODE_MEMORY_MIB: u32 = 4096;

/// Guests together take at most two parts in this many of the machine's memory.
const MEMORY_SHARE: u32 = 3;

/// The tests' program, in the guest and here.
const PROGRAM: &str = "guest";

/// The kernel for tests that are about the daemon alone.
const ONE_KERNEL: &[KernelName] = &[KernelName::V6_12];

/// Which tests run on which kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'a> {
    /// The kernels.
    pub(crate) kernels: &'a [KernelName],
    /// The kernels on which every test runs, whatever its tier.
    pub(crate) whole_kernels: &'a [KernelName],
    /// Only tests whose name contains this.
    pub(crate) filter: Option<&'a str>,
    /// Only tests that a soak repeats.
    pub(crate) repeating: bool,
    /// Without a filter: some tests on a Kubernetes node too.
    pub(crate) node: bool,
}

impl<'a> Choice<'a> {
    /// Each test on the kernels of its tier.
    pub(crate) const BY_TIER: Self = Self {
        kernels: &KernelName::ALL,
        whole_kernels: ONE_KERNEL,
        filter: None,
        repeating: false,
        node: false,
    };

    /// The tests that a soak repeats, each on the kernels of its tier.
    pub(crate) const SOAK: Self = Self { repeating: true, ..Self::BY_TIER };

    /// Every test on the named kernels. Without a name: by tier, or every test on every kernel with `all`.
    pub(crate) fn of(kernels: &'a [KernelName], all: bool, filter: Option<&'a str>) -> Self {
        match kernels {
            [] if all => Self { whole_kernels: &KernelName::ALL, filter, ..Self::BY_TIER },
            [] => Self { filter, ..Self::BY_TIER },
            kernels => Self { kernels, whole_kernels: kernels, filter, ..Self::BY_TIER },
        }
    }
}

/// `cargo xtask vm test`.
pub(crate) fn command(places: &Places, choice: Choice<'_>, timeout: Duration) -> anyhow::Result<u8> {
    let timeline = Timeline::start();
    let object = ebpf::provide(places, Steps::Out, Kind::Development)?;
    let tally = run(places, choice, object.as_deref(), timeout, &timeline)?;
    tally.summarize(Steps::Out, &timeline);
    Ok(tally.is_failure().into())
}

/// Builds the tests with this eBPF object (`None`: the one that is checked in), and runs them once.
pub(crate) fn run(
    places: &Places,
    choice: Choice<'_>,
    object: Option<&Path>,
    timeout: Duration,
    timeline: &Timeline,
) -> anyhow::Result<Tally> {
    let environment = Environment::of_this_process()?;
    let suite = timeline.step("guest tests, built", || (Suite::build(places, choice, object), 0))?;
    let mut sum = Tally::default();
    for (batch, tally) in suite.run(environment, timeout, timeline) {
        sum += tally.of(&format!("kernel {}", batch.name));
    }
    Steps::Out.say("");
    Ok(sum)
}

/// The guest tests as they are built, ready to be run any number of times.
#[derive(Debug)]
pub(crate) struct Suite {
    guests: Guests,
    batches: Vec<Batch>,
    at_once: usize,
}

impl Suite {
    /// Builds everything that the guests need and the tests' program, and decides which tests run together.
    pub(crate) fn build(places: &Places, choice: Choice<'_>, object: Option<&Path>) -> anyhow::Result<Self> {
        let steps = Steps::Out;
        if !Tier::KubeCurrent.is_left_out(choice.filter, choice.node) {
            kube::check_current()?;
        }
        let (kind, products) = (Kind::Development, [Product::GuestTests]);
        let mut guests = Guests::prepare_with(places, steps, choice.kernels, kind, &products, object)?;
        let test = build::program(&guests.programs, PROGRAM)?;
        let list = run::text(Command::new(test).args(["--list", "--format", "terse"]))?;
        let mut tests = listed(&list)?;
        tests.retain(|test| {
            choice.filter.is_none_or(|filter| test.matches(filter))
                && (test.repeats || !choice.repeating)
                && !test.tier.is_left_out(choice.filter, choice.node)
        });
        let batches = batches(&tests, choice.kernels, choice.whole_kernels);
        if batches.is_empty() {
            bail!("no guest test has a name that contains `{}`", choice.filter.unwrap_or_default());
        }
        if batches.iter().any(|batch| batch.need.init == Init::Systemd) {
            // One pass without what only the development build checks.
            guests = guests.with_init(Init::Systemd, steps)?.with_daemon_without_assertions(object, steps)?;
        }
        if batches.iter().any(|batch| batch.need.init == Init::Kube) {
            guests = guests.with_init(Init::Kube, steps)?;
        }
        if tests.iter().any(|test| test.tier == Tier::KubeCurrent) {
            guests = guests.with_chart(steps)?;
        }
        for init in [Init::Debian12, Init::Debian13] {
            if batches.iter().any(|batch| batch.need.init == init) {
                guests = guests.with_init(init, steps)?;
            }
        }
        let at_once = at_once(&batches)?;
        Ok(Self { guests, batches, at_once })
    }

    /// The share of that time for each test, if all take the same.
    pub(crate) fn share_of(&self, time: Duration) -> Duration {
        let tests: usize = self.batches.iter().map(|batch| batch.tests.len()).sum();
        let guests = u32::try_from(self.at_once).unwrap_or(1);
        time.saturating_mul(guests) / u32::try_from(tests.max(1)).unwrap_or(u32::MAX)
    }

    /// Runs the tests, in as many guests side by side as this machine can run. Returns each batch with its result.
    pub(crate) fn run(
        &self,
        environment: Environment,
        timeout: Duration,
        timeline: &Timeline,
    ) -> Vec<(Batch, Tally)> {
        let Self { guests, batches, at_once } = self;
        let queue = Queue::new(batches, *at_once);
        let results = Mutex::new(Vec::new());
        let work = || {
            // A guest that ends makes room for the next batch.
            while let Some((batch, _place)) = queue.next() {
                let boot = Boot { guests, batch, environment, timeout };
                let tally = timeline.step(&format!("kernel {}", batch.name), || {
                    let tally = boot.run(*at_once > 1);
                    let count = tally.count();
                    (tally, count)
                });
                results.lock().unwrap_or_else(PoisonError::into_inner).push((batch.clone(), tally));
            }
        };
        thread::scope(|scope| {
            for _ in 0..*at_once {
                scope.spawn(work);
            }
        });
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
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
        bail!("these tests have no tier; write #[guest_test(…)] and not #[test]: {}", without.join(", "));
    }
    Ok(tests)
}

/// How long the tests of each tier took together, by the words of their tiers; each name may begin with where it ran.
pub(crate) fn by_tier(durations: &[(String, Duration)]) -> impl Iterator<Item = (&'static str, Duration)> {
    durations.iter().filter_map(|(name, took)| {
        let test = GuestTest::parse(name.rsplit(' ').next()?)?;
        Some((test.tier.word(), *took))
    })
}

/// How many of the guests this machine can run side by side.
fn at_once(batches: &[Batch]) -> anyhow::Result<usize> {
    let cpus = thread::available_parallelism().context("cannot count the cpus")?.get();
    let info = rustix::system::sysinfo();
    let memory_mib = (info.totalram * u64::from(info.mem_unit)) >> 20;
    // A guest keeps less than one processor busy: its tests wait for clocks and events.
    Ok((cpus * 3 / 2).min(fitting(batches, memory_mib)))
}

/// How many of the guests, the largest ones, fit into a machine's memory; at least one.
fn fitting(batches: &[Batch], memory_mib: u64) -> usize {
    let mut left = memory_mib * 2 / u64::from(MEMORY_SHARE);
    let mut sizes: Vec<u64> = batches.iter().map(|batch| batch.memory_mib().into()).collect();
    sizes.sort_unstable_by_key(|size| Reverse(*size));
    let fits = |size: &u64| left.checked_sub(*size).inspect(|rest| left = *rest).is_some();
    sizes.into_iter().take_while(fits).count().max(1)
}

/// One guest and its tests.
#[derive(Debug)]
struct Boot<'a> {
    guests: &'a Guests,
    batch: &'a Batch,
    environment: Environment,
    timeout: Duration,
}

impl Boot<'_> {
    /// Runs them; a guest that fails as a whole counts as one failed test. Beside others each line has the guest's
    /// label.
    fn run(&self, beside_others: bool) -> Tally {
        let steps = Steps::Out;
        let Self { guests, batch, environment, timeout } = *self;
        let name = &batch.name;
        let Some(kernel) = guests.kernels.iter().find(|kernel| kernel.name == batch.kernel) else {
            return Tally::failure("the kernel was not set up".to_owned());
        };
        let label = if beside_others { format!("{name}: ") } else { String::new() };
        steps.say(format_args!("\n--- kernel {name} ---"));
        let script = script(batch, environment, timeout);
        let boot: Vec<String> = batch.need.boot.iter().map(|&parameter| parameter.to_owned()).collect();
        let run = Run {
            kernel,
            init: batch.need.init,
            memory_mib: batch.memory_mib(),
            cpus: batch.need.cpus,
            clock: Clock::Host,
            timeout,
            boot: &boot,
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
        let ((ended, count), repeated_boots) = booted(attempt, |error| {
            steps.say(format_args!("{error:#}\nkernel {name}: boots a second time"));
        });
        let tally = Tally { repeated_boots, ..outcome(&ended, &count) };
        steps.line(tally.failed == 0, format_args!("kernel {name}: {tally}"), begin.elapsed());
        if let Err(error) = ended {
            steps.say(format_args!("{error:#}"));
        }
        tally
    }
}

/// The result of running a guest, and how many boots were repeated: a guest that does not come up gets a second
/// attempt, which is reported and counted. No test has run in the first attempt, so it can hide no test's failure.
fn booted<T>(
    mut attempt: impl FnMut() -> (anyhow::Result<u8>, T),
    report: impl FnOnce(&anyhow::Error),
) -> ((anyhow::Result<u8>, T), u64) {
    let first = attempt();
    match &first.0 {
        Err(error) if error.downcast_ref::<Failure>().is_some_and(|failure| failure.status == NOT_READY) => {
            report(error);
            (attempt(), 1)
        }
        _ => (first, 0),
    }
}

/// How long before its end a guest prints what its threads wait for.
const LAST_WORDS: Duration = Duration::from_mins(1);

/// Prints what each thread of each program does, as far as the kernel reports it.
const PRINT_STACKS: &str = r#"for process in /proc/[0-9]*; do
    [ -n "$(tr -d '\0' < $process/cmdline)" ] || continue
    for task in $process/task/*; do
        echo "$task $(cat $task/comm) in system call $(cat $task/syscall)"
        cat $task/stack
    done
done"#;

/// Runs these tests; their names are Rust paths, which need no quoting in a shell. If they do not end in time, it
/// prints what they wait for.
fn script(batch: &Batch, environment: Environment, timeout: Duration) -> String {
    let variables = assignments(environment.variables());
    // The output of a passed test has the number of its rounds, or what was measured. A node's tests take minutes each: theirs
    // is shown as it comes, and not lost if the guest ends.
    let options = match batch.need.init {
        Init::Kube => " --nocapture",
        // How exposed the unit is, and how soon the daemon is back.
        Init::Debian12 | Init::Debian13 => " --show-output",
        _ if environment.soak || batch.need.alone => " --show-output",
        _ => "",
    };
    let patience = timeout.saturating_sub(LAST_WORDS).as_secs();
    let tests = batch.tests.join(" ");
    // Scenes are sized by MemAvailable. Since Linux 6.7 the processors' lists of free pages may hold up to an eighth of the
    // memory (`zone_set_pageset_high_and_batch`). MemAvailable does not count it, and the next load gets it first. A 128th
    // is little beside the scenes' margins.
    let settings = match batch.need.init {
        Init::Own => "echo 128 > /proc/sys/vm/percpu_pagelist_high_fraction\n",
        _ => "",
    };
    // The sleeping process keeps no stream open that the guest's end waits for.
    format!(
        "{settings}( sleep {patience} > /dev/null 2>&1; {PRINT_STACKS} ) >&2 2> /dev/null & watch=$!\n\
         env {variables}{PROGRAM} --test-threads=1{options} --exact {tests}; status=$?\n\
         kill $watch; exit $status"
    )
}

fn outcome(ended: &anyhow::Result<u8>, count: &Count) -> Tally {
    let counted = count.tally();
    let agree = match (ended, &counted) {
        // The binary's output and its exit status must agree.
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
    use super::{tier::Need, *};
    use crate::failure::GUEST_DIED;

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
        let of = |init, seed, soak| {
            let tests = ["rig::a", "rig::units"].map(str::to_owned).to_vec();
            let need = Need { init, ..Need::default() };
            let batch = Batch { kernel: KernelName::V6_12, need, name: String::new(), tests };
            script(&batch, Environment { seed, soak, soak_seconds: None }, Duration::from_mins(10))
        };
        let script = |seed, soak| of(Init::Own, seed, soak);
        let plain = script(None, false);
        assert!(plain.contains("\nenv guest --test-threads=1 --exact rig::a rig::units;"), "{plain}");
        assert!(plain.contains("sleep 540 "), "{plain}");
        assert!(plain.starts_with("echo 128 > /proc/sys/vm/percpu_pagelist_high_fraction\n"), "{plain}");
        assert!(script(Some(7), false).contains("\nenv ENFORCER_TEST_SEED=7 guest "));
        let soak = script(Some(7), true);
        let command =
            "\nenv ENFORCER_TEST_SEED=7 ENFORCER_SOAK=1 guest --test-threads=1 --show-output --exact ";
        assert!(soak.contains(command), "{soak}");
        let node = of(Init::Kube, None, false);
        assert!(node.contains("\nenv guest --test-threads=1 --nocapture --exact rig::a"), "{node}");
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
    fn guests_run_side_by_side_as_far_as_they_fit_into_memory() {
        let batch = |init| Batch {
            kernel: KernelName::V6_12,
            need: Need { init, ..Need::default() },
            name: String::new(),
            tests: Vec::new(),
        };
        let own = [Init::Own, Init::Own, Init::Systemd].map(batch);
        let with_node = [Init::Own, Init::Kube, Init::Own].map(batch);
        assert_eq!([3_000, 6_200, 9_300].map(|memory_mib| fitting(&own, memory_mib)), [1, 2, 3]);
        assert_eq!([6_200, 9_300, 12_400].map(|memory_mib| fitting(&with_node, memory_mib)), [1, 2, 3]);
    }

    #[test]
    fn only_a_guest_that_did_not_come_up_is_booted_a_second_time_and_counted() {
        let run = |results: &[Result<u8, u8>]| {
            let mut attempts = results.iter();
            let mut reports = 0;
            let ((ended, attempt), repeated) = booted(
                || {
                    let left = attempts.len();
                    let result = *attempts.next().unwrap();
                    (result.map_err(|status| Failure::new(status, "why").into()), results.len() - left)
                },
                |_| reports += 1,
            );
            assert_eq!(reports, repeated);
            (ended.ok(), attempt, repeated)
        };
        assert_eq!(run(&[Ok(0)]), (Some(0), 0, 0));
        assert_eq!(run(&[Ok(NOT_READY)]), (Some(NOT_READY), 0, 0));
        assert_eq!(run(&[Err(GUEST_DIED)]), (None, 0, 0));
        assert_eq!(run(&[Err(NOT_READY), Ok(101)]), (Some(101), 1, 1));
        assert_eq!(run(&[Err(NOT_READY), Err(NOT_READY)]), (None, 1, 1));
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
