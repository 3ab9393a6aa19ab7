//! Finds the cgroups of node components that run as systemd units.

use std::collections::{BTreeMap, BTreeSet};

use super::ComponentError;
use crate::{cgroup::CgroupDir, model::CgroupPath};

/// How deep slices may nest, and how many are searched.
const MAX_LEVELS: usize = 8;
const MAX_SLICES: usize = 4096;

/// The units whose processes are components, and where their cgroups were found.
#[derive(Debug)]
pub(super) struct Units {
    names: BTreeSet<String>,
    found: BTreeMap<String, CgroupPath>,
}

impl Units {
    pub(super) fn new(names: BTreeSet<String>) -> Self {
        Self { names, found: BTreeMap::new() }
    }

    /// The cgroups of the running units.
    ///
    /// Only slices are searched: below a service or scope others, such as a user's own systemd, may make cgroups of any
    /// name. Pods' slices are left out.
    pub(super) fn find(
        &mut self,
        root: &CgroupDir,
        kubepods: &CgroupPath,
        errors: &mut Vec<ComponentError>,
    ) -> Vec<CgroupDir> {
        let mut dirs = Vec::new();
        let mut wanted = self.names.clone();
        self.found.retain(|name, path| match root.open(path) {
            Ok(dir) => {
                wanted.remove(name);
                dirs.push(dir);
                true
            }
            Err(_) => false,
        });
        let mut slices = vec![(CgroupPath::root(), 0)];
        let mut looked_into = 0;
        while let Some((slice, level)) = slices.pop() {
            if wanted.is_empty() || looked_into == MAX_SLICES {
                break;
            }
            looked_into += 1;
            let children = match root.open(&slice).and_then(|dir| dir.children()) {
                Ok(children) => children,
                Err(error) if error.is_gone() => continue,
                Err(error) => {
                    errors.push(error.into());
                    continue;
                }
            };
            // Of a slice or a unit, systemd makes the name, which is text.
            for name in children.iter().filter_map(|name| name.to_str()) {
                let Ok(path) = slice.child(name) else { continue };
                if wanted.contains(name)
                    && let Ok(dir) = root.open(&path)
                {
                    wanted.remove(name);
                    self.found.insert(name.to_owned(), path);
                    dirs.push(dir);
                } else if name.strip_suffix(".slice").is_some() && path != *kubepods && level < MAX_LEVELS {
                    slices.push((path, level + 1));
                }
            }
        }
        dirs
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn paths(units: &mut Units, root: &CgroupDir) -> Vec<String> {
        let kubepods = CgroupPath::parse("/kubepods.slice").unwrap();
        let mut errors = Vec::new();
        let found = units.find(root, &kubepods, &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        found.iter().map(|dir| dir.path().to_string()).collect()
    }

    #[test]
    fn a_unit_is_found_in_slices_and_nowhere_else() {
        let temp = tempfile::tempdir().unwrap();
        for path in [
            "user.slice/user-1.slice/user@1.service/app.slice/containerd.service",
            "kubepods.slice/kubepods-pod1.slice/kubelet.service",
            "machine/kubelet.service",
            "system.slice/ssh.service",
        ] {
            fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let names = ["kubelet.service", "containerd.service"].map(str::to_owned);
        let mut units = Units::new(BTreeSet::from(names));
        assert_eq!(paths(&mut units, &root), Vec::<String>::new());

        fs::create_dir_all(temp.path().join("system.slice/system-node.slice/kubelet.service")).unwrap();
        fs::create_dir_all(temp.path().join("system.slice/containerd.service")).unwrap();
        let kubelet = "/system.slice/system-node.slice/kubelet.service";
        let mut found = paths(&mut units, &root);
        found.sort_unstable();
        assert_eq!(found, ["/system.slice/containerd.service", kubelet]);
        // It comes back elsewhere.
        fs::remove_dir(temp.path().join("system.slice/containerd.service")).unwrap();
        assert_eq!(paths(&mut units, &root), [kubelet]);
        fs::create_dir_all(temp.path().join("runtime.slice/containerd.service")).unwrap();
        assert_eq!(paths(&mut units, &root), [kubelet, "/runtime.slice/containerd.service"]);
    }
}
