//! The eBPF object: checked in, rebuilt if its sources have changed, and rebuilt to verify that it matches them.
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use ebpf_object::{OBJECT, REBUILD, RECORD, Record, Sources, Toolchain};
use object::{Object as _, ObjectSection as _};

use crate::{
    build::{self, Kind},
    pins,
    places::Places,
    run,
    setup::{self, BpfToolchain},
    steps::Steps,
};

/// The object that a build embeds; `None` for the one that is checked in.
pub(crate) fn provide(places: &Places, steps: Steps, kind: Kind) -> anyhow::Result<Option<PathBuf>> {
    let log = kind == Kind::Diagnostic;
    if !log && ebpf_object::checked_in(&places.root).is_ok() {
        return Ok(None);
    }
    let toolchain = setup::bpf_toolchain(places, steps)?;
    let name =
        if log { "eBPF object with diagnostics" } else { "eBPF object, since its sources have changed" };
    steps.work(name, || build(places, &toolchain, log)).map(Some)
}

/// The object for machines of another architecture than that of the object that is checked in.
pub(crate) fn provide_for(places: &Places, steps: Steps, architecture: &str) -> anyhow::Result<PathBuf> {
    let toolchain = setup::bpf_toolchain(places, steps)?;
    let name = format!("eBPF object for {architecture}");
    steps.work(name, || build_for(places, &toolchain, &format!("bpf-{architecture}"), false, architecture))
}

/// `cargo xtask ebpf`: builds the object and its record.
pub(crate) fn rebuild(places: &Places) -> anyhow::Result<u8> {
    let toolchain = setup::bpf_toolchain(places, Steps::Out)?;
    let built = Steps::Out.work("eBPF object", || build(places, &toolchain, false))?;
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let record = Record {
        sources: Sources::find(&places.root)?.sha256(),
        object: ebpf_object::sha256(&bytes),
        toolchain: versions(&toolchain),
    };
    for (path, content) in [(OBJECT, bytes), (RECORD, record.to_string().into_bytes())] {
        let path = places.root.join(path);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        Steps::Out.say(format_args!("     {}", path.display()));
    }
    Ok(0)
}

/// Builds the object and compares it with the one that is checked in. Built by the recorded toolchain it must be equal;
/// built by another one it may differ, and is then returned, for tests to run on.
pub(crate) fn check(places: &Places, steps: Steps) -> anyhow::Result<Option<PathBuf>> {
    let checked_in = ebpf_object::checked_in(&places.root)?;
    let recorded = Record::read(&places.root.join(RECORD))?.toolchain;
    let toolchain = setup::bpf_toolchain(places, steps)?;
    let built = steps.work("eBPF object", || build(places, &toolchain, false))?;
    let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let differences = differences(&read(&checked_in)?, &read(&built)?)?;
    if differences.is_empty() {
        return Ok(None);
    }
    let (differences, own) = (differences.join(", "), versions(&toolchain));
    if own == recorded {
        bail!("{OBJECT} differs from what its sources give, in {differences}; run `{REBUILD}`");
    }
    steps.say(format_args!(
        "{OBJECT} was built by another toolchain than this one's, and differs in {differences}.\n\
         Guest tests run on the object that this one built.\nrecorded:\n{recorded}here:\n{own}"
    ));
    Ok(Some(built))
}

fn versions(toolchain: &BpfToolchain) -> Toolchain {
    let compiler = &toolchain.compiler;
    Toolchain {
        rustc: format!("{} ({})", compiler.release, compiler.commit),
        rustc_llvm: compiler.llvm.clone(),
        bpf_linker: pins::BPF_LINKER.to_owned(),
        linker_llvm: toolchain.linker_llvm.clone(),
    }
}

/// Builds the object below the target folder, the same in every folder and for every user.
fn build(places: &Places, toolchain: &BpfToolchain, log: bool) -> anyhow::Result<PathBuf> {
    build_for(places, toolchain, if log { "bpf-log" } else { "bpf" }, log, ebpf_object::ARCHITECTURE)
}

/// The same, for programs that read arguments as kernels of `architecture` pass them.
fn build_for(
    places: &Places,
    toolchain: &BpfToolchain,
    folder: &str,
    log: bool,
    architecture: &str,
) -> anyhow::Result<PathBuf> {
    let folder = places.target.join(folder);
    let mut cargo = toolchain.compiler.cargo();
    // Always optimised: the kernel's verifier refuses debug builds.
    cargo.args(["build", "--locked", "--package", "enforcer-ebpf", "--release", "-Zbuild-std=core"]);
    cargo.args(["--target", "bpfel-unknown-none", "--target-dir"]).arg(&folder);
    if log {
        cargo.args(["--features", "log"]);
    }
    let mut flags = std::ffi::OsString::from("-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Clinker=");
    flags.push(&toolchain.linker);
    for (from, to) in path_prefixes(places, toolchain)? {
        flags.push("\x1f--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    // aya-ebpf's build script takes the host's without it.
    cargo.env("AYA_BPF_TARGET_ARCH", architecture);
    run::output(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags).current_dir(&places.root))?;
    let built = folder.join("bpfel-unknown-none/release/enforcer-ebpf");
    let stripped = folder.join("enforcer.bpf.o");
    // BTF names functions, types and lines; the sections for debuggers are three quarters of the size.
    run::output(Command::new(&toolchain.strip).arg("--strip-debug").arg("-o").arg(&stripped).arg(&built))?;
    Ok(stripped)
}

/// The prefixes of source paths on this machine, and their replacements in the object.
fn path_prefixes(places: &Places, toolchain: &BpfToolchain) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let mut prefixes = vec![
        (places.root.clone(), "enforcer"),
        (toolchain.compiler.sysroot.join("lib/rustlib/src/rust"), "rust"),
    ];
    prefixes.extend(build::registries()?.into_iter().map(|registry| (registry, "crates")));
    Ok(prefixes)
}

/// The sections in which two objects differ: programs, maps, BTF and what relates them.
fn differences(left: &[u8], right: &[u8]) -> anyhow::Result<Vec<String>> {
    let [left, right] = [left, right].map(sections);
    let (left, right) = (left?, right?);
    let in_one = |section: &&(String, Vec<u8>)| !(left.contains(section) && right.contains(section));
    let mut names: Vec<String> =
        left.iter().chain(&right).filter(in_one).map(|(name, _)| name.clone()).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

fn sections(bytes: &[u8]) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let file = object::File::parse(bytes).context("the eBPF object is not an ELF file")?;
    file.sections().map(|section| Ok((section.name()?.to_owned(), section.data()?.to_vec()))).collect()
}
