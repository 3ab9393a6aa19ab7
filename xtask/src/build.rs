//! Builds the eBPF object, the programs that guests run, and the guest tests.
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{places::Places, run, setup::BpfToolchain};

/// Guests have no libraries, so their programs carry their own.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const STATIC: &str = "-Ctarget-feature=+crt-static";

/// How programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What is shipped and measured.
    Release,
    /// The same without what only takes time to build, for guests.
    Guest,
    /// Quick to build, with debug information and the eBPF programs' own diagnostics.
    Development,
}

impl Profile {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["--release"],
            Self::Guest => &["--profile", "guest"],
            Self::Development => &["--features", "enforcer/bpf-log"],
        }
    }
}

/// Builds the eBPF object.
pub(crate) fn bpf_object(
    places: &Places,
    toolchain: &BpfToolchain,
    profile: Profile,
) -> anyhow::Result<PathBuf> {
    let (folder, log) = match profile {
        Profile::Release | Profile::Guest => ("bpf", false),
        Profile::Development => ("bpf-log", true),
    };
    let folder = places.target.join(folder);
    let mut cargo = toolchain.compiler.cargo();
    // Always optimised: the kernel's verifier refuses what debug builds come to.
    cargo.args(["build", "--locked", "--package", "enforcer-ebpf", "--release", "-Zbuild-std=core"]);
    cargo.args(["--target", "bpfel-unknown-none", "--target-dir"]).arg(&folder);
    if log {
        cargo.args(["--features", "log"]);
    }
    let mut flags = std::ffi::OsString::from("-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Clinker=");
    flags.push(&toolchain.linker);
    run::output(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags).current_dir(&places.root))?;
    Ok(folder.join("bpfel-unknown-none/release/enforcer-ebpf"))
}

/// Builds the daemon and all programs of the tests' package, statically linked; answers name and path of each.
pub(crate) fn programs(
    places: &Places,
    object: &Path,
    profile: Profile,
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut cargo = static_cargo(places, object, "build");
    cargo.args(["--package", "enforcer", "--package", "enforcer-tests", "--bins"]).args(profile.arguments());
    let built = executables(&mut cargo, "bin")?;
    if !built.iter().any(|(name, _)| name == "enforcer") {
        bail!("cargo built no program enforcer");
    }
    Ok(built)
}

/// Builds the tests that run in guests.
pub(crate) fn guest_tests(places: &Places, object: &Path) -> anyhow::Result<PathBuf> {
    let mut cargo = static_cargo(places, object, "test");
    cargo.args(["--package", "enforcer-tests", "--features", "guest", "--test", "guest", "--no-run"]);
    cargo.args(Profile::Guest.arguments());
    let built = executables(&mut cargo, "test")?;
    let test = built.into_iter().find(|(name, _)| name == "guest");
    test.map(|(_, path)| path).context("cargo built no test binary `guest`")
}

/// Cargo for this host, as it was called, but for what `cargo run` tells this program of its own package: build scripts that
/// look at it would run again, and all that depends on them be built anew, whenever cargo is called in another way.
pub(crate) fn cargo(places: &Places) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let told = name
            .to_str()
            .is_some_and(|name| ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|own| name.starts_with(own)));
        if told {
            cargo.env_remove(name);
        }
    }
    cargo.current_dir(&places.root);
    cargo
}

fn static_cargo(places: &Places, object: &Path, verb: &str) -> Command {
    let mut cargo = cargo(places);
    cargo.args([verb, "--locked", "--target", TARGET, "--message-format", "json-render-diagnostics"]);
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", STATIC).env("ENFORCER_BPF_OBJECT", object);
    cargo
}

/// A message of cargo's, as far as it is of interest.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

fn executables(cargo: &mut Command, kind: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    parse_executables(&run::text(cargo)?, kind)
}

fn parse_executables(messages: &str, kind: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Message = serde_json::from_str(line).with_context(|| format!("cargo said {line}"))?;
        if let (Some(target), Some(executable)) = (message.target, message.executable)
            && target.kind.iter().any(|one| one == kind)
        {
            found.push((target.name, executable));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_those_of_the_kind() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"enforcer","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"enforcer","kind":["bin"]},"executable":"/t/enforcer"}
{"reason":"compiler-artifact","target":{"name":"guest","kind":["test"]},"executable":"/t/guest-1"}
{"reason":"build-finished","success":true}
"#;
        assert_eq!(parse_executables(messages, "bin").unwrap(), [("enforcer".into(), "/t/enforcer".into())]);
        assert_eq!(parse_executables(messages, "test").unwrap(), [("guest".into(), "/t/guest-1".into())]);
    }
}
