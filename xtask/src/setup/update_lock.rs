//! Rewrites the lock file from the current content of the suites.
use std::collections::BTreeMap;

use anyhow::Context as _;

use crate::{
    guest::{debian::Release, kernel::KernelName},
    pins,
    places::Places,
    setup::{
        apt::Apt,
        lock::{Lock, Package},
    },
    steps::Steps,
};

/// Reads the suites' signed indexes and writes the file.
pub(crate) fn update_lock(places: &Places, steps: Steps) -> anyhow::Result<()> {
    let old = Lock::read(places).ok();
    let mut kernels = BTreeMap::new();
    for name in KernelName::ALL {
        let packages =
            steps.work(format_args!("kernel {name} of {}", name.suite()), || kernel(places, name))?;
        kernels.insert(name.as_str().to_owned(), packages);
    }
    let qemu = steps.work(format_args!("qemu of {}", pins::QEMU_SUITE), || {
        // The backport has its own firmware; only its suite is queried, or the newest of both would win.
        let apt = Apt::update(places, pins::QEMU_SUITE, &[pins::QEMU_SUITE])?;
        pins::QEMU_PACKAGES
            .iter()
            .map(|name| package(&apt, name, pins::QEMU_SUITE))
            .collect::<anyhow::Result<_>>()
    })?;
    let of_host_suite = |what: &str, names: &[&str]| {
        steps.work(format_args!("{what} of {}", pins::HOST_SUITE), || {
            let apt = Apt::update(places, pins::HOST_SUITE, &[pins::HOST_SUITE])?;
            names.iter().map(|name| package(&apt, name, pins::HOST_SUITE)).collect::<anyhow::Result<_>>()
        })
    };
    let busybox = of_host_suite("busybox", &["busybox-static"])?;
    let contenders = of_host_suite("contenders", pins::CONTENDERS)?;
    let systemd = of_host_suite("systemd", pins::SYSTEMD)?;
    let prometheus = of_host_suite("prometheus", pins::PROMETHEUS)?;
    let source = steps.work(format_args!("{} of {}", pins::KUBERNETES_SOURCE, pins::HOST_SUITE), || {
        let name = format!("{}-source", pins::HOST_SUITE);
        let apt = Apt::update_sources(places, &name, &[pins::HOST_SUITE])?;
        source(&apt, pins::KUBERNETES_SOURCE, pins::HOST_SUITE)
    })?;
    let mut kubernetes: Vec<Package> = of_host_suite("go", pins::GO)?;
    kubernetes.insert(0, source);
    let kube_node = of_host_suite("kubernetes node", pins::KUBE_NODE)?;
    let mut debian = BTreeMap::new();
    for release in Release::ALL {
        let packages = steps.work(release.name(), || system(places, release.suite()))?;
        debian.insert(release.suite().to_owned(), packages);
    }
    let lock =
        Lock { qemu, busybox, contenders, systemd, prometheus, kubernetes, kube_node, debian, kernels };
    lock.write(places)?;
    if old.as_ref() == Some(&lock) {
        steps.say("nothing has changed");
    }
    let Lock { qemu, busybox, contenders, systemd, prometheus, kubernetes, kube_node, debian: _, kernels: _ } =
        &lock;
    let rest = [qemu, busybox, contenders, systemd, prometheus, kubernetes, kube_node];
    for package in lock.kernels.values().chain(lock.debian.values()).chain(rest).flatten() {
        steps.say(format_args!("     {} {}", package.name, package.version));
    }
    Ok(())
}

/// A whole system: some packages, and all that they depend on.
fn system(places: &Places, suite: &str) -> anyhow::Result<Vec<Package>> {
    let apt = Apt::update(places, suite, &[suite])?;
    let names = apt.with_dependencies(pins::DEBIAN)?;
    names.iter().map(|name| package(&apt, name, suite)).collect()
}

fn kernel(places: &Places, name: KernelName) -> anyhow::Result<Vec<Package>> {
    let suite = name.suite();
    let apt = Apt::update(places, suite, &[suite])?;
    let newest = apt.show("linux-image-cloud-amd64")?;
    let image = newest
        .depends()?
        .into_iter()
        .find(|name| name.starts_with("linux-image-"))
        .context("linux-image-cloud-amd64 depends on no image")?
        .to_owned();
    let record = apt.show(&image)?;
    // Newer releases split the package: the image itself and its modules are then dependencies of it.
    let parts: Vec<&str> = record
        .depends()?
        .into_iter()
        .filter(|name| name.starts_with("linux-binary-") || name.starts_with("linux-modules-"))
        .collect();
    let parts = if parts.is_empty() { vec![image.as_str()] } else { parts };
    parts.into_iter().map(|part| package(&apt, part, suite)).collect()
}

fn package(apt: &Apt, name: &str, suite: &str) -> anyhow::Result<Package> {
    let record = apt.show(name)?;
    let field =
        |field: &str| record.field(field).map(str::to_owned).with_context(|| format!("{name} of {suite}"));
    Ok(Package {
        name: name.to_owned(),
        version: field("Version")?,
        suite: suite.to_owned(),
        path: field("Filename")?,
        sha256: field("SHA256")?,
    })
}

/// A source package's upstream archive.
fn source(apt: &Apt, name: &str, suite: &str) -> anyhow::Result<Package> {
    let record = apt.show_source(name)?;
    let field = |field: &str| record.field(field).with_context(|| format!("the source {name} of {suite}"));
    let (archive, sha256) = record.upstream_archive()?;
    Ok(Package {
        name: name.to_owned(),
        version: field("Version")?.to_owned(),
        suite: suite.to_owned(),
        path: format!("{}/{archive}", field("Directory")?),
        sha256: sha256.to_owned(),
    })
}
