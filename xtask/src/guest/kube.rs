//! A guest that is a Kubernetes node named `guest`: the components as units of systemd, and what they need to find each
//! other.
//!
//! The units start when `node-up` does, before the script. The node has the documentation's address 192.0.2.2, on the
//! loopback device, as the kubelet refuses an address of loopback. The cluster's own address is there too: no proxy is
//! needed for pods in the host's network to reach the API server. There is no scheduler, so a pod names its node.
mod configuration;
mod identity;
mod image;

use std::{
    env,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::{
    build::{self, Programs},
    guest::{cpio::Archive, folders::Folders},
    setup::kube::{Components, Release},
};

/// What a node has and a guest with systemd has not.
#[derive(Debug)]
pub(crate) struct Node {
    /// The components.
    pub(super) programs: Programs,
    /// The part of the initramfs that follows systemd's.
    pub(super) archive: PathBuf,
    /// The archive's folder, removed with this.
    _folder: TempDir,
}

/// Names the driver of the node's cgroups.
const DRIVER: &str = "KUBE_CGROUP_DRIVER";

/// Who makes the cgroups of pods.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CgroupDriver {
    Systemd,
    Cgroupfs,
}

impl CgroupDriver {
    /// That of the environment; without one, systemd.
    fn of_environment() -> anyhow::Result<Self> {
        env::var(DRIVER).map_or(Ok(Self::Systemd), |word| Self::parse(&word))
    }

    fn parse(word: &str) -> anyhow::Result<Self> {
        match word {
            "" | "systemd" => Ok(Self::Systemd),
            "cgroupfs" => Ok(Self::Cgroupfs),
            _ => bail!("{DRIVER}={word} is neither systemd nor cgroupfs"),
        }
    }

    /// As the kubelet calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Cgroupfs => "cgroupfs",
        }
    }
}

/// A file that is made here.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Made {
    /// Relative to the root.
    path: String,
    mode: u32,
    content: Vec<u8>,
}

impl Made {
    fn text(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), mode: 0o644, content: content.into() }
    }
}

impl Node {
    /// Makes the archive in a folder of its own, with the image of the guest's own `workload`.
    pub(super) fn make(components: Components, guest: &Programs) -> anyhow::Result<Self> {
        let Components { programs, release } = components;
        let workload = build::program(guest, image::PROGRAM)?;
        let files = files(&release, CgroupDriver::of_environment()?, workload)?;
        let folder = tempfile::Builder::new().prefix("enforcer-node-").tempdir()?;
        let archive = folder.path().join("node.cpio");
        write(&archive, &files)?;
        Ok(Self { programs, archive, _folder: folder })
    }
}

/// The script behind what brings the node up; if that fails, the script does not run.
pub(super) fn script(script: &[u8]) -> Vec<u8> {
    let prefix = format!("export KUBECONFIG=/{}\nnode-up || exit\n", configuration::ADMIN);
    [prefix.as_bytes(), script].concat()
}

/// All files that are made here.
fn files(release: &Release, driver: CgroupDriver, workload: &Path) -> anyhow::Result<Vec<Made>> {
    let program = fs::read(workload).with_context(|| format!("cannot read {}", workload.display()))?;
    let mut files = configuration::files(release, driver);
    files.extend(identity::files()?);
    files.push(Made::text(configuration::IMAGES, image::archive(&program)?));
    Ok(files)
}

fn write(to: &Path, files: &[Made]) -> anyhow::Result<()> {
    let file = File::create(to).with_context(|| format!("cannot create {}", to.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    let mut folders = Folders::default();
    folders.make(&mut archive, &format!("{}/", configuration::STATIC_PODS))?;
    for Made { path, mode, content } in files {
        folders.make(&mut archive, path)?;
        archive.file(path, *mode, content)?;
    }
    archive.finish()?.flush().with_context(|| format!("cannot write {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_runs_on_a_node_that_is_up() {
        let script = String::from_utf8(script(b"kubectl get nodes")).unwrap();
        assert_eq!(
            script,
            "export KUBECONFIG=/etc/kubernetes/admin.conf\nnode-up || exit\nkubectl get nodes"
        );
    }

    #[test]
    fn the_driver_is_one_of_two() {
        for driver in [CgroupDriver::Systemd, CgroupDriver::Cgroupfs] {
            assert_eq!(CgroupDriver::parse(driver.word()).unwrap(), driver);
        }
        assert!(
            CgroupDriver::parse("Systemd")
                .unwrap_err()
                .to_string()
                .starts_with("KUBE_CGROUP_DRIVER=Systemd ")
        );
    }

    #[test]
    fn only_the_owner_reads_keys() {
        let folder = tempfile::tempdir().unwrap();
        let workload = folder.path().join("workload");
        fs::write(&workload, "program").unwrap();
        let release = Release { version: "v1.20.2".into(), minor: 20 };
        let files = files(&release, CgroupDriver::Systemd, &workload).unwrap();
        let private = |file: &Made| String::from_utf8_lossy(&file.content).contains("PRIVATE KEY");
        let keys: Vec<_> = files.iter().filter(|file| private(file)).collect();
        assert!(!keys.is_empty() && keys.iter().all(|file| file.mode == 0o600), "{keys:?}");
    }
}
