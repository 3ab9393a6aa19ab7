//! Releases: every artifact from one commit, the same byte for byte whoever builds it, with checksums, a bill of materials, a
//! provenance and a signature.

mod arch;
mod archive;
mod binary;
mod chart;
mod checklist;
mod content;
mod deb;
mod image;
mod install;
mod inventory;
mod licences;
mod provenance;
mod reproduced;
mod rpm;
mod sbom;
mod signature;
mod source;

use std::{fs, path::Path, process::Command};

use anyhow::Context as _;

pub(crate) use self::checklist::command as release_check;
use self::{
    arch::Arch,
    binary::Binary,
    install::{Layout, Shared},
    provenance::Toolchain,
    signature::Key,
    source::Source,
};
use crate::{places::Places, run, steps::Steps};

/// Where artifacts go, below cargo's build folder.
const FOLDER: &str = "dist";

/// How a release is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Also for arm64, cross-built.
    pub(crate) arm64: bool,
    /// Changes that are in no commit are allowed, and mark the version.
    pub(crate) allow_dirty: bool,
    /// Build once more in another folder, and compare.
    pub(crate) check_reproducible: bool,
}

/// A file of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Artifact {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// `cargo xtask dist`.
pub(crate) fn command(places: &Places, options: Options) -> anyhow::Result<u8> {
    let source = Source::find(&places.root, options.allow_dirty)?;
    let key = Key::from_environment(&places.root)?;
    let mut arches = vec![Arch::X86_64];
    if options.arm64 {
        arches.push(Arch::Aarch64);
    }
    let made = make(places, &source, &arches)?;
    let folder = places.target.join(FOLDER);
    write(&folder, &made.artifacts, key.as_ref())?;
    report(&folder, &made, key.is_some());
    if options.check_reproducible {
        reproduced::check(places, &source, &arches, &made.artifacts)?;
    }
    Ok(u8::from(!made.is_small_enough()))
}

/// What was made, and what is said about it.
#[derive(Debug)]
struct Made {
    artifacts: Vec<Artifact>,
    /// The size of each program: as it is shipped, and without names for backtraces.
    programs: Vec<(Arch, usize, usize)>,
    missing: Vec<&'static str>,
}

impl Made {
    fn is_small_enough(&self) -> bool {
        self.programs
            .iter()
            .all(|(arch, _, stripped)| *arch != Arch::X86_64 || *stripped <= binary::MAX_BYTES)
    }
}

/// Builds everything but the list of checksums and its signature.
fn make(places: &Places, source: &Source, arches: &[Arch]) -> anyhow::Result<Made> {
    let steps = Steps::Out;
    let toolchain = Toolchain::find(&places.root, arches)?;
    let mut made = Made { artifacts: Vec::new(), programs: Vec::new(), missing: Vec::new() };
    let mut built: Vec<(Arch, Binary)> = Vec::new();
    for arch in arches {
        let name = format!("enforcer for {}", arch.name());
        built.push((*arch, steps.work(name, || binary::build(places, source, *arch))?));
    }
    let (_, native) = built.iter().find(|(arch, _)| arch.is_native()).context(
        "no program of this release runs here, and completions and manual pages are printed by one",
    )?;
    let packages = inventory::find(places, Arch::X86_64)?;
    let texts = steps.work("licences", || licences::collect(places, &packages))?;
    check_configuration(&places.root, &native.path)?;
    let shared = Shared::collect(&places.root, source, &native.path, &texts)?;
    for (arch, binary) in &built {
        made.programs.push((*arch, binary.bytes.len(), binary::stripped(*arch, &binary.path)?));
        let name = format!("packages and image for {}", arch.name());
        made.artifacts.extend(steps.work(name, || packaged(places, source, *arch, binary, &shared))?);
    }
    match chart::chart(&places.root, source)? {
        Some(chart) => made.artifacts.push(chart),
        None => made.missing.push("a Helm chart"),
    }
    match chart::manifests(&places.root, source)? {
        Some(manifests) => made.artifacts.push(manifests),
        None => made.missing.push("plain manifests"),
    }
    let lock = read(&places.root.join("Cargo.lock"))?;
    let statement = provenance::statement(source, arches, &toolchain, &lock, &made.artifacts)?;
    made.artifacts.push(Artifact { name: provenance::FILE.to_owned(), bytes: statement });
    Ok(made)
}

/// Debian's package of a program that is built already, in two versions of which the second is the later: for tests that install
/// one and upgrade to the other.
pub(crate) fn installable(places: &Places, program: &Path) -> anyhow::Result<[Vec<u8>; 2]> {
    let (root, arch) = (places.root.as_path(), Arch::X86_64);
    let source = Source::find(root, true)?;
    let later = Source { version: format!("{}+later", source.version), ..source.clone() };
    let texts = licences::collect(places, &inventory::find(places, arch)?)?;
    let files = Shared::collect(root, &source, program, &texts)?.package(Layout::Debian, &read(program)?);
    Ok([deb::package(root, &source, arch, &files)?, deb::package(root, &later, arch, &files)?])
}

/// What a cluster is given of a program that is built already: the image and the chart, for tests on a node.
pub(crate) fn for_cluster(places: &Places, program: &Path) -> anyhow::Result<[Vec<u8>; 2]> {
    let (root, arch) = (places.root.as_path(), Arch::X86_64);
    let source = Source::find(root, true)?;
    let texts = licences::collect(places, &inventory::find(places, arch)?)?;
    let files = Shared::collect(root, &source, program, &texts)?.image(&read(program)?);
    let chart = chart::chart(root, &source)?.context("there is no chart in packaging")?;
    Ok([image::archive(&source, arch, &files)?, chart.bytes])
}

