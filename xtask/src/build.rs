//! Builds what runs in guests, and the tests of the host, from one set of dependencies.
use std::{
    env, fs,
    num::NonZero,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::Context as _;
use serde::Deserialize;

use crate::{places::Places, run};

/// Guests have no libraries, so their programs are linked statically.
const TARGET: &str = "x86_64-unknown-linux-gnu";
pub(crate) const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Names another eBPF object than the one that is checked in, to `enforcer/build.rs`.
pub(crate) const OBJECT_VARIABLE: &str = "ENFORCER_BPF_OBJECT";

/// The profile in Cargo.toml of what users run, and its folder in a target's.
pub(crate) const SHIPPED: &str = "shipped";

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What is shipped and measured.
    Release,
    /// Development, without the assertions and overflow checks that a release does not have.
    WithoutAssertions,
    /// Quick to build and to build again: for tests, in guests and on the host.
    Development,
    /// The same, with the eBPF programs' own diagnostics.
    Diagnostic,
}

impl Kind {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["--profile", SHIPPED],
            // There are no examples: the flag makes cargo choose the features that tests have, so that programs and
            // tests are built from one set of dependencies.
            Self::WithoutAssertions | Self::Development => &["--examples"],
            Self::Diagnostic => &["--examples", "--features", "enforcer/bpf-log"],
        }
    }

    /// What differs from the profile in Cargo.toml. A profile of its own would have all dependencies built again.
    fn settings(self) -> impl Iterator<Item = String> {
        let packages = if self == Self::WithoutAssertions { OWN_PACKAGES } else { &[] };
        packages.iter().flat_map(|package| {
            ["debug-assertions", "overflow-checks"]
                .map(|check| format!("--config=profile.dev.package.{package}.{check}=false"))
        })
    }
}

/// The packages that the daemon is made of.
const OWN_PACKAGES: &[&str] = &["enforcer", "enforcer-common", "enforcer-events", "enforcer-policy"];

/// Something to build for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// The daemon.
    Daemon,
    /// What every guest has: its init, and the loads.
    GuestPrograms,
    /// The demonstration.
    Demonstration,
    /// The session of which the project's pictures are made.
    Session,
    /// The benchmarks that run in guests.
    Bench,
    /// The tests that run in guests.
    GuestTests,
}

impl Product {
    /// Products that every guest needs.
    pub(crate) const GUEST: [Self; 2] = [Self::Daemon, Self::GuestPrograms];

    fn arguments(self) -> Vec<&'static str> {
        match self {
            Self::Daemon => vec!["--package", "enforcer", "--bin", "enforcer"],
            Self::GuestPrograms => {
                vec!["--package", "guest-programs", "--bin", "guest-init", "--bin", "workload"]
            }
            Self::Demonstration => vec!["--package", "enforcer-tests", "--bin", "demo"],
            Self::Session => vec!["--package", "enforcer-tests", "--bin", "session"],
            Self::Bench => vec!["--package", "enforcer-bench", "--bin", "bench"],
            Self::GuestTests => {
                vec!["--package", "guest-tests", "--features", "guest-tests/guest", "--test", "guest"]
            }
        }
    }
}

/// Programs by name.
pub(crate) type Programs = Vec<(String, PathBuf)>;

/// Builds these, statically linked. They embed `object`, or without one the object that is checked in.
pub(crate) fn build(
    places: &Places,
    object: Option<&Path>,
    kind: Kind,
    products: &[Product],
) -> anyhow::Result<Programs> {
    let mut cargo = static_cargo(places, object);
    cargo.args(["build", "--locked", "--target", TARGET, "--message-format", "json-render-diagnostics"]);
    cargo
        .args(kind.settings())
        .args(kind.arguments())
        .args(products.iter().flat_map(|product| product.arguments()));
    parse_executables(&run::text(&mut cargo)?)
}

/// The program of this name.
pub(crate) fn program<'a>(programs: &'a Programs, name: &str) -> anyhow::Result<&'a Path> {
    let found = programs.iter().find(|(own, _)| own == name);
    found.map(|(_, path)| path.as_path()).with_context(|| format!("cargo built no program `{name}`"))
}

/// Says how many tests run beside each other.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";

/// How many tests of the host run beside each other on each processor: most of them wait.
const TESTS_PER_PROCESSOR: usize = 3;

/// `cargo test` for this host, with the flags and the features of what guests run.
pub(crate) fn host_tests(places: &Places, object: Option<&Path>) -> Command {
    let mut cargo = static_cargo(places, object);
    cargo.args(["test", "--locked", "--target", TARGET]);
    if env::var_os(THREADS_VARIABLE).is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env(THREADS_VARIABLE, (processors * TESTS_PER_PROCESSOR).to_string());
    }
    cargo
}

/// Cargo for this host, in the caller's environment without the variables that `cargo run` sets about this package:
/// build scripts that read them would run again, and everything that depends on them be rebuilt, with each other call
/// of cargo.
pub(crate) fn cargo(places: &Places) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let reported = name
            .to_str()
            .is_some_and(|name| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|own| name.starts_with(own)));
        if reported {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(&places.root);
    cargo
}

/// Cargo's own folder.
pub(crate) fn cargo_home() -> anyhow::Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| env::home_dir().map(|home| home.join(".cargo")))
        .context("there is no HOME; set CARGO_HOME")
}

/// Where cargo keeps the sources of packages: a folder a registry, with a hash in its name. This program's own dependencies came
/// from there.
pub(crate) fn registries() -> anyhow::Result<Vec<PathBuf>> {
    let folder = cargo_home()?.join("registry/src");
    let registries = fs::read_dir(folder).into_iter().flatten().map(|registry| Ok(registry?.path()));
    registries.collect()
}

fn static_cargo(places: &Places, object: Option<&Path>) -> Command {
    let mut cargo = cargo(places);
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", STATIC);
    match object {
        Some(object) => cargo.env(OBJECT_VARIABLE, object),
        None => cargo.env_remove(OBJECT_VARIABLE),
    };
    cargo
}

/// The parts of cargo's messages that are used.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The programs that cargo said it built.
pub(crate) fn parse_executables(messages: &str) -> anyhow::Result<Programs> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).with_context(|| format!("cargo said {line}"))?;
        if let (Some(target), Some(executable)) = (message.target, message.executable) {
            found.push((target.name, executable));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_by_name() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"enforcer","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"enforcer","kind":["bin"]},"executable":"/t/enforcer"}
{"reason":"compiler-artifact","target":{"name":"guest","kind":["test"]},"executable":"/t/guest-1"}
{"reason":"build-finished","success":true}
"#;
        let programs = parse_executables(messages).unwrap();
        assert_eq!(program(&programs, "enforcer").unwrap(), Path::new("/t/enforcer"));
        assert_eq!(program(&programs, "guest").unwrap(), Path::new("/t/guest-1"));
        assert_eq!(program(&programs, "demo").unwrap_err().to_string(), "cargo built no program `demo`");
    }
}
