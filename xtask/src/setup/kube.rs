//! The components of Kubernetes, and what a node has beside them: built once from Debian's source, or taken from a folder.
mod source;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{
    build::Programs,
    places::Places,
    run,
    setup::{apt, debs, lock::Lock, upstream},
    steps::{Steps, Work},
};

/// Names a folder with newer components.
pub(crate) const ASSETS: &str = "KUBE_ASSETS";

/// The first release that the tests of a newer node are for.
const CURRENT: u32 = 36;

/// The components that the source has.
const BUILT: [&str; 4] = ["kube-apiserver", "kube-controller-manager", "kubelet", "kubectl"];

/// The database, which Debian has as a package and a folder of components has too.
const ETCD: &str = "etcd";

/// What every node has beside the components, with its folder in the packages.
const RUNTIME: [(&str, &str); 4] = [
    ("containerd", "usr/bin"),
    ("containerd-shim-runc-v2", "usr/bin"),
    ("ctr", "usr/bin"),
    ("runc", "usr/sbin"),
];

/// Everything that a node runs.
#[derive(Clone, Debug)]
pub(crate) struct Components {
    /// By the name that each has on the PATH.
    pub(crate) programs: Programs,
    /// What the kubelet says it is.
    pub(crate) release: Release,
}

/// A release of Kubernetes: `1.minor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// In full, such as `v1.20.2`.
    pub(crate) version: String,
    pub(crate) minor: u32,
}

/// Provides the components: those of the folder that [`ASSETS`] names, else those of Debian's source.
pub(crate) fn provide(places: &Places, steps: Steps) -> anyhow::Result<Components> {
    apt::check_architecture()?;
    let lock = Lock::read(places)?;
    let node = {
        let _held = places.lock_cache()?;
        let version = lock.kube_node.first().map_or("", |package| upstream(&package.version));
        steps.run(format_args!("containerd {version}, runc, etcd"), || node(places, &lock))?
    };
    let mut programs = if let Some(folder) = assets()? {
        of_folder(&folder)?
    } else {
        let version = lock.kubernetes.first().map_or("", |package| upstream(&package.version));
        let folder = steps.run(format_args!("kubernetes {version}"), || built(places, &lock))?;
        let etcd = (ETCD.to_owned(), node.join("usr/bin").join(ETCD));
        BUILT.iter().map(|name| ((*name).to_owned(), folder.join(name))).chain([etcd]).collect()
    };
    let release = Release::of(&programs)?;
    programs.extend(RUNTIME.map(|(name, folder)| (name.to_owned(), node.join(folder).join(name))));
    Ok(Components { programs, release })
}

/// Fails if the components are not those of a newer node, before anything is built.
pub(crate) fn check_current() -> anyhow::Result<()> {
    is_current(&Release::of(&of_folder(&assets()?.with_context(no_current)?)?)?)
}

fn no_current() -> String {
    format!(
        "these tests need a node of Kubernetes 1.{CURRENT} or later: set {ASSETS} to the folder of its components"
    )
}

fn is_current(release: &Release) -> anyhow::Result<()> {
    if release.minor < CURRENT {
        bail!("{}; there is {}", no_current(), release.version);
    }
    Ok(())
}

/// Whether a node can be booted without building its components first.
pub(crate) fn is_built(places: &Places) -> anyhow::Result<bool> {
    Ok(assets()?.is_some() || places.has(&built_name(&Lock::read(places)?)?))
}

/// The folder that [`ASSETS`] names.
fn assets() -> anyhow::Result<Option<PathBuf>> {
    let folder = env::var_os(ASSETS).filter(|folder| !folder.is_empty());
    folder.map(|folder| Ok(env::current_dir()?.join(folder))).transpose()
}

/// The unpacked packages of a node.
fn node(places: &Places, lock: &Lock) -> anyhow::Result<(PathBuf, Work)> {
    let Some(first) = lock.kube_node.first() else {
        bail!("the lock file names no containerd: cargo xtask setup --update-lock");
    };
    let name = format!("kube-node/{}-{:016x}", first.stamp(), Lock::digest(&lock.kube_node));
    places.fill(&name, |folder| {
        for package in &lock.kube_node {
            apt::unpack(&debs::fetch(places, package)?, folder)?;
        }
        for (name, place) in RUNTIME.iter().chain(&[(ETCD, "usr/bin")]) {
            let program = folder.join(place).join(name);
            program.metadata().with_context(|| format!("the unpacked packages have no {name}"))?;
        }
        Ok(())
    })
}