/// Everything that contains one program.
fn packaged(
    places: &Places,
    source: &Source,
    arch: Arch,
    binary: &Binary,
    shared: &Shared,
) -> anyhow::Result<Vec<Artifact>> {
    let (root, version, name) = (places.root.as_path(), &source.version, arch.name());
    let [debian, other] = [Layout::Debian, Layout::Other].map(|layout| shared.package(layout, &binary.bytes));
    let stem = format!("enforcer-{version}-{name}");
    let tarball = archive::gzip(&archive::tar(&other, &format!("{stem}/"), source.epoch)?)?;
    let packages = inventory::find(places, arch)?;
    let sum = ebpf_object::sha256(&binary.bytes);
    let natives = [
        sbom::Native { name: "glibc", version: binary.libc.clone(), licence: "LGPL-2.1-or-later" },
        sbom::Native {
            name: "libgcc",
            version: libgcc(arch)?,
            licence: "GPL-3.0-or-later WITH GCC-exception-3.1",
        },
        sbom::Native { name: "rust-std", version: rust(root)?, licence: "MIT OR Apache-2.0" },
    ];
    let artifact = |name: String, bytes| Artifact { name, bytes };
    Ok(vec![
        artifact(format!("{stem}.tar.gz"), tarball),
        artifact(
            format!("enforcer_{}_{}.deb", deb::version(source), arch.short()),
            deb::package(root, source, arch, &debian)?,
        ),
        artifact(format!("enforcer-{version}-1.{name}.rpm"), rpm::package(root, source, arch, &other)?),
        artifact(format!("{stem}-oci.tar"), image::archive(source, arch, &shared.image(&binary.bytes))?),
        artifact(format!("{stem}.cdx.json"), sbom::document(source, arch, &sum, &natives, &packages)?),
    ])
}

/// The version of the C compiler that links the program, which is that of its library.
fn libgcc(arch: Arch) -> anyhow::Result<String> {
    let said = run::text(Command::new(arch.compiler()).arg("-dumpfullversion"))?;
    Ok(said.trim().to_owned())
}

/// The version of the compiler, which is that of its standard library.
fn rust(root: &Path) -> anyhow::Result<String> {
    let said = run::text(Command::new("rustc").arg("--version").current_dir(root))?;
    let version = said.split(' ').nth(1);
    version.map(str::to_owned).with_context(|| format!("rustc gives its version as `{said}`"))
}

/// The configuration that packages install is one that the program takes.
fn check_configuration(root: &Path, program: &Path) -> anyhow::Result<()> {
    // The program trusts files by their owner, which in a checkout is whoever made it.
    let mut check = Command::new(program);
    check.args(["config", "effective", "--config"]).arg(root.join("packaging/config.yaml"));
    run::output(&mut check).map(drop)
}

/// Writes the artifacts into an empty folder, with the list of their checksums and, given a key, its signature.
fn write(folder: &Path, artifacts: &[Artifact], key: Option<&Key>) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    };
    for artifact in artifacts {
        put(&artifact.name, &artifact.bytes)?;
    }
    let list = signature::list(artifacts);
    put(signature::LIST, list.as_bytes())?;
    if let Some(key) = key {
        put(signature::SIGNATURE, &key.sign(list.as_bytes()))?;
    }
    Ok(())
}

/// Prints the artifacts with their sizes, and what the release lacks.
fn report(folder: &Path, made: &Made, is_signed: bool) {
    let say = |text: &str| Steps::Out.say(text);
    say(&format!("     {}", folder.display()));
    for artifact in &made.artifacts {
        say(&format!("     {:<44} {:>6} MiB", artifact.name, mib(artifact.bytes.len())));
    }
    for (arch, shipped, stripped) in &made.programs {
        let bound = if *arch == Arch::X86_64 {
            format!(", of at most {} MiB", mib(binary::MAX_BYTES))
        } else {
            String::new()
        };
        say(&format!(
            "     the program for {}: {} MiB, {} MiB stripped{bound}",
            arch.name(),
            mib(*shipped),
            mib(*stripped)
        ));
    }
    if !made.is_small_enough() {
        say("FAIL the program is too large");
    }
    for missing in &made.missing {
        say(&format!("     without {missing}: there is none in packaging"));
    }
    if !is_signed {
        say(&format!("     unsigned: {} names no key", signature::KEY_VARIABLE));
    }
}

/// Bytes as MiB with two digits behind the point.
fn mib(bytes: usize) -> String {
    let hundredths = (bytes.saturating_mul(100) + (1 << 19)) >> 20;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Reads a file; the error names it.
fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_hundredths_of_a_mib() {
        assert_eq!(mib(0), "0.00");
        assert_eq!(mib(1 << 20), "1.00");
        assert_eq!(mib(binary::MAX_BYTES), "15.80");
    }

    #[test]
    fn a_folder_of_artifacts_has_nothing_of_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("dist");
        let artifact = |name: &str| Artifact { name: name.to_owned(), bytes: b"abc".to_vec() };
        write(&folder, &[artifact("old")], None).unwrap();
        write(&folder, &[artifact("a"), artifact("b")], None).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["SHA256SUMS", "a", "b"]);
    }
}
