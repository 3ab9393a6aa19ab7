//! The compiler and the linker for eBPF objects.
//!
//! The BPF target has no compiled core library, so the compiler needs the library's source beside it.
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{pins, places::Places, run, setup::apt, steps::Work};

/// A compiler that can build for the BPF target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BpfCompiler {
    pub(crate) rustc: PathBuf,
    pub(crate) cargo: PathBuf,
    pub(crate) sysroot: PathBuf,
    pub(crate) release: String,
    /// The commit that it was built from.
    pub(crate) commit: String,
    /// The release of its LLVM.
    pub(crate) llvm: String,
}

/// Facts about one compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    compiler: BpfCompiler,
    has_source: bool,
    /// The LLVM that a linker for it is built against is available, and the linker supports it.
    has_llvm: bool,
}

impl Facts {
    fn usable(&self) -> bool {
        self.has_source && self.has_llvm
    }
}

/// The compiler in use if it suffices, else Debian's.
fn choose(own: Option<Facts>, debian: Option<Facts>) -> Option<BpfCompiler> {
    [own, debian].into_iter().flatten().find(Facts::usable).map(|facts| facts.compiler)
}

impl BpfCompiler {
    /// Finds a compiler, or installs Debian's.
    pub(crate) fn provide() -> anyhow::Result<(Self, Work)> {
        if let Some(compiler) = choose(own()?, debian()?) {
            return Ok((compiler, Work::Cached));
        }
        apt::install_on_host(
            "no Rust compiler here has the library's source, which eBPF objects need \
             (`rustup component add rust-src` serves as well, with the development files of the compiler's LLVM)",
            pins::DEBIAN_RUST,
        )?;
        let compiler =
            choose(None, debian()?).context("Debian's compiler is installed, and still cannot build eBPF")?;
        Ok((compiler, Work::Done))
    }

    /// The major version of its LLVM, which is a number: see [`parse_version`].
    pub(crate) fn llvm_major(&self) -> u32 {
        major(&self.llvm).unwrap_or_default()
    }

    /// Its cargo, free of what the cargo around this program has set.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            let kept = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_HTTP_CAINFO", "CARGO_BUILD_JOBS"];
            let set_by_cargo = name.starts_with("CARGO") && !kept.contains(&name.as_ref());
            if set_by_cargo || name.starts_with("RUSTUP_") || name.starts_with("RUSTC") || name == "RUSTFLAGS"
            {
                command.env_remove(name.as_ref());
            }
        }
        // The outer cargo points it at its own compiler's libraries.
        command.env_remove("LD_LIBRARY_PATH").env_remove("RUST_RECURSION_COUNT");
        // Building the core library is an unstable option; the compilers here are stable ones.
        command.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1");
        command
    }
}

fn own() -> anyhow::Result<Option<Facts>> {
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let sysroot = Path::new(sysroot.trim());
    facts(&sysroot.join("bin/rustc"), &sysroot.join("bin/cargo"), sysroot)
}

fn debian() -> anyhow::Result<Option<Facts>> {
    facts(Path::new("/usr/bin/rustc"), Path::new("/usr/bin/cargo"), Path::new("/usr"))
}

fn facts(rustc: &Path, cargo: &Path, sysroot: &Path) -> anyhow::Result<Option<Facts>> {
    if !rustc.exists() || !cargo.exists() {
        return Ok(None);
    }
    let version = run::text(Command::new(rustc).arg("-vV").env_remove("LD_LIBRARY_PATH"))?;
    let (release, commit, llvm) = parse_version(&version)
        .with_context(|| format!("{} prints no release and LLVM version:\n{version}", rustc.display()))?;
    let llvm_major = major(&llvm).with_context(|| format!("LLVM {llvm} has no major version"))?;
    let has_source = sysroot.join("lib/rustlib/src/rust/library/core").exists();
    let package = llvm_package(llvm_major);
    let has_llvm =
        pins::BPF_LINKER_LLVMS.contains(&llvm_major) && (apt::installed(&package) || apt::offered(&package));
    let [rustc, cargo, sysroot] = [rustc, cargo, sysroot].map(Path::to_owned);
    let compiler = BpfCompiler { rustc, cargo, sysroot, release, commit, llvm };
    Ok(Some(Facts { compiler, has_source, has_llvm }))
}

