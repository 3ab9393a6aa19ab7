//! The work: which pods there are, what they do, and who should die of it.

use clap::ValueEnum;
use enforcer_tests::pods::{Container, pod};

use super::scene::MIB;

/// The Guaranteed pod whose stalls are measured, in every workload.
pub(crate) const WITNESS: &str = "vip";

/// What it holds.
const WITNESS_BYTES: u64 = 64 * MIB;

/// Pods that are all alike.
const HOGS: [&str; 10] =
    ["hog-0", "hog-1", "hog-2", "hog-3", "hog-4", "hog-5", "hog-6", "hog-7", "hog-8", "hog-9"];

/// One kind of work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Workload {
    /// A BestEffort pod that grows by 25 MiB/s
    #[value(name = "hog-25")]
    Hog25,
    /// A BestEffort pod that grows by 100 MiB/s
    #[value(name = "hog-100")]
    Hog100,
    /// A BestEffort pod that grows by 300 MiB/s
    #[value(name = "hog-300")]
    Hog300,
    /// A BestEffort pod that grows as fast as the guest can fill memory
    #[value(name = "hog-full")]
    HogFull,
    /// A Burstable pod that leaks beyond its request, beside a larger one within its own
    #[value(name = "leak")]
    Leak,
    /// Two pods above their requests, of which the smaller has the lower priority
    #[value(name = "priority")]
    Priority,
    /// Three BestEffort pods that grow at once, each at its own rate
    #[value(name = "three-hogs")]
    ThreeHogs,
    /// Ten BestEffort pods that grow at once, all by 40 MiB/s
    #[value(name = "ten-hogs")]
    TenHogs,
    /// A file larger than what is free, read again and again: no pod should die
    #[value(name = "churn")]
    Churn,
    /// A BestEffort pod of small processes, each of which starts another
    #[value(name = "fork-bomb")]
    ForkBomb,
}

impl std::fmt::Display for Workload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value();
        formatter.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// One pod of the work.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    /// Its manifest.
    pub(crate) manifest: String,
    /// What runs in it.
    pub(crate) command: Vec<String>,
    /// Whether it begins when all others hold what they hold; it stops itself before.
    pub(crate) grows: bool,
}

/// A workload for a machine.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) pods: Vec<Spec>,
    /// The pods that should die, in this order, and no others.
    pub(crate) expected: &'static [&'static str],
    /// Whether they may die in any order.
    pub(crate) any_order: bool,
}

impl Workload {
    /// The work, where one pod is to hold that much, so that little is left above the threshold.
    pub(crate) fn work(self, ballast_bytes: u64) -> Work {
        let within = |name| held(name, 0, ballast_bytes + 64 * MIB, ballast_bytes);
        let ramp = |name, request_mib, mib_a_second: u64| {
            growing(name, request_mib, &["ramp", "--rate", &format!("{mib_a_second}Mi")])
        };
        let (rest, expected): (Vec<Spec>, &'static [&'static str]) = match self {
            Self::Hog25 => (vec![within("ballast"), ramp("hog", 0, 25)], &["hog"]),
            Self::Hog100 => (vec![within("ballast"), ramp("hog", 0, 100)], &["hog"]),
            Self::Hog300 => (vec![within("ballast"), ramp("hog", 0, 300)], &["hog"]),
            Self::HogFull => {
                (vec![within("ballast"), growing("hog", 0, &["spike", "--size", "8Gi"])], &["hog"])
            }
            // Its request is nearly all that it holds; the other's is soon behind it.
            Self::Leak => (vec![within("larger"), ramp("leaky", 64, 50)], &["leaky"]),
            Self::Priority => {
                let big = held("big", 1_000, 128 * MIB, ballast_bytes);
                (vec![big, ramp("small", 32, 50)], &["small"])
            }
            // By what is above the request: the fastest first, and the others as they come to it.
            Self::ThreeHogs => (
                // Together no more than an emulated machine gives them: one that is held up is not the largest any more.
                vec![within("ballast"), ramp("first", 0, 80), ramp("second", 0, 40), ramp("third", 0, 20)],
                &["first", "second", "third"],
            ),
            Self::TenHogs => {
                let mut pods = vec![within("ballast")];
                pods.extend(HOGS.map(|hog| ramp(hog, 0, 40)));
                (pods, &HOGS)
            }
            Self::Churn => {
                let read = ["cache", "--file", "/dev/zram0", "--size", "1Gi"];
                (vec![within("ballast"), growing("reader", 0, &read)], &[])
            }
            Self::ForkBomb => {
                let light = ["bomb", "--size", "1Mi", "--pace", "10ms", "--chains", "4"];
                (vec![within("ballast"), growing("bomb", 0, &light)], &["bomb"])
            }
        };
        let mut pods = vec![witness()];
        pods.extend(rest);
        Work { pods, expected, any_order: self == Self::TenHogs }
    }
}

fn witness() -> Spec {
    let limits = "cpu: 1, memory: 128Mi";
    Spec {
        name: WITNESS,
        manifest: pod(WITNESS, 0, &[Container { name: "app", requests: limits, limits }]),
        // It measures how long its writes are held up.
        command: words(&["workload", "hold", "--size", &WITNESS_BYTES.to_string(), "--touch-every", "2ms"]),
        grows: false,
    }
}

/// A Burstable pod that holds a constant amount.
fn held(name: &'static str, priority: i32, request_bytes: u64, bytes: u64) -> Spec {
    let requests = format!("memory: {request_bytes}");
    Spec {
        name,
        manifest: pod(name, priority, &[Container { name: "app", requests: &requests, limits: "" }]),
        // In use, and yet next to no work.
        command: words(&["workload", "hold", "--size", &bytes.to_string(), "--touch-every", "200ms"]),
        grows: false,
    }
}

/// Stops itself and becomes what it is given once it is let on: several begin at the same moment, however long it takes to
/// bring each into its pod.
const AT_THE_LINE: [&str; 4] = ["sh", "-c", "kill -STOP $$ && exec \"$@\"", "sh"];

/// A pod of priority 0, BestEffort where it requests nothing, whose process waits at the line.
fn growing(name: &'static str, request_mib: u64, load: &[&str]) -> Spec {
    let requests = if request_mib == 0 { String::new() } else { format!("memory: {request_mib}Mi") };
    Spec {
        name,
        manifest: pod(name, 0, &[Container { name: "app", requests: &requests, limits: "" }]),
        command: words(&[&AT_THE_LINE[..], &["workload"], load].concat()),
        grows: true,
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_victims_are_pods_that_grow() {
        for workload in Workload::value_variants() {
            let Work { pods, expected, any_order: _ } = workload.work(1_000 * MIB);
            assert_eq!(pods[0].name, WITNESS, "{workload}");
            for victim in expected {
                assert!(pods.iter().any(|pod| pod.name == *victim && pod.grows), "{workload}: {victim}");
            }
            assert!(pods.len() <= enforcer_tests::sampler::HOLDERS, "{workload}");
            assert!(pods.iter().any(|pod| pod.grows), "{workload}");
        }
    }
}
