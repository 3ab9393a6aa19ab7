//! Where container runtimes have their sockets.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Where the runtimes listen that kubelets use, as their projects ship them: containerd, CRI-O, cri-dockerd, the
/// containerd of k3s and RKE2, of k0s, and of `MicroK8s`.
pub const CANDIDATES: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];

/// The candidates that are sockets below a root directory, `/` outside of tests, in their order. One socket under two
/// names is there once, under the first.
///
/// There may be several of which the kubelet uses one: Docker's containerd has the first name, and its CRI is disabled or
/// has no pods. [`Runtime::list`](super::Runtime::list) finds out.
#[must_use]
pub fn find(root: &Path) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let candidates = CANDIDATES.iter().map(|candidate| root.join(candidate.trim_start_matches('/')));
    candidates
        .filter(|path| {
            fs::metadata(path).is_ok_and(|metadata| {
                metadata.file_type().is_socket() && seen.insert((metadata.dev(), metadata.ino()))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;

    /// Where a candidate is below a root, with its folder there.
    fn below(root: &Path, candidate: &str) -> PathBuf {
        let path = root.join(candidate.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    #[test]
    fn all_sockets_are_found_in_their_order_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        assert!(find(root.path()).is_empty());
        let [containerd, crio, dockerd, k3s, k0s, microk8s] =
            CANDIDATES.map(|candidate| below(root.path(), candidate));
        let _held = [UnixListener::bind(&k3s).unwrap(), UnixListener::bind(&crio).unwrap()];
        fs::write(&containerd, "").unwrap();
        fs::create_dir(&dockerd).unwrap();
        symlink("/nonexistent", &k0s).unwrap();
        symlink(&crio, &microk8s).unwrap();
        assert_eq!(find(root.path()), [crio, k3s]);
    }
}
