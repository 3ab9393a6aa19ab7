//! Every check and every test.
use std::{
    collections::BTreeMap,
    env,
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    budget::Budget,
    build, deny, ebpf,
    guest_tests::{self, Choice},
    pace::Pace,
    places::Places,
    run, setup,
    steps::Steps,
    tally::{Counter, Tally},
    tidy,
    timeline::Timeline,
};

/// Time limit of one guest's tests, emulated on a busy machine: more than three times what the slowest takes.
const GUEST_TIMEOUT: Duration = Duration::from_mins(40);

/// To build the components takes as long as half of everything else.
const NO_NODE: &str =
    "kube was not run: there are no components of a Kubernetes node; `cargo xtask kube` builds them";

const HOST_TESTS: &str = "host tests";

/// The steps that are checks, not tests.
const CHECKS: [&str; 5] = ["fmt", "tidy", "cargo deny", "clippy", "eBPF object"];

/// Runs everything, even after failures, and ends with the table of steps and the counts. A tier that takes half as
/// long again as its budget is a failure; budgets are scaled to the machine's pace.
pub(crate) fn everything(places: &Places, guest: bool) -> anyhow::Result<u8> {
    let budget = Budget::read(places)?;
    let node = setup::kube::is_built(places)?;
    let timeline = Timeline::start();
    let pace = Pace::start()?;
    let mut sum = Tally::default();
    sum += check(&timeline, "fmt", || cargo(places, &["fmt", "--all", "--check"]));
    sum += check(&timeline, "tidy", || tidy::check(places));
    if env::var_os(deny::WITHOUT).is_none() {
        sum += check(&timeline, "cargo deny", || {
            deny::check(places, &deny::program(places)?, &deny::WITHOUT_DATABASE)
        });
    }
    sum += check(&timeline, "clippy", || {
        cargo(places, &["clippy", "--locked", "--all-targets", "--all-features", "--", "-D", "warnings"])
    });
    let mut object = None;
    sum += check(&timeline, "eBPF object", || {
        object = ebpf::check(places, Steps::Out)?;
        Ok(())
    });
    sum += timeline.step(HOST_TESTS, || {
        let tally = part(HOST_TESTS, || on_host(places, object.as_deref()));
        let count = tally.as_ref().map_or(0, Tally::count);
        (tally, count)
    })?;
    if guest {
        sum += part("guest tests", || {
            let choice = Choice { node, ..Choice::BY_TIER };
            guest_tests::run(places, choice, object.as_deref(), GUEST_TIMEOUT, &timeline)
        })?;
    }
    let slowness = pace.finish();
    let (table, over) =
        budget.judge(&taken(&timeline, &sum), slowness.as_ref().map_or(1.0, |slowness| slowness.factor()));
    for what in over {
        sum += Tally::failure(what);
    }
    sum.summarize(Steps::Out, &timeline);
    Steps::Out.say(table);
    if guest && !node {
        Steps::Out.say(NO_NODE);
    }
    match slowness {
        Ok(slowness) => Steps::Out.say(slowness),
        Err(error) => Steps::Out.say(format_args!("the machine's pace is not known: {error:#}")),
    }
    Ok(sum.is_failure().into())
}

/// What each tier took: checks and host tests from their first step to their last, guest tests all of one tier
/// together, without the guests' boot.
fn taken(timeline: &Timeline, sum: &Tally) -> BTreeMap<String, Duration> {
    let mut taken = BTreeMap::new();
    let mut add = |tier: &str, took| *taken.entry(tier.to_owned()).or_default() += took;
    for name in CHECKS {
        add("checks", timeline.took(name));
    }
    add("host", timeline.took(HOST_TESTS));
    add("whole", timeline.elapsed());
    for (tier, took) in guest_tests::by_tier(&sum.durations) {
        add(tier, took);
    }
    taken
}

/// One check, counted as one test; its output is shown if it fails.
fn check(timeline: &Timeline, name: &str, check: impl FnOnce() -> anyhow::Result<()>) -> Tally {
    let result = timeline.step(name, || (Steps::Out.work(name, check), 1));
    if let Err(error) = &result {
        Steps::Out.say(format_args!("{error:#}"));
    }
    Tally::check(name, result.is_ok())
}

/// Several tests; if they do not come to their end, that is one failure, unless something is missing that cannot be
/// installed here.
fn part(name: &str, tests: impl FnOnce() -> anyhow::Result<Tally>) -> anyhow::Result<Tally> {
    match tests() {
        Err(error) if error.is::<crate::failure::Failure>() => Err(error),
        Err(error) => {
            Steps::Out.say(format_args!("FAIL {name}: {error:#}"));
            Ok(Tally::check(name, false))
        }
        Ok(tally) => Ok(tally),
    }
}

/// `cargo test`, shown as it runs.
fn on_host(places: &Places, object: Option<&Path>) -> anyhow::Result<Tally> {
    let mut command = build::host_tests(places, object);
    if env::var_os(setup::prometheus::VARIABLE).or(env::var_os(setup::prometheus::WITHOUT)).is_none() {
        command.env(setup::prometheus::VARIABLE, setup::prometheus(places, Steps::Out)?);
    }
    if env::var_os(setup::helm::VARIABLE).or(env::var_os(setup::helm::WITHOUT)).is_none() {
        command.env(setup::helm::VARIABLE, setup::helm(places, Steps::Out)?);
    }
    cargo_test(command.arg("--no-fail-fast"))
}

/// Runs a `cargo test`, shows its output as it comes, and counts.
pub(crate) fn cargo_test(command: &mut Command) -> anyhow::Result<Tally> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", run::shown(command)))?;
    let mut counter = Counter::new(io::stdout());
    if let Some(mut stdout) = child.stdout.take() {
        io::copy(&mut stdout, &mut counter)?;
    }
    counter.flush()?;
    let status = child.wait()?;
    let mut tally = counter.count().tally().unwrap_or_default();
    // Tests run beside each other here, so their lines do not say how long each took.
    tally.durations.clear();
    // A crate that does not compile, or a test binary that dies, has no result line.
    if status.success() != (tally.failed == 0) {
        tally += Tally::check("cargo test", false);
    }
    Ok(tally)
}

fn cargo(places: &Places, arguments: &[&str]) -> anyhow::Result<()> {
    run::output(build::cargo(places).args(arguments)).map(drop)
}
