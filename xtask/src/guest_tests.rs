//! Runs the guest tests on some kernels.
use std::{
    collections::VecDeque,
    env, io,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    build::{self, Profile},
    failure::{Failure, NOT_READY},
    guest::{
        Guests, Init,
        exec::Run,
        kernel::{Kernel, KernelName},
    },
    labelled::Labelled,
    places::Places,
    run,
    steps::Steps,
    tally::{Count, Counter, Tally},
};

const MEMORY_MIB: u32 = 2048;
const CPUS: u32 = 2;

/// Guests together take no more of this machine's memory than two parts in so many.
const MEMORY_SHARE: u32 = 3;

/// No guest runs more tests than this, so that the last one is not waited for long.
const MOST_TESTS: usize = 40;

/// What tests that choose by chance take their seed from.
const SEED: &str = "ENFORCER_TEST_SEED";

/// The module whose tests need systemd, and so a guest of their own.
const WITH_SYSTEMD: &str = "units::";

/// The modules whose tests take minutes and are about the daemon alone: about what it runs before a kill, what it
/// foretells, whom it prefers, what it is ordered to do, and what it leaves behind when it is killed.
const ABOUT_THE_DAEMON: &[&str] =
    &["enforcement::crash::", "eviction::hook::", "eviction::orders::", "outlook::", "preference::"];

/// Where those run when everything is tested, and those with systemd: what they are about is not the kernel.
const ONE_KERNEL: &[KernelName] = &[KernelName::V6_12];

/// `cargo xtask vm test`.
pub(crate) fn command(
    places: &Places,
    kernels: &[KernelName],
    timeout: Duration,
    filter: Option<&str>,
) -> anyhow::Result<u8> {
    let tally = match kernels {
        [] => everything(places, timeout, filter)?,
        chosen => on_kernels(places, chosen, chosen, timeout, filter)?,
    };
    Steps::Out.say("");
    tally.name_failures(Steps::Out);
    Steps::Out.say(&tally);
    Ok(u8::from(tally.failed > 0))
}

/// Runs the tests on every kernel.
pub(crate) fn everything(places: &Places, timeout: Duration, filter: Option<&str>) -> anyhow::Result<Tally> {
    on_kernels(places, &KernelName::ALL, ONE_KERNEL, timeout, filter)
}

