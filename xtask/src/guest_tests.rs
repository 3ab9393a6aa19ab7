//! Runs the guest tests on some kernels.
use std::{
    io,
    time::{Duration, Instant},
};

use crate::{
    build,
    guest::{Guests, exec::Run, kernel::KernelName},
    places::Places,
    steps::Steps,
    tally::{Counter, Tally},
};

const MEMORY_MIB: u32 = 2048;
const CPUS: u32 = 2;

/// `cargo xtask vm test`.
pub(crate) fn command(
    places: &Places,
    kernels: &[KernelName],
    timeout: Duration,
    filter: Option<&str>,
) -> anyhow::Result<u8> {
    let kernels = if kernels.is_empty() { &KernelName::ALL } else { kernels };
    let tally = on_kernels(places, kernels, timeout, filter)?;
    Steps::Out.say(format_args!("\n{tally}"));
    Ok(u8::from(tally.failed > 0))
}

/// Builds the tests and runs them on each kernel; a guest that fails as a whole counts as one failed test.
pub(crate) fn on_kernels(
    places: &Places,
    kernels: &[KernelName],
    timeout: Duration,
    filter: Option<&str>,
) -> anyhow::Result<Tally> {
    let steps = Steps::Out;
    let guests = Guests::prepare(places, steps, kernels)?;
    let test = steps.work("guest tests", || build::guest_tests(places, &guests.object))?;
    let programs = [("guest".to_owned(), test)];
    let mut sum = Tally::default();
    for kernel in &guests.kernels {
        steps.say(format_args!("\n--- kernel {} ---", kernel.name));
        let counter = Counter::new(io::stdout());
        let count = counter.count();
        let script = script(filter);
        let run = Run {
            kernel,
            memory_mib: MEMORY_MIB,
            cpus: CPUS,
            timeout,
            files: &[],
            programs: &programs,
            script: script.as_bytes(),
        };
        let begin = Instant::now();
        let ended = run.exec(&guests, Box::new(counter), Box::new(io::stderr()));
        let tally = outcome(&ended, count.tally());
        sum += tally;
        steps.line(tally.failed == 0, format_args!("kernel {}: {tally}", kernel.name), begin.elapsed());
        if let Err(error) = ended {
            steps.say(format_args!("{error:#}"));
        }
    }
    Ok(sum)
}

fn script(filter: Option<&str>) -> String {
    const ALL: &str = "exec guest --test-threads=1";
    filter.map_or_else(|| ALL.to_owned(), |filter| format!("{ALL} '{}'", filter.replace('\'', r"'\''")))
}

fn outcome(ended: &anyhow::Result<u8>, counted: Option<Tally>) -> Tally {
    match (ended, counted) {
        // What the binary says and how it exits must agree.
        (Ok(0), Some(tally)) if tally.failed == 0 => tally,
        (Ok(status), Some(tally)) if *status != 0 && tally.failed > 0 => tally,
        (_, counted) => {
            let mut tally = counted.unwrap_or_default();
            tally += Tally::check(false);
            tally
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_quoted_for_the_shell() {
        assert_eq!(script(Some("a'b $(x)")), r"exec guest --test-threads=1 'a'\''b $(x)'");
    }

    #[test]
    fn guest_that_died_is_a_failure() {
        let good = Tally { passed: 2, failed: 0, ignored: 0 };
        assert_eq!(outcome(&Ok(0), Some(good)), good);
        assert_eq!(outcome(&Ok(0), None).failed, 1);
        assert_eq!(outcome(&Ok(101), Some(good)).failed, 1);
        assert_eq!(outcome(&Err(anyhow::anyhow!("panic")), Some(good)), Tally { failed: 1, ..good });
        let bad = Tally { passed: 1, failed: 1, ignored: 0 };
        assert_eq!(outcome(&Ok(101), Some(bad)), bad);
    }
}
