//! The lock file: which Debian packages make the guests, and which the tests need, by version and hash.
use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::{
    guest::{debian::Release, kernel::KernelName},
    places::Places,
};

/// The file's name in the repository.
pub(crate) const FILE: &str = "xtask/guest.lock.json";

/// The whole file.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lock {
    /// QEMU itself and its firmware; its libraries come from the host's own release.
    pub(crate) qemu: Vec<Package>,
    /// The guests' userland.
    pub(crate) busybox: Vec<Package>,
    /// The contenders of the daemon, and their libraries.
    pub(crate) contenders: Vec<Package>,
    /// systemd as a guest's init.
    pub(crate) systemd: Vec<Package>,
    /// Scrapes the daemon in tests.
    pub(crate) prometheus: Vec<Package>,
    /// The source of Kubernetes, and the compiler for it.
    pub(crate) kubernetes: Vec<Package>,
    /// What a Kubernetes node has beside the components.
    pub(crate) kube_node: Vec<Package>,
    /// Each Debian system: all of its packages, by the name of the suite.
    pub(crate) debian: BTreeMap<String, Vec<Package>>,
    /// Each kernel: image and modules.
    pub(crate) kernels: BTreeMap<String, Vec<Package>>,
}

/// One package of the Debian archive: a binary package, or the upstream source of a source package.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The suite that offered it when it was locked.
    pub(crate) suite: String,
    /// Its path on a mirror.
    pub(crate) path: String,
    /// Of the file, from the suite's signed index.
    pub(crate) sha256: String,
}

impl Lock {
    pub(crate) fn read(places: &Places) -> anyhow::Result<Self> {
        let path = path(places);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))
    }

    pub(crate) fn write(&self, places: &Places) -> anyhow::Result<()> {
        let path = path(places);
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A digest of the whole list, for a name in the cache: an update of a single library changes it.
    pub(crate) fn digest(packages: &[Package]) -> u64 {
        packages
            .iter()
            .flat_map(|package| package.sha256.bytes())
            .fold(0, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
    }

    /// The packages of one Debian system.
    pub(crate) fn debian(&self, release: Release) -> anyhow::Result<&[Package]> {
        let packages = self.debian.get(release.suite());
        packages.map(Vec::as_slice).with_context(|| format!("{FILE} has no {}", release.name()))
    }

    /// The packages of one kernel.
    pub(crate) fn kernel(&self, name: KernelName) -> anyhow::Result<&[Package]> {
        let packages = self.kernels.get(name.as_str());
        packages.map(Vec::as_slice).with_context(|| format!("{FILE} has no kernel {name}"))
    }
}

impl Package {
    /// A name for the cache that changes when the content does.
    pub(crate) fn stamp(&self) -> String {
        let hash: String = self.sha256.chars().take(12).collect();
        format!("{}-{hash}", self.version.replace([':', '~', '/'], "_"))
    }
}

fn path(places: &Places) -> PathBuf {
    places.root.join(FILE)
}
