//! Where container runtimes have their sockets.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Where the runtimes listen that kubelets use, as their projects ship them: containerd, CRI-O, cri-dockerd, the
/// containerd of k3s and RKE2 and the cri-dockerd of k3s, and the containerd of k0s and of `MicroK8s`.
pub const CANDIDATES: [&str; 7] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k3s/cri-dockerd/cri-dockerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];

/// The socket that the kubelet names, if it is known, and the candidates, in their order: those that are sockets below a
/// root directory, `/` outside of tests. One socket under two names is there once, under the first.
///
/// There may be several of which the kubelet uses one: Docker's containerd has the first name, and its CRI is disabled or
/// has no pods. [`Runtime::list`](super::Runtime::list) finds out.
#[must_use]
pub fn find(root: &Path, kubelets: Option<&Path>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let candidates = kubelets.into_iter().chain(CANDIDATES.iter().map(Path::new));
    candidates
        .map(|candidate| root.join(candidate.strip_prefix("/").unwrap_or(candidate)))
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
        assert!(find(root.path(), None).is_empty());
        let [containerd, crio, dockerd, k3s, k3s_dockerd, k0s, microk8s] =
            CANDIDATES.map(|candidate| below(root.path(), candidate));
        let _held = [&k3s_dockerd, &k3s, &crio].map(|socket| UnixListener::bind(socket).unwrap());
        fs::write(&containerd, "").unwrap();
        fs::create_dir(&dockerd).unwrap();
        symlink("/nonexistent", &k0s).unwrap();
        symlink(&crio, &microk8s).unwrap();
        assert_eq!(find(root.path(), None), [crio, k3s, k3s_dockerd]);
    }

    #[test]
    fn the_socket_that_the_kubelet_names_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let [own, k3s, containerd] =
            ["/run/own.sock", "/run/k3s/containerd/containerd.sock", "/run/containerd/containerd.sock"]
                .map(|socket| below(root.path(), socket));
        let _held = [&own, &k3s, &containerd].map(|socket| UnixListener::bind(socket).unwrap());
        let found = |kubelets: &str| find(root.path(), Some(Path::new(kubelets)));
        assert_eq!(found("/run/own.sock"), [own, containerd.clone(), k3s.clone()]);
        assert_eq!(found("/run/k3s/containerd/containerd.sock"), [k3s.clone(), containerd.clone()]);
        // One that is not there is none.
        assert_eq!(found("/run/none.sock"), [containerd, k3s]);
    }
}