/// Release, commit, and the release of LLVM.
fn parse_version(text: &str) -> Option<(String, String, String)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    Some((field("release: ")?, field("commit-hash: ")?, field("LLVM version: ")?))
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Where Debian has an LLVM.
pub(crate) fn llvm_prefix(major: u32) -> String {
    format!("/usr/lib/llvm-{major}")
}

fn llvm_package(major: u32) -> String {
    format!("llvm-{major}-dev")
}

/// Builds bpf-linker against the compiler's own LLVM major, in the cache, and returns its path.
pub(crate) fn provide_linker(places: &Places, compiler: &BpfCompiler) -> anyhow::Result<(PathBuf, Work)> {
    let major = compiler.llvm_major();
    let name = format!("bpf-linker/{}-llvm{major}", pins::BPF_LINKER);
    let program = places.cache.join(&name).join("bin/bpf-linker");
    if program.exists() && check_linker(&program).is_err() {
        // Its LLVM was upgraded or removed since.
        fs::remove_dir_all(places.cache.join(&name))?;
    }
    let (folder, work) = places.fill(&name, |folder| {
        let needed = [llvm_package(major), format!("libpolly-{major}-dev")];
        let missing: Vec<&str> =
            needed.iter().map(String::as_str).filter(|package| !apt::installed(package)).collect();
        if !missing.is_empty() {
            apt::install_on_host(
                &format!("bpf-linker needs the development files of LLVM {major}"),
                &missing,
            )?;
        }
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args([
            "install",
            "bpf-linker",
            "--version",
            pins::BPF_LINKER,
            "--locked",
            "--no-default-features",
        ]);
        cargo.args(["--features", &format!("llvm-{major}"), "--root"]).arg(folder);
        let prefix = llvm_prefix(major);
        cargo.env("LLVM_PREFIX", &prefix).env(format!("LLVM_SYS_{major}1_PREFIX"), &prefix);
        for variable in ["CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS"] {
            cargo.env_remove(variable);
        }
        run::output(cargo.current_dir(&places.cache))?;
        check_linker(&folder.join("bin/bpf-linker"))
    })?;
    Ok((folder.join("bin/bpf-linker"), work))
}

fn check_linker(program: &Path) -> anyhow::Result<()> {
    let version = run::text(Command::new(program).arg("--version").env_remove("LD_LIBRARY_PATH"))?;
    if version.split_whitespace().nth(1) != Some(pins::BPF_LINKER) {
        bail!("{} is {}, not {}", program.display(), version.trim(), pins::BPF_LINKER);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(rustc: &str, has_source: bool, has_llvm: bool) -> Facts {
        let compiler = BpfCompiler {
            rustc: rustc.into(),
            cargo: "cargo".into(),
            sysroot: "/".into(),
            release: "1.96.0".into(),
            commit: "c0ffee".into(),
            llvm: "22.1.8".into(),
        };
        Facts { compiler, has_source, has_llvm }
    }

    fn chosen(own: Option<Facts>, debian: Option<Facts>) -> Option<PathBuf> {
        choose(own, debian).map(|compiler| compiler.rustc)
    }

    #[test]
    fn own_compiler_is_preferred_where_it_will_do() {
        let debian = || Some(known("debian", true, true));
        assert_eq!(chosen(Some(known("own", true, true)), debian()), Some("own".into()));
        assert_eq!(chosen(Some(known("own", false, true)), debian()), Some("debian".into()));
        assert_eq!(chosen(Some(known("own", true, false)), debian()), Some("debian".into()));
        assert_eq!(chosen(Some(known("own", false, true)), Some(known("debian", false, true))), None);
        assert_eq!(chosen(Some(known("own", false, true)), None), None);
    }

    #[test]
    fn version_is_release_commit_and_llvm() {
        let text = "rustc 1.96.0\ncommit-hash: c0ffee\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(parse_version(text), Some(("1.96.0".into(), "c0ffee".into(), "22.1.8".into())));
        assert_eq!(parse_version("release: 1.96.0\n"), None);
        assert_eq!((major("22.1.8"), major("")), (Some(22), None));
    }
}