/// The name in the cache of the components that the source has.
fn built_name(lock: &Lock) -> anyhow::Result<String> {
    let Some((first, compiler)) = lock.kubernetes.split_first() else {
        bail!("the lock file names no kubernetes: cargo xtask setup --update-lock");
    };
    Ok(format!("kubernetes/{}-{:016x}-{}", first.stamp(), Lock::digest(compiler), source::FORMAT))
}

/// The folder of the components that the source has.
fn built(places: &Places, lock: &Lock) -> anyhow::Result<(PathBuf, Work)> {
    let name = built_name(lock)?;
    // It takes minutes, for which other commands need not wait.
    let _building = places.lock("kubernetes.lock")?;
    places.fill(&name, |folder| {
        let fetched: Vec<PathBuf> = {
            let _held = places.lock_cache()?;
            lock.kubernetes
                .iter()
                .map(|package| debs::fetch(places, package))
                .collect::<anyhow::Result<_>>()?
        };
        let version = lock.kubernetes.first().map_or("", |package| upstream(&package.version));
        source::build(places, &fetched, &format!("v{version}"), &BUILT, folder)
    })
}

/// The components of the user's folder; all that it lacks is reported at once.
fn of_folder(folder: &Path) -> anyhow::Result<Programs> {
    let programs: Programs =
        BUILT.iter().chain(&[ETCD]).map(|name| ((*name).to_owned(), folder.join(name))).collect();
    let missing: Vec<&str> =
        programs.iter().filter(|(_, path)| !path.is_file()).map(|(name, _)| name.as_str()).collect();
    if !missing.is_empty() {
        bail!(
            "{ASSETS}={} has no {}: put them there, or unset {ASSETS} to use those of Debian's source",
            folder.display(),
            missing.join(", ")
        );
    }
    Ok(programs)
}

impl Release {
    /// Asks the kubelet, which has the release of all of them.
    fn of(programs: &Programs) -> anyhow::Result<Self> {
        let kubelet = crate::build::program(programs, "kubelet")?;
        Self::parse(&run::text(Command::new(kubelet).arg("--version"))?)
            .with_context(|| format!("{} is no kubelet", kubelet.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let version = text.trim().strip_prefix("Kubernetes ");
        let minor = version.and_then(|version| version.strip_prefix("v1.")?.split('.').next()?.parse().ok());
        let (Some(version), Some(minor)) = (version, minor) else {
            bail!("its version is {text:?}, and not `Kubernetes v1.MINOR.PATCH`");
        };
        Ok(Self { version: version.to_owned(), minor })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_kubelet_says_its_release() {
        let release = Release::parse("Kubernetes v1.36.2\n").unwrap();
        assert_eq!((release.version.as_str(), release.minor), ("v1.36.2", 36));
        for other in ["", "kubelet 1.20", "Kubernetes v2.0.0", "Kubernetes v1.x"] {
            assert!(Release::parse(other).is_err(), "{other}");
        }
    }

    #[test]
    fn an_older_release_is_no_newer_node() {
        let check = |minor| is_current(&Release { version: format!("v1.{minor}.0"), minor });
        assert!(check(36).is_ok() && check(37).is_ok());
        let refused = check(35).unwrap_err().to_string();
        assert!(refused.contains("KUBE_ASSETS") && refused.ends_with("there is v1.35.0"), "{refused}");
    }

    #[test]
    fn a_folder_of_components_has_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["kube-apiserver", "kubelet", "kubectl"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let error = of_folder(folder.path()).unwrap_err().to_string();
        assert!(error.contains("has no kube-controller-manager, etcd:"), "{error}");
        for name in ["kube-controller-manager", "etcd"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(of_folder(folder.path()).unwrap().len(), 5);
    }
}
