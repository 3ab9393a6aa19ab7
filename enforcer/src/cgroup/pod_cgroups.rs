//! The pods' cgroups that a kubelet and its container runtime made.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::{CgroupDir, Error};
use crate::{
    model::{CgroupId, CgroupPath, ContainerId, QosClass},
    policy::{
        CgroupDriver,
        name::{self, Leaf, Place, PodPlace},
    },
};

/// The most pods that are read. A node has a few hundred.
const MOST_PODS: usize = 10_000;

/// Of how many of a container's processes the score is read: children have their parent's, or a higher one.
const MOST_SCORES: usize = 4;

/// In how many cgroups of a container its processes are looked for.
const MOST_NESTED: usize = 16;

/// The cgroup of a pod, and those directly below it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodCgroup {
    /// The pod.
    pub place: PodPlace,
    /// The cgroup's id.
    pub id: CgroupId,
    /// The containers' cgroups, the sandbox's among them.
    pub containers: Vec<ContainerCgroup>,
}

/// The cgroup of a container, or of a pod's sandbox.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ContainerCgroup {
    /// The container's id.
    pub container: ContainerId,
    /// Its path.
    pub path: CgroupPath,
    /// The lowest `oom_score_adj` of the first processes in it and below, read only for pods of class `BestEffort`; `None`
    /// if there are none.
    pub score: Option<i16>,
}

/// Reads which pods have a cgroup below `kubepods`, by path. What goes meanwhile is left out; what cannot be read is an
/// error, since a pod that was not seen must not count as gone. `known` are those of the last time: if they hold the same
/// containers and nothing else, these are not listed again.
pub fn pod_cgroups(
    root: &CgroupDir,
    proc: &Path,
    kubepods: &CgroupPath,
    driver: CgroupDriver,
    known: &[PodCgroup],
) -> Result<Vec<PodCgroup>, Error> {
    let known: HashMap<CgroupId, &PodCgroup> = known.iter().map(|pod| (pod.id, pod)).collect();
    let mut pods = Vec::new();
    for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
        for path in children(root, &name::qos(kubepods, class, driver))? {
            let Some(Place::Pod(place)) = Place::parse(kubepods, driver, &path) else { continue };
            if pods.len() == MOST_PODS {
                let source = io::Error::other(format!("it holds more than {MOST_PODS} pods"));
                return Err(Error::Open { path: kubepods.to_string(), source });
            }
            let dir = match root.open(&path) {
                Ok(dir) => dir,
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            };
            let id = dir.id();
            let paths = match known.get(&id).filter(|known| holds_only(&dir, known)) {
                Some(known) => known.containers.iter().map(|container| container.path.clone()).collect(),
                None => children_of(&dir, &path)?,
            };
            // Of pods of other classes nothing depends on it.
            let proc = Some(proc).filter(|_| class == QosClass::BestEffort);
            let containers = paths.into_iter().filter_map(|path| container(root, proc, path)).collect();
            pods.push(PodCgroup { place, id, containers });
        }
    }
    Ok(pods)
}

/// Whether these containers, which no others have the ids of, are all that there is.
fn holds_only(dir: &CgroupDir, known: &PodCgroup) -> bool {
    let names = known.containers.iter().filter_map(|container| Some((container.path.names().last()?, None)));
    dir.count_only(names) == Some(known.containers.len())
}

fn container(root: &CgroupDir, proc: Option<&Path>, path: CgroupPath) -> Option<ContainerCgroup> {
    match Leaf::parse(path.names().last()?) {
        Leaf::Container(container) => {
            let score = proc.and_then(|proc| lowest_score(root, proc, &path));
            Some(ContainerCgroup { container, path, score })
        }
        Leaf::Helper | Leaf::Other => None,
    }
}

/// The lowest score of the first processes in a cgroup, or in those below it that the container made, as systemd does;
/// `None` without any.
fn lowest_score(root: &CgroupDir, proc: &Path, path: &CgroupPath) -> Option<i16> {
    let own = root.open(path).ok()?;
    let (mut pending, mut processes) = (vec![PathBuf::new()], Vec::new());
    for _ in 0..MOST_NESTED {
        let Some(below) = pending.pop() else { break };
        let Ok(dir) = own.open_below(&below) else { continue };
        processes.extend(dir.processes().unwrap_or_default());
        if processes.len() >= MOST_SCORES {
            break;
        }
        pending.extend(dir.children().unwrap_or_default().iter().map(|name| below.join(name)));
    }
    let score = |pid: &u32| {
        let text = fs::read_to_string(proc.join(pid.to_string()).join("oom_score_adj")).ok()?;
        text.trim_ascii_end().parse::<i16>().ok()
    };
    processes.iter().take(MOST_SCORES).filter_map(score).min()
}

