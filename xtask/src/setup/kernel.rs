//! Guest kernels: image, modules and the base of the initramfs, made from packages that are never installed.
use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

use crate::{
    guest::{
        initramfs,
        kernel::{Kernel, KernelName},
        modules,
    },
    places::Places,
    setup::{apt, debs, lock::Lock},
    steps::Work,
};

/// Makes one kernel ready to boot.
pub(crate) fn provide(places: &Places, lock: &Lock, name: KernelName) -> anyhow::Result<(Kernel, Work)> {
    let packages = lock.kernel(name)?;
    let first = packages.first().context("the lock file names a kernel without packages")?;
    let busybox = lock.busybox.first().context("the lock file names no busybox")?;
    let folder = format!("kernels/{name}-{}-{}-{}", first.stamp(), busybox.stamp(), initramfs::FORMAT);
    let (folder, work) = places.fill(&folder, |folder| {
        let unpacked = tempfile::tempdir_in(&places.cache)?;
        for package in packages {
            apt::unpack(&debs::fetch(places, package)?, unpacked.path())?;
        }
        let (image, module_folder) = find(unpacked.path())?;
        fs::copy(&image, folder.join("vmlinuz"))
            .with_context(|| format!("cannot copy {}", image.display()))?;

        let userland = tempfile::tempdir_in(&places.cache)?;
        for package in &lock.busybox {
            apt::unpack(&debs::fetch(places, package)?, userland.path())?;
        }
        let modules = modules::collect(&module_folder)?;
        initramfs::write_base(&folder.join("base.cpio"), &userland.path().join("bin/busybox"), &modules)
    })?;
    Ok((Kernel { name, image: folder.join("vmlinuz"), base: folder.join("base.cpio") }, work))
}

/// The image and the modules' folder: Debian has moved both between releases.
fn find(unpacked: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    for modules in ["lib/modules", "usr/lib/modules"] {
        let Ok(mut releases) = fs::read_dir(unpacked.join(modules)) else { continue };
        let Some(release) = releases.next() else { continue };
        let release = release?;
        let beside = release.path().join("vmlinuz");
        let in_boot =
            unpacked.join("boot").join(format!("vmlinuz-{}", release.file_name().to_string_lossy()));
        let image = if beside.exists() { beside } else { in_boot };
        if image.exists() {
            return Ok((image, release.path().join("kernel")));
        }
    }
    bail!("no kernel image with modules in the unpacked packages")
}
