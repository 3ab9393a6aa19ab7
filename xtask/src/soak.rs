//! Repeats the tests that find rare faults, for hours, each pass with another seed.
mod results;

use std::{
    hash::{BuildHasher as _, RandomState},
    path::Path,
    time::Duration,
};

use self::results::Results;
use crate::{
    build::{self, Kind},
    ebpf,
    guest_tests::{Choice, Environment, Suite},
    places::Places,
    steps::Steps,
    tally::Tally,
    test,
    timeline::Timeline,
};

/// One guest of a pass: its tests run a hundred times as many rounds as in `vm test`.
const GUEST_TIMEOUT: Duration = Duration::from_hours(3);

/// How many cases each property of the host's tests runs; `cargo test` runs 256.
const CASES: u64 = 10_000;

/// The host's tests that try properties with random cases, or repeat a scene; the others would only run the same again.
const HOST_TESTS: &[&str] = &[
    "--package=enforcer",
    "--package=enforcer-policy",
    "--lib",
    "--test=quantity",
    "--test=stream",
    "--test=journal_survives_kill",
];

/// Runs passes until the time is over, at least one; returns 1 if something failed. Without a seed it takes a random
/// one. Tests share the time that is left for a pass: each begins no further round after its share.
pub(crate) fn command(places: &Places, time: Duration, seed: Option<u64>) -> anyhow::Result<u8> {
    let steps = Steps::Out;
    let timeline = Timeline::start();
    let first_seed = seed.unwrap_or_else(random_seed);
    let object = ebpf::provide(places, steps, Kind::Development)?;
    let object = object.as_deref();
    let suite = Suite::build(places, Choice::SOAK, object)?;
    let mut results = Results::default();
    let mut is_failure = false;
    for pass in 0.. {
        let seed = first_seed.wrapping_add(pass);
        steps.say(format_args!("\n=== pass {} with seed {seed} ===", pass + 1));
        let environment = Environment { seed: Some(seed), soak: true, soak_seconds: None };
        let mut sum = on_host(places, object, environment, seed)?;
        results.add_host(environment, &properties(seed), &sum);
        // A failure is repeated without a limit.
        let left = (!time.is_zero()).then(|| suite.share_of(time.saturating_sub(timeline.elapsed())));
        let limited = Environment { soak_seconds: left.map(|left| left.as_secs()), ..environment };
        for (batch, tally) in suite.run(limited, GUEST_TIMEOUT, &timeline) {
            results.add_batch(environment, batch.kernel, &batch.tests, &tally);
            sum += tally;
        }
        is_failure |= sum.is_failure();
        steps.say(format_args!("\n{results}"));
        steps.say(format_args!("pass {} with seed {seed}: {sum}", pass + 1));
        if timeline.elapsed() >= time {
            break;
        }
    }
    let hours = timeline.elapsed().as_secs_f64() / 3_600.0;
    steps.say(format_args!("{} in {hours:.2} h, first seed {first_seed}", results.totals()));
    Ok(is_failure.into())
}

/// Variables of the library proptest: the number of cases and their seed.
fn properties(seed: u64) -> [(&'static str, String); 2] {
    [("PROPTEST_CASES", CASES.to_string()), ("PROPTEST_RNG_SEED", seed.to_string())]
}

fn on_host(
    places: &Places,
    object: Option<&Path>,
    environment: Environment,
    seed: u64,
) -> anyhow::Result<Tally> {
    let mut command = build::host_tests(places, object);
    command.arg("--no-fail-fast").args(HOST_TESTS);
    test::cargo_test(command.envs(environment.variables()).envs(properties(seed)))
}

/// Short enough to be typed.
fn random_seed() -> u64 {
    RandomState::new().hash_one(()) % 1_000_000
}