/// The paths of the cgroups directly below one; none if it is gone.
fn children(root: &CgroupDir, path: &CgroupPath) -> Result<Vec<CgroupPath>, Error> {
    match root.open(path) {
        Ok(dir) => children_of(&dir, path),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn children_of(dir: &CgroupDir, path: &CgroupPath) -> Result<Vec<CgroupPath>, Error> {
    match dir.children() {
        // What a kubelet and its container runtime make has text for a name.
        Ok(names) => Ok(names.iter().filter_map(|name| path.child(name.to_str()?).ok()).collect()),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn pods_of_all_classes_are_found_with_their_containers() {
        let (first, second) = ("0a".repeat(32), "1b".repeat(32));
        let temp = tempfile::tempdir().unwrap();
        let burstable = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podb_1.slice";
        for path in [
            &format!("{burstable}/cri-containerd-{first}.scope/init.scope"),
            &format!("{burstable}/cri-containerd-{second}.scope"),
            &format!("{burstable}/crio-conmon-{first}.scope"),
            &format!("kubepods.slice/kubepods-podg.slice/crio-{first}.scope"),
            "kubepods.slice/kubepods-besteffort.slice/other.slice",
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pode.slice",
            "system.slice/a.service",
        ] {
            fs::create_dir_all(temp.path().join(path)).unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let driver = CgroupDriver::Systemd;
        let kubepods = name::kubepods(&CgroupPath::root(), driver);
        let mut found = pod_cgroups(&root, Path::new("/proc"), &kubepods, driver, &[]).unwrap();
        for pod in &mut found {
            pod.containers.sort_by(|one, other| one.container.cmp(&other.container));
        }
        let shown: Vec<_> = found
            .iter()
            .map(|pod| {
                let ids = pod.containers.iter().map(|of| of.container.to_string()).collect::<Vec<_>>();
                (pod.place.uid.as_str(), pod.place.class, ids)
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("g", QosClass::Guaranteed, vec![first.clone()]),
                ("b-1", QosClass::Burstable, vec![first, second]),
                ("e", QosClass::BestEffort, vec![]),
            ]
        );
        let other = name::kubepods(&CgroupPath::root(), CgroupDriver::Cgroupfs);
        assert_eq!(pod_cgroups(&root, Path::new("/proc"), &other, CgroupDriver::Cgroupfs, &[]).unwrap(), []);
    }

    #[test]
    fn what_was_found_before_hides_no_change() {
        let temp = tempfile::tempdir().unwrap();
        let pod = temp.path().join("kubepods/burstable/podb");
        let ids = ["0a", "1b", "2c"].map(|byte| byte.repeat(32));
        fs::create_dir_all(pod.join(&ids[0])).unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let driver = CgroupDriver::Cgroupfs;
        let kubepods = name::kubepods(&CgroupPath::root(), driver);
        let mut known = Vec::new();
        let mut look = || {
            known = pod_cgroups(&root, Path::new("/proc"), &kubepods, driver, &known).unwrap();
            known
                .iter()
                .map(|pod| pod.containers.iter().map(|of| of.container.to_string()).collect::<Vec<_>>())
                .collect::<Vec<_>>()
        };
        let one: Vec<Vec<String>> = vec![vec![ids[0].clone()]];
        assert_eq!([look(), look()], [one.clone(), one]);
        fs::create_dir(pod.join("other")).unwrap();
        fs::create_dir(pod.join(&ids[1])).unwrap();
        let two = vec![ids[..2].to_vec()];
        assert_eq!([look(), look()], [two.clone(), two]);
        fs::remove_dir(pod.join("other")).unwrap();
        fs::remove_dir(pod.join(&ids[0])).unwrap();
        fs::create_dir(pod.join(&ids[2])).unwrap();
        assert_eq!(look(), [ids[1..].to_vec()]);
        fs::remove_dir(pod.join(&ids[1])).unwrap();
        fs::remove_dir(pod.join(&ids[2])).unwrap();
        assert_eq!([look(), look()], [vec![Vec::<String>::new()], vec![Vec::new()]]);
        fs::remove_dir(&pod).unwrap();
        assert_eq!(look(), Vec::<Vec<String>>::new());
    }

    /// A Kata pod's virtual machine, systemd's own and crun's are cgroups of the pod, and none of a further container.
    #[test]
    fn only_a_containers_own_cgroup_is_a_container() {
        let id = "0a".repeat(32);
        let temp = tempfile::tempdir().unwrap();
        let besteffort = temp.path().join("kubepods/besteffort");
        for path in [
            format!("podkata/kata_{id}"),
            String::from("podkata/kata_overhead"),
            format!("podplain/{id}/container"),
            format!("podplain/{id}/init.scope"),
            format!("podplain/{id}/kubepods/besteffort/podinner/{id}"),
        ] {
            fs::create_dir_all(besteffort.join(path)).unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let driver = CgroupDriver::Cgroupfs;
        let kubepods = name::kubepods(&CgroupPath::root(), driver);
        let mut found = pod_cgroups(&root, Path::new("/proc"), &kubepods, driver, &[]).unwrap();
        found.sort_by(|one, other| one.place.uid.cmp(&other.place.uid));
        let shown: Vec<_> = found.iter().map(|pod| (pod.place.uid.as_str(), pod.containers.len())).collect();
        assert_eq!(shown, [("kata", 0), ("plain", 1)]);
    }

    #[test]
    fn a_score_is_found_below_a_containers_own_cgroup() {
        let id = "0a".repeat(32);
        let temp = tempfile::tempdir().unwrap();
        let pod = temp.path().join("kubepods/besteffort/pode");
        let (own, nested) = (pod.join(&id), pod.join(&id).join("init.scope"));
        fs::create_dir_all(&nested).unwrap();
        fs::write(own.join("cgroup.procs"), "").unwrap();
        fs::write(nested.join("cgroup.procs"), "41\n42\n").unwrap();
        for (pid, score) in [("41", "1000\n"), ("42", "-997\n")] {
            fs::create_dir_all(temp.path().join("proc").join(pid)).unwrap();
            fs::write(temp.path().join("proc").join(pid).join("oom_score_adj"), score).unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let driver = CgroupDriver::Cgroupfs;
        let kubepods = name::kubepods(&CgroupPath::root(), driver);
        let score = || {
            let pods = pod_cgroups(&root, &temp.path().join("proc"), &kubepods, driver, &[]).unwrap();
            pods[0].containers[0].score
        };
        assert_eq!(score(), Some(-997));
        fs::write(nested.join("cgroup.procs"), "").unwrap();
        assert_eq!(score(), None);
    }
}
