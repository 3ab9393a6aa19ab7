//! What a soak has found so far, as a table.
use std::{collections::BTreeMap, fmt};

use crate::{
    guest::kernel::KernelName,
    guest_tests::{Environment, assignments},
    rounds::{Holding, Rounds},
    tally::Tally,
};

/// The row of all tests of the host, in which each test counts as a round.
const HOST_TESTS: &str = "tests of enforcer";

/// The result of every test so far, and how to repeat failures.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// By test and its kernel; `None` on the host.
    rows: BTreeMap<(String, Option<KernelName>), Row>,
    failures: Vec<Failure>,
    repeated_boots: u64,
}

#[derive(Debug, Default)]
struct Row {
    rounds: Rounds,
    failed: u64,
}

#[derive(Debug)]
struct Failure {
    what: String,
    command: String,
}

impl Results {
    /// Adds one pass over the host's tests, which ran with these variables besides.
    pub(crate) fn add_host(
        &mut self,
        environment: Environment,
        properties: &[(&'static str, String)],
        tally: &Tally,
    ) {
        let row = self.rows.entry((HOST_TESTS.to_owned(), None)).or_default();
        row.rounds += Rounds { count: tally.count(), ..Rounds::default() };
        row.failed += tally.failed;
        let variables = assignments(environment.variables().chain(properties.iter().cloned()));
        for test in &tally.failures {
            let command = format!("{variables}cargo test -- --exact {test}");
            self.failures.push(Failure { what: format!("host: {test}"), command });
        }
    }

    /// Adds one pass over the tests of one guest.
    pub(crate) fn add_batch(
        &mut self,
        environment: Environment,
        kernel: KernelName,
        tests: &[String],
        tally: &Tally,
    ) {
        self.repeated_boots += tally.repeated_boots;
        for test in tests {
            let row = self.rows.entry((test.clone(), Some(kernel))).or_default();
            for (_, rounds) in tally.rounds.iter().filter(|(name, _)| name == test) {
                row.rounds += *rounds;
            }
        }
        let variables = assignments(environment.variables());
        for failure in &tally.failures {
            // If the guest died, the failure names the test that was running; if none was, all of them are repeated.
            let test = tests.iter().find(|test| failure.contains(test.as_str()));
            let command = match test {
                Some(test) => format!("{variables}cargo xtask vm test --kernel {kernel} {test}"),
                None => format!("cargo xtask soak --seed {}", environment.seed.unwrap_or_default()),
            };
            if let Some(test) = test {
                self.rows.entry((test.clone(), Some(kernel))).or_default().failed += 1;
            }
            self.failures.push(Failure { what: format!("kernel {kernel}: {failure}"), command });
        }
    }

    /// One line.
    pub(crate) fn totals(&self) -> String {
        let rounds: u64 = self.rows.values().map(|row| row.rounds.count).sum();
        format!("{rounds} rounds, {} failures, {} repeated boots", self.failures.len(), self.repeated_boots)
    }
}

/// One line per test, and two lines per failure.
impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.keys().map(|(test, _)| test.len()).max().unwrap_or_default();
        writeln!(
            f,
            "{:<width$}  {:<6} {:>7} {:>6}  {:>17}  {:>11}",
            "test", "kernel", "rounds", "failed", "RSS KiB first/last", "descriptors"
        )?;
        for ((test, kernel), Row { rounds, failed }) in &self.rows {
            let kernel = kernel.map_or_else(|| "host".to_owned(), |kernel| kernel.to_string());
            let held = |number: fn(Holding) -> u64| match (rounds.first, rounds.last) {
                (Some(first), Some(last)) => format!("{}/{}", number(first), number(last)),
                _ => "-".to_owned(),
            };
            writeln!(
                f,
                "{test:<width$}  {kernel:<6} {:>7} {failed:>6}  {:>18}  {:>11}",
                rounds.count,
                held(|held| held.resident_bytes / 1024),
                held(|held| held.descriptors)
            )?;
        }
        for Failure { what, command } in &self.failures {
            write!(f, "\nFAIL {what}\n     {command}\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_the_command_that_repeats_it() {
        let tests = ["crash::kills::daemon::repeats", "pins::storm::kernel::repeats"].map(str::to_owned);
        let held = |resident_bytes| Some(Holding { resident_bytes, descriptors: 41 });
        let rounds = Rounds { count: 50, first: held(8 << 20), last: held(9 << 20) };
        let died = "the guest ended in pins::storm::kernel::repeats: timed out".to_owned();
        let tally = Tally {
            failed: 2,
            failures: vec![died, "the guest ended: exit status 9".to_owned()],
            rounds: vec![(tests[0].clone(), rounds), (tests[0].clone(), rounds)],
            repeated_boots: 1,
            ..Tally::default()
        };
        let mut results = Results::default();
        let soak = |seed| Environment { seed: Some(seed), soak: true, soak_seconds: None };
        results.add_batch(soak(7), KernelName::V6_12, &tests, &tally);
        results.add_batch(soak(8), KernelName::V6_1, &tests[1..], &Tally::default());
        let host = Tally { passed: 499, ..Tally::failure("policy::a".to_owned()) };
        results.add_host(soak(7), &[("PROPTEST_CASES", "9".to_owned())], &host);
        let expected = "\
test                           kernel  rounds failed  RSS KiB first/last  descriptors
crash::kills::daemon::repeats  6.12       100      0           8192/9216        41/41
pins::storm::kernel::repeats   6.1          0      0                   -            -
pins::storm::kernel::repeats   6.12         0      1                   -            -
tests of enforcer              host       500      1                   -            -

FAIL kernel 6.12: the guest ended in pins::storm::kernel::repeats: timed out
     ENFORCER_TEST_SEED=7 ENFORCER_SOAK=1 cargo xtask vm test --kernel 6.12 pins::storm::kernel::repeats

FAIL kernel 6.12: the guest ended: exit status 9
     cargo xtask soak --seed 7

FAIL host: policy::a
     ENFORCER_TEST_SEED=7 ENFORCER_SOAK=1 PROPTEST_CASES=9 cargo test -- --exact policy::a
";
        assert_eq!(results.to_string(), expected);
        assert_eq!(results.totals(), "600 rounds, 3 failures, 1 repeated boots");
    }
}
