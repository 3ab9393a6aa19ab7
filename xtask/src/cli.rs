//! The commands and their arguments.
use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    fuzz::Target,
    guest::{
        Init,
        cpus::{Cpus, Topology},
        initramfs::FileToAdd,
        kernel::KernelName,
    },
};

/// Development commands: set-up, build, guests, tests and the demonstration.
///
/// Each installs what it lacks, into a cache (`$ENFORCER_CACHE`, else `enforcer` in `$XDG_CACHE_HOME` or `~/.cache`).
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Verb,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Install what is missing: eBPF compiler and linker, QEMU, guest kernels
    Setup {
        /// Lock the versions that the archive offers now, instead of installing the locked ones
        #[arg(long)]
        update_lock: bool,
    },
    /// Build the daemon, statically linked
    Build {
        /// Without optimisation, and with the eBPF programs' own diagnostics
        #[arg(long)]
        dev: bool,
    },
    /// Make the artifacts of a release, in `target/dist`: packages, image, bill of materials, provenance, checksums
    ///
    /// The file that `ENFORCER_SIGNING_KEY` names signs the checksums.
    Dist {
        /// Also for arm64, cross-built
        #[arg(long)]
        arm64: bool,
        /// Take changes that are in no commit, and mark the version `+dirty`
        #[arg(long)]
        allow_dirty: bool,
        /// Build once more in another folder, and compare every byte
        #[arg(long, conflicts_with = "allow_dirty")]
        check_reproducible: bool,
    },
    /// Go through the checklist of a release; fails unless everything on it is in order
    ReleaseCheck,
    /// Rebuild the eBPF object, after a change of its sources
    Ebpf,
    /// Build the components of Kubernetes 1.20.2, or take newer ones from the folder `KUBE_ASSETS`
    Kube,
    /// Work in guests with real kernels
    #[command(subcommand)]
    Vm(Vm),
    /// Check and test everything, including tests in guests
    Test {
        /// Leave out the tests in guests
        #[arg(long)]
        no_guest: bool,
    },
    /// Repeat the tests that find rare faults, in guests and natively, each pass with another seed
    Soak {
        /// Hours during which new passes begin, such as 0.5; one pass by default
        #[arg(long, value_name = "N", default_value = "0", value_parser = hours, hide_default_value = true)]
        hours: Duration,
        /// The first pass's seed, which each further pass increases by one; random by default, and printed
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Show the daemon at work, in a guest
    Run {
        /// Run the daemon on this host instead, in dry-run mode unless ARGS say otherwise
        #[arg(long)]
        host: bool,
        /// The daemon's arguments
        #[arg(last = true, requires = "host")]
        args: Vec<OsString>,
    },
    /// Make the pictures of the documents from a real run in a guest: a session in a terminal, and a report
    Pictures,
    /// Measure the daemon, also beside other programs
    #[command(subcommand)]
    Bench(Bench),
    /// Search for inputs that break the readers of files
    Fuzz {
        /// What to fuzz; everything by default
        #[arg(value_enum)]
        target: Option<Target>,
        /// Seconds per target
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
        seconds: u32,
    },
    /// Check the rules that no compiler checks
    Tidy,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// How often the kernel's OOM killer picks the pod that the ranking would, for both score policies
    Agreement {
        #[command(flatten)]
        machine: MachineArgs,
        /// Arguments of the benchmark, such as --sets 5
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Print records of OOM kills of that kernel, as tests on the host read them; nothing is judged
    Capture {
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// Who dies, how soon, and at whose cost: beside other daemons and the bare kernel in one guest
    Evict(EvictArgs),
    /// From a foreign write to the planned value again, for every kind of file and for scores
    Drift {
        #[command(flatten)]
        machine: MachineArgs,
        /// Arguments of the benchmark, such as --rounds 5
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// What processor time the daemon takes while others write its files or make cgroups without end
    Floods {
        #[command(flatten)]
        machine: MachineArgs,
        /// Arguments of the benchmark, such as --pods 100
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// What a converged daemon writes, and what processor time it takes
    Idle {
        #[command(flatten)]
        machine: MachineArgs,
        /// Arguments of the benchmark, such as --pods 100 --seconds 10
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// What the daemon holds in memory with many pods: at rest, after an eviction, after many changes; and what it is
    Memory {
        #[command(flatten)]
        machine: MachineArgs,
        /// Arguments of the benchmark, such as --pods 100
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// What a node that fills meets: the warning, the hook, the kill, and a pod that comes back at once
    Response {
        #[command(flatten)]
        machine: MachineArgs,
        /// The parts to measure, such as warning; all by default
        #[arg(value_name = "PART")]
        parts: Vec<OsString>,
        /// Arguments of the benchmark, such as --rounds 20
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// How soon, how completely and at what cost the kernel's facts are sensed
    Sense {
        #[command(flatten)]
        machine: MachineArgs,
        /// The parts to measure, such as wake; all by default
        #[arg(value_name = "PART")]
        parts: Vec<OsString>,
        /// Arguments of the benchmark, such as --rounds 20
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Events a second, delay, memory and durability of the event stream, natively, each against its bar
    Stream {
        /// Arguments of the benchmark, such as --only delay or --stall-seconds 5
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Planning, ranking and the other rules, natively, each against its bar
    Policy {
        /// Arguments of criterion, such as a name to measure only that
        #[arg(last = true)]
        args: Vec<OsString>,
    },
}

/// How evictions are measured.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The init is always systemd, which one of the contenders needs
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// The file for each run's figures, one line of JSON per run
    #[arg(long, value_name = "FILE")]
    pub(crate) raw: Option<PathBuf>,
    /// Keep the file's content, and judge it together with the new figures
    #[arg(long)]
    pub(crate) append: bool,
    /// Measure nothing; judge the file's content
    #[arg(long, conflicts_with_all = ["append", "args"])]
    pub(crate) judge: bool,
    /// Arguments of the benchmark, such as --runs 3 --contender enforcer --workload leak
    #[arg(last = true)]
    pub(crate) args: Vec<OsString>,
}

/// What to do in a guest.
#[derive(Debug, Subcommand)]
pub(crate) enum Vm {
    /// Run a shell script in a guest; its output and exit status are the command's
    Exec {
        #[command(flatten)]
        machine: MachineArgs,
        /// As a Kubernetes node named `guest`, once it is Ready: with `kubectl`, and the image `localhost/workload:latest`
        #[arg(long, conflicts_with = "init")]
        kube: bool,
        /// Seconds until a guest that is still busy is ended (exit status 124); 1800 for a Kubernetes node
        #[arg(
            long,
            default_value_t = 300,
            default_value_if("kube", "true", "1800"),
            value_parser = clap::value_parser!(u32).range(1..)
        )]
        timeout: u32,
        /// What `sh -c` runs
        #[arg(last = true, required = true, num_args = 1)]
        script: OsString,
    },
    /// Open an interactive shell in a guest
    Shell {
        #[command(flatten)]
        machine: MachineArgs,
    },
    /// Run the guest tests, each on the kernels of its tier
    Test {
        /// Run every test on this kernel, whatever its tier; may be repeated
        #[arg(long, value_enum)]
        kernel: Vec<KernelName>,
        /// Run every test on every kernel, whatever its tier
        #[arg(long, conflicts_with = "kernel")]
        all: bool,
        /// Seconds for the tests of one guest
        #[arg(long, default_value_t = 2400, value_parser = clap::value_parser!(u32).range(1..))]
        timeout: u32,
        /// Run only tests whose name contains this
        filter: Option<String>,
    },
    /// Run the demonstration
    Run {
        #[command(flatten)]
        machine: MachineArgs,
        /// Seconds until a guest that is still busy is ended
        #[arg(long, default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..))]
        timeout: u32,
    },
}

/// A guest's size and content.
#[derive(Debug, Args)]
pub(crate) struct MachineArgs {
    /// Its kernel
    #[arg(long, value_enum, default_value = "6.12")]
    pub(crate) kernel: KernelName,
    /// Its memory in MiB; 4096 for a Kubernetes node
    #[arg(
        long,
        default_value_t = 2048,
        default_value_if("kube", "true", "4096"),
        value_parser = clap::value_parser!(u32).range(128..=1_048_576)
    )]
    pub(crate) memory: u32,
    /// Its processors
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: u32,
    /// Its processors as sockets, cores in each and threads on each of those; each socket is a NUMA node
    #[arg(long, value_name = "sockets=N,cores=N,threads=N", conflicts_with = "cpus")]
    pub(crate) topology: Option<Topology>,
    /// Its init
    #[arg(long, value_enum, default_value_t)]
    pub(crate) init: Init,
    /// A parameter for its kernel, such as psi=0; may be repeated
    #[arg(long, value_name = "PARAMETER")]
    pub(crate) boot: Vec<String>,
    /// A file of this host to copy into the guest; folders are created
    #[arg(long, value_name = "HOST:GUEST")]
    pub(crate) file: Vec<FileToAdd>,
}

impl Default for MachineArgs {
    fn default() -> Self {
        Self {
            kernel: KernelName::V6_12,
            memory: 2048,
            cpus: 2,
            topology: None,
            init: Init::Own,
            boot: Vec::new(),
            file: Vec::new(),
        }
    }
}

impl MachineArgs {
    /// Its processors.
    pub(crate) fn cpus(&self) -> Cpus {
        self.topology.map_or(Cpus::Count(self.cpus), Cpus::Topology)
    }
}

/// Hours from the command line, which may be a fraction.
fn hours(text: &str) -> Result<Duration, String> {
    let hours: f64 = text.parse().map_err(|error| format!("`{text}`: {error}"))?;
    Duration::try_from_secs_f64(hours * 3_600.0).map_err(|error| error.to_string())
}

/// Seconds from the command line.
pub(crate) fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_soak_takes_fractions_of_an_hour() {
        let soak = |arguments: &[&str]| match Cli::try_parse_from(["xtask", "soak"].iter().chain(arguments)) {
            Ok(Cli { command: Verb::Soak { hours, seed } }) => Some((hours.as_secs(), seed)),
            _ => None,
        };
        assert_eq!(soak(&[]), Some((0, None)));
        assert_eq!(soak(&["--hours", "1.5", "--seed", "7"]), Some((5_400, Some(7))));
        for hours in ["-1", "long", "1e300"] {
            assert_eq!(soak(&["--hours", hours]), None, "{hours}");
        }
    }

    #[test]
    fn exec_takes_the_script_as_one_word() {
        assert!(
            Cli::try_parse_from(["xtask", "vm", "exec", "--kernel", "7.2", "--", "echo a; exit 3"]).is_ok()
        );
        assert!(Cli::try_parse_from(["xtask", "vm", "exec", "--kernel", "5.4", "--", "true"]).is_err());
        assert!(Cli::try_parse_from(["xtask", "vm", "exec"]).is_err());
    }

    #[test]
    fn a_kubernetes_node_has_more_memory_and_time_and_an_init_of_its_own() {
        let exec = |arguments: &[&str]| {
            let words = ["xtask", "vm", "exec"].iter().chain(arguments).chain(&["--", "true"]);
            match Cli::try_parse_from(words) {
                Ok(Cli { command: Verb::Vm(Vm::Exec { machine, timeout, kube, .. }) }) => {
                    Some((machine.memory, timeout, kube))
                }
                _ => None,
            }
        };
        assert_eq!(exec(&[]), Some((2048, 300, false)));
        assert_eq!(exec(&["--kube"]), Some((4096, 1800, true)));
        assert_eq!(exec(&["--kube", "--memory", "6144", "--timeout", "60"]), Some((6144, 60, true)));
        assert_eq!(exec(&["--kube", "--init", "own"]), None);
    }
}