/// Builds the tests and runs them on each kernel, as many side by side as this machine carries; on some of the kernels
/// also those that are not about it.
fn on_kernels(
    places: &Places,
    kernels: &[KernelName],
    whole_kernels: &[KernelName],
    timeout: Duration,
    filter: Option<&str>,
) -> anyhow::Result<Tally> {
    let steps = Steps::Out;
    let seed = env::var(SEED).ok();
    let seed =
        seed.map(|seed| seed.parse().with_context(|| format!("{SEED}={seed} is no number"))).transpose()?;
    let mut guests = Guests::prepare(places, steps, kernels, Profile::Guest)?;
    let test = steps.work("guest tests", || build::guest_tests(places, &guests.object))?;
    let Parts { kernel: about_the_kernel, daemon, systemd } =
        Parts::of(&run::text(Command::new(&test).args(["--list", "--format", "terse"]))?, filter);
    if !systemd.is_empty() {
        guests = guests.with_init(Init::Systemd, steps)?;
    }
    let programs = [("guest".to_owned(), test)];
    let mut boots = VecDeque::new();
    let is_whole = |kernel: &&Kernel| whole_kernels.contains(&kernel.name);
    for kernel in guests.kernels.iter().filter(is_whole).filter(|_| !systemd.is_empty()) {
        let name = format!("{}, systemd", kernel.name);
        boots.push_back(Boot { kernel, init: Init::Systemd, name, script: script(&systemd, seed, timeout) });
    }
    for kernel in &guests.kernels {
        let mut tests = about_the_kernel.clone();
        if is_whole(&kernel) {
            tests.extend_from_slice(&daemon);
        }
        let shares = shares(&tests);
        for (share, tests) in shares.iter().enumerate() {
            let name = if shares.len() == 1 {
                kernel.name.to_string()
            } else {
                format!("{}, part {}", kernel.name, share + 1)
            };
            boots.push_back(Boot { kernel, init: Init::Own, name, script: script(tests, seed, timeout) });
        }
    }
    let at_once = at_once()?.min(boots.len());
    let waiting = Mutex::new(boots);
    let sum = Mutex::new(Tally::default());
    let work = || {
        loop {
            // Let go of before the guest is booted, which takes minutes.
            let next = lock(&waiting).pop_front();
            let Some(boot) = next else { return };
            let tally = boot.run(&guests, &programs, timeout, at_once > 1);
            *lock(&sum) += tally;
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    Ok(sum.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// How many guests this machine carries side by side.
fn at_once() -> anyhow::Result<usize> {
    let cpus = thread::available_parallelism().context("cannot count the cpus")?.get();
    let info = rustix::system::sysinfo();
    let memory_mib = (info.totalram * u64::from(info.mem_unit)) >> 20;
    let by_memory = memory_mib * 2 / u64::from(MEMORY_MIB * MEMORY_SHARE);
    // Each keeps a cpu busy, and now and then two.
    Ok((cpus * 3 / 4).min(usize::try_from(by_memory)?).max(1))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tests that are run in one guest.
#[derive(Debug)]
struct Boot<'a> {
    kernel: &'a Kernel,
    init: Init,
    name: String,
    script: String,
}

impl Boot<'_> {
    /// Runs them; a guest that fails as a whole counts as one failed test. Beside others each line says whose it is.
    fn run(
        &self,
        guests: &Guests,
        programs: &[(String, PathBuf)],
        timeout: Duration,
        beside_others: bool,
    ) -> Tally {
        let steps = Steps::Out;
        let name = &self.name;
        let label = if beside_others { format!("{name}: ") } else { String::new() };
        steps.say(format_args!("\n--- kernel {name} ---"));
        let run = Run {
            kernel: self.kernel,
            init: self.init,
            memory_mib: MEMORY_MIB,
            cpus: CPUS,
            timeout,
            boot: &[],
            files: &[],
            programs,
            script: self.script.as_bytes(),
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

/// The tests' names by where they run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    /// On each kernel.
    kernel: Vec<String>,
    /// On one.
    daemon: Vec<String>,
    /// In a guest with systemd.
    systemd: Vec<String>,
}

impl Parts {
    /// Those that contain `filter`, from the list that the binary prints.
    fn of(list: &str, filter: Option<&str>) -> Self {
        let mut parts = Self::default();
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        for name in names.filter(|name| filter.is_none_or(|filter| name.contains(filter))) {
            let part = if name.starts_with(WITH_SYSTEMD) {
                &mut parts.systemd
            } else if ABOUT_THE_DAEMON.iter().any(|module| name.starts_with(module)) {
                &mut parts.daemon
            } else {
                &mut parts.kernel
            };
            part.push(name.to_owned());
        }
        parts
    }
}

/// The tests for each guest of a kernel. Neighbours go to different ones: those of a module take about as long.
fn shares(tests: &[String]) -> Vec<Vec<String>> {
    let count = tests.len().div_ceil(MOST_TESTS);
    (0..count).map(|first| tests.iter().skip(first).step_by(count).cloned().collect()).collect()
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
         env {seed}guest --test-threads=1 --exact {tests}; status=$?\n\
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
    fn tests_run_where_they_belong() {
        let list = "rig::a: test\nunits::b: test\nrig::units: test\noutlook::c: test\n";
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let parts = Parts::of(list, None);
        assert_eq!(parts.kernel, of(&["rig::a", "rig::units"]));
        assert_eq!((parts.daemon, parts.systemd), (of(&["outlook::c"]), of(&["units::b"])));
        assert_eq!(Parts::of(list, Some("a")), Parts { kernel: of(&["rig::a"]), ..Parts::default() });
        let own = &parts.kernel;
        let script = |seed| script(own, seed, Duration::from_mins(10));
        assert!(script(None).contains("\nenv guest --test-threads=1 --exact rig::a rig::units;"));
        assert!(
            script(Some(7)).contains("\nenv ENFORCER_TEST_SEED=7 guest ")
                && script(None).contains("sleep 540 ")
        );
    }

    #[test]
    fn many_tests_are_split_and_none_is_lost() {
        let tests = |count: usize| (0..count).map(|number| format!("t::{number:03}")).collect::<Vec<_>>();
        assert_eq!(shares(&tests(0)), Vec::<Vec<String>>::new());
        assert_eq!(shares(&tests(MOST_TESTS)).len(), 1);
        let shares = shares(&tests(2 * MOST_TESTS + 1));
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [27; 3]);
        let mut all = shares.concat();
        all.sort();
        assert_eq!(all, tests(2 * MOST_TESTS + 1));
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
