//! The binary of a release: built so that nothing in it depends on the folder, the user or the time of the build.
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use super::{arch::Arch, source::Source};
use crate::{build, ebpf, failure::Failure, places::Places, run, steps::Steps};

/// The most that the binary for x86-64 may take, in bytes: 15.8 MiB.
pub(crate) const MAX_BYTES: usize = 16_567_500;

/// A built program.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    pub(crate) bytes: Vec<u8>,
    /// The version of the C library that is linked into it.
    pub(crate) libc: String,
}

/// Builds the program, statically linked, and checks that it names no folder of this machine.
pub(crate) fn build(places: &Places, source: &Source, arch: Arch) -> anyhow::Result<Binary> {
    let libc = libc(arch)?;
    let mut cargo = build::cargo(places);
    cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags(places, arch, &libc)?);
    cargo.env("SOURCE_DATE_EPOCH", source.epoch.to_string());
    // `enforcer version` says it.
    cargo.env("ENFORCER_COMMIT", &source.commit);
    cargo.env("CARGO_TARGET_DIR", &places.target).env_remove(build::OBJECT_VARIABLE);
    if !arch.is_native() {
        let target = arch.target().replace('-', "_");
        cargo.env(format!("CARGO_TARGET_{}_LINKER", target.to_uppercase()), arch.compiler());
        cargo.env(format!("CC_{target}"), arch.compiler());
    }
    if arch.name() != ebpf_object::ARCHITECTURE {
        cargo.env(build::OBJECT_VARIABLE, ebpf::provide_for(places, Steps::Out, arch.name())?);
    }
    cargo.args(["build", "--locked", "--profile", build::SHIPPED, "--target", arch.target()]);
    cargo.args(["--package", "enforcer", "--bin", "enforcer", "--message-format", "json-render-diagnostics"]);
    let built = build::parse_executables(&run::text(&mut cargo)?)?;
    let path = build::program(&built, "enforcer")?.to_owned();
    let bytes = super::read(&path)?;
    let folders = folders(places)?;
    if let Some(folder) = folders.iter().find(|folder| contains(&bytes, folder.as_bytes())) {
        bail!("{} names {folder}, a folder of this machine", path.display());
    }
    Ok(Binary { path, bytes, libc })
}

/// Static linking, and other names for the folders of this machine. The last prefix that fits is used.
fn flags(places: &Places, arch: Arch, libc: &str) -> anyhow::Result<OsString> {
    let mut flags = OsString::from(build::STATIC);
    // Backtraces need them, also of a program that does not unwind.
    flags.push("\x1f-Cforce-unwind-tables=yes");
    // The linker of Debian 12 for arm64 has not got it, and a program with an older glibc crashes.
    if arch == Arch::X86_64 && applies_packed_relocations(libc) {
        flags.push("\x1f-Clink-arg=-Wl,-z,pack-relative-relocs");
    }
    let mut prefixes = vec![(places.root.clone(), "/enforcer"), (places.target.clone(), "/build")];
    prefixes.extend(build::registries()?.into_iter().map(|registry| (registry, "/crates")));
    for (from, to) in prefixes {
        flags.push("\x1f--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    Ok(flags)
}

/// Whether programs with that glibc start if their relative relocations are packed (`DT_RELR`): since 2.36.
fn applies_packed_relocations(libc: &str) -> bool {
    let (major, minor) = libc.split_once('.').unwrap_or((libc, "0"));
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    (number(major), number(minor)) >= (2, 36)
}

/// The folders that no binary may name: the sources, the build, and the homes of cargo and of rustup.
fn folders(places: &Places) -> anyhow::Result<Vec<String>> {
    let mut folders = vec![places.root.clone(), places.target.clone(), build::cargo_home()?];
    let rustup = env::var_os("RUSTUP_HOME").map(PathBuf::from);
    folders.extend(rustup.or_else(|| env::home_dir().map(|home| home.join(".rustup"))));
    let text = |folder: PathBuf| {
        let text = folder.to_str().map(str::to_owned);
        text.with_context(|| format!("the path {} is not UTF-8", folder.display()))
    };
    folders.into_iter().map(text).collect()
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    let Some((first, rest)) = wanted.split_first() else { return true };
    let mut left = bytes;
    while let Some(at) = left.iter().position(|byte| byte == first) {
        left = left.get(at + 1..).unwrap_or_default();
        if left.starts_with(rest) {
            return true;
        }
    }
    false
}

/// The version of the C library that the compiler for `arch` links.
fn libc(arch: Arch) -> anyhow::Result<String> {
    let compiler = arch.compiler();
    if run::output(Command::new(compiler).arg("--version")).is_err() {
        let packages =
            format!("apt-get install gcc-{0}-linux-gnu libc6-dev-{1}-cross", arch.name(), arch.short());
        return Err(Failure::unavailable(&format!("there is no {compiler}"), &[packages]).into());
    }
    let mut defines = Command::new(compiler);
    defines.args(["-E", "-dM", "-include", "features.h", "-x", "c", "/dev/null"]);
    let defines = run::text(&mut defines)?;
    let number = |name: &str| {
        let prefix = format!("#define {name} ");
        let number = defines.lines().find_map(|line| line.strip_prefix(&prefix));
        number.with_context(|| format!("{compiler} does not define {name}"))
    };
    Ok(format!("{}.{}", number("__GLIBC__")?, number("__GLIBC_MINOR__")?))
}

/// What a program takes without the names for backtraces.
pub(crate) fn stripped(arch: Arch, path: &Path) -> anyhow::Result<usize> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("stripped");
    let strip = if arch.is_native() { "strip".to_owned() } else { arch.compiler().replace("gcc", "strip") };
    run::output(Command::new(strip).arg("--strip-all").arg("-o").arg(&out).arg(path))?;
    Ok(super::read(&out)?.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_found_wherever_it_stands() {
        for (text, expected) in [
            ("/a/b", true),
            ("x/a/b/c", true),
            ("//a/b", true),
            ("/a/", false),
            ("", false),
            ("/a/c/a/b", true),
        ] {
            assert_eq!(contains(text.as_bytes(), b"/a/b"), expected, "{text}");
        }
    }

    #[test]
    fn relocations_are_packed_only_for_a_c_library_that_reads_them() {
        for (libc, expected) in [("2.35", false), ("2.36", true), ("2.41", true), ("3.0", true), ("", false)]
        {
            assert_eq!(applies_packed_relocations(libc), expected, "{libc}");
        }
    }

    #[test]
    fn the_c_library_here_has_a_version() {
        let arch = if Arch::X86_64.is_native() { Arch::X86_64 } else { Arch::Aarch64 };
        let version = libc(arch).unwrap();
        assert!(version.starts_with("2."), "{version}");
    }
}
