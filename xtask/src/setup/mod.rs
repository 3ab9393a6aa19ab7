//! The needs of the commands on this machine: found, or installed into the cache.
mod apt;
mod bpf_toolchain;
mod cargo_deny;
mod contenders;
pub(crate) mod debs;
pub(crate) mod helm;
mod kernel;
pub(crate) mod kube;
pub(crate) mod lock;
pub(crate) mod prometheus;
pub(crate) mod qemu;
mod systemd;
mod update_lock;
mod wheel;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

pub(crate) use self::{bpf_toolchain::BpfCompiler, update_lock::update_lock};
use crate::{
    guest::{
        Guests, accelerator,
        debian::{self, Release},
        initramfs::FileToAdd,
        kernel::{Kernel, KernelName},
        machine::Accelerator,
    },
    pins,
    places::Places,
    run,
    setup::{lock::Lock, qemu::Qemu},
    steps::{Steps, Work},
};

/// The tools that build the eBPF object.
#[derive(Clone, Debug)]
pub(crate) struct BpfToolchain {
    pub(crate) compiler: BpfCompiler,
    pub(crate) linker: PathBuf,
    /// Removes the sections of an object that only a debugger reads.
    pub(crate) strip: PathBuf,
    /// The release of the LLVM that the linker uses.
    pub(crate) linker_llvm: String,
}

/// Provides compiler and linker for the eBPF object.
pub(crate) fn bpf_toolchain(places: &Places, steps: Steps) -> anyhow::Result<BpfToolchain> {
    let _held = places.lock_cache()?;
    let compiler = steps.run("eBPF compiler", BpfCompiler::provide)?;
    let name =
        format!("bpf-linker {} for rustc {}, LLVM {}", pins::BPF_LINKER, compiler.release, compiler.llvm);
    let linker = steps.run(name, || bpf_toolchain::provide_linker(places, &compiler))?;
    let programs = Path::new(&bpf_toolchain::llvm_prefix(compiler.llvm_major())).join("bin");
    let linker_llvm =
        run::text(Command::new(programs.join("llvm-config")).arg("--version"))?.trim().to_owned();
    Ok(BpfToolchain { compiler, linker, strip: programs.join("llvm-strip"), linker_llvm })
}

/// The tools that boot guests.
#[derive(Clone, Debug)]
pub(crate) struct GuestTools {
    pub(crate) qemu: Qemu,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) accelerator: Accelerator,
}

/// Provides QEMU and some kernels, and chooses the accelerator.
pub(crate) fn guest_tools(places: &Places, steps: Steps, names: &[KernelName]) -> anyhow::Result<GuestTools> {
    apt::check_architecture()?;
    let _held = places.lock_cache()?;
    let lock = Lock::read(places)?;
    if run::output(Command::new("xz").arg("--version")).is_err() {
        steps.work("xz", || apt::install_on_host("kernel modules are packed with xz", &["xz-utils"]))?;
    }
    let version = lock.qemu.first().map_or("", |package| upstream(&package.version));
    let qemu = steps.run(format_args!("qemu {version}"), || Qemu::provide(places, &lock))?;
    let mut kernels = Vec::new();
    for name in names {
        let version = lock.kernel(*name)?.first().map_or("", |package| upstream(&package.version));
        let kernel = steps.run(format_args!("kernel {version}"), || kernel::provide(places, &lock, *name))?;
        kernels.push(kernel);
    }
    // Any kernel can be used to try it.
    let accelerator = match kernels.first() {
        Some(kernel) => steps.run("accelerator", || accelerator::choose(places, &qemu, kernel))?,
        None => Accelerator::Tcg,
    };
    Ok(GuestTools { qemu, kernels, accelerator })
}

/// Provides the contenders of the daemon.
pub(crate) fn contenders(places: &Places, steps: Steps) -> anyhow::Result<Vec<FileToAdd>> {
    let _held = places.lock_cache()?;
    let lock = Lock::read(places)?;
    steps.run("contenders", || contenders::provide(places, &lock))
}

/// Provides the part of an initramfs that makes systemd the init.
pub(crate) fn systemd(places: &Places, steps: Steps) -> anyhow::Result<PathBuf> {
    let _held = places.lock_cache()?;
    let lock = Lock::read(places)?;
    let version = lock.systemd.first().map_or("", |package| upstream(&package.version));
    steps.run(format_args!("systemd {version}"), || systemd::provide(places, &lock))
}

/// Provides the root of a Debian system, which a guest makes.
pub(crate) fn debian(guests: &Guests, steps: Steps, release: Release) -> anyhow::Result<PathBuf> {
    // Not the cache's own, for which other commands would wait minutes.
    let _held = guests.places.lock("debian.lock")?;
    let lock = Lock::read(&guests.places)?;
    let packages = lock.debian(release)?;
    steps.run(format_args!("{}, {} packages", release.name(), packages.len()), || {
        debian::provide(guests, release, packages)
    })
}

/// Provides the folder of `prometheus` and `promtool`.
pub(crate) fn prometheus(places: &Places, steps: Steps) -> anyhow::Result<PathBuf> {
    apt::check_architecture()?;
    let _held = places.lock_cache()?;
    let lock = Lock::read(places)?;
    let version = lock.prometheus.first().map_or("", |package| upstream(&package.version));
    steps.run(format_args!("prometheus {version}"), || prometheus::provide(places, &lock))
}

/// Provides the program `helm`.
pub(crate) fn helm(places: &Places, steps: Steps) -> anyhow::Result<PathBuf> {
    apt::check_architecture()?;
    let _held = places.lock_cache()?;
    steps.run(format_args!("helm of {} {}", pins::HELM.name, pins::HELM.version), || helm::provide(places))
}

/// Provides the program `cargo-deny`.
pub(crate) fn cargo_deny(places: &Places, steps: Steps) -> anyhow::Result<PathBuf> {
    apt::check_architecture()?;
    let _held = places.lock_cache()?;
    steps.run(format_args!("cargo-deny {}", pins::CARGO_DENY.version), || cargo_deny::provide(places))
}

/// Provides everything.
pub(crate) fn all(places: &Places, steps: Steps) -> anyhow::Result<()> {
    bpf_toolchain(places, steps)?;
    let tools = guest_tools(places, steps, &KernelName::ALL)?;
    systemd(places, steps)?;
    prometheus(places, steps)?;
    helm(places, steps)?;
    cargo_deny(places, steps)?;
    let with = match tools.accelerator {
        Accelerator::Kvm => "KVM",
        Accelerator::Tcg => "emulation (KVM does not work here)",
    };
    steps.run(format_args!("guests run on {with}"), || Ok(((), Work::Cached)))
}

/// A Debian version without epoch and revision.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    // Debian went back to an older release, under a newer version.
    let version = version.split_once("+really").map_or(version, |(_, really)| really);
    version.split(['-', '+', '~']).next().unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::upstream;

    #[test]
    fn upstream_version_is_what_people_say() {
        assert_eq!(upstream("1:10.0.2+ds-2+deb13u1~bpo12+1"), "10.0.2");
        assert_eq!(upstream("6.12.95-1~bpo12+1"), "6.12.95");
        assert_eq!(upstream("1.2"), "1.2");
        assert_eq!(upstream("1.20.5+really1.20.2-1.1+deb12u1"), "1.20.2");
    }
}
