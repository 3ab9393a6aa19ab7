//! Which part of kubepods a cgroup is, by its path alone.

use crate::model::{CgroupPath, ContainerId, PodUid, QosClass};

use super::{CgroupDriver, SCOPE, SLICE, child, components::unescape, qos};

/// The prefix of a pod's cgroup, before its uid.
const POD: &str = "pod";

/// The process that CRI-O starts beside each container has a scope whose name has this before the container's id.
const CONMON: &str = "crio-conmon";

/// A cgroup at or below kubepods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// kubepods itself.
    Node,
    /// The cgroup of a class.
    Qos(QosClass),
    /// A pod's.
    Pod(PodPlace),
    /// A cgroup directly below a pod's, or one that its processes made below it.
    Leaf {
        /// The pod.
        pod: PodPlace,
        /// The path of the cgroup directly below the pod's.
        path: CgroupPath,
        /// What its name says.
        leaf: Leaf,
    },
}

/// A pod by its cgroup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodPlace {
    /// Its uid; that of a kubelet's static pod is the hash of its manifest.
    pub uid: PodUid,
    /// Its class.
    pub class: QosClass,
    /// Its cgroup.
    pub path: CgroupPath,
}

/// What the name of a cgroup directly below a pod's says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Leaf {
    /// A runtime's container, or the pod's sandbox.
    Container(ContainerId),
    /// A runtime's own process for a container.
    Helper,
    /// A name without a container's id, such as that of a virtual machine with all of the pod's containers.
    Other,
}

impl Place {
    /// Reads a path; `None` if it is not at or below this kubepods, or not what a kubelet makes there.
    ///
    /// Names below a container's cgroup are chosen by its processes, and mean nothing.
    #[must_use]
    pub fn parse(kubepods: &CgroupPath, driver: CgroupDriver, path: &CgroupPath) -> Option<Self> {
        let Some(rest) = path.below(kubepods) else { return (path == kubepods).then_some(Self::Node) };
        let mut names = rest.split('/');
        let mut name = names.next()?;
        let mut class = QosClass::Guaranteed;
        for of_class in [QosClass::Burstable, QosClass::BestEffort] {
            if qos(kubepods, of_class, driver).names().last() == Some(name) {
                let Some(next) = names.next() else { return Some(Self::Qos(of_class)) };
                (class, name) = (of_class, next);
                break;
            }
        }
        let uid = pod_uid(&qos(kubepods, class, driver), driver, name)?;
        let pod = PodPlace { path: super::pod(kubepods, class, &uid, driver), uid, class };
        let Some(name) = names.next() else { return Some(Self::Pod(pod)) };
        let path = pod.path.child(name).ok()?;
        Some(Self::Leaf { pod, path, leaf: Leaf::parse(name) })
    }

    /// The class, of all but kubepods itself.
    #[must_use]
    pub fn class(&self) -> Option<QosClass> {
        match self {
            Self::Node => None,
            Self::Qos(class) => Some(*class),
            Self::Pod(pod) | Self::Leaf { pod, .. } => Some(pod.class),
        }
    }
}

impl Leaf {
    /// Reads the name of a cgroup directly below a pod's: `<id>` or `crio-<id>` under cgroupfs; `cri-containerd-<id>.scope`,
    /// `crio-<id>.scope`, `docker-<id>.scope` under systemd.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        let plain = name.strip_suffix(SCOPE).unwrap_or(name);
        let (prefix, id) = plain.rsplit_once('-').unwrap_or(("", plain));
        match ContainerId::new(id) {
            Some(_) if prefix == CONMON => Self::Helper,
            Some(id) => Self::Container(id),
            None => Self::Other,
        }
    }
}

/// The uid in the name of a pod's cgroup.
fn pod_uid(parent: &CgroupPath, driver: CgroupDriver, name: &str) -> Option<PodUid> {
    let uid = match driver {
        CgroupDriver::Cgroupfs => name.strip_prefix(POD)?.to_owned(),
        CgroupDriver::Systemd => {
            let above = parent.names().last()?.strip_suffix(SLICE)?;
            let own = name.strip_prefix(above)?.strip_prefix('-')?.strip_suffix(SLICE)?;
            unescape(own.strip_prefix(POD)?)
        }
    };
    let uid = PodUid::new(&uid)?;
    // What would not be written the same way is another's.
    let written = child(parent, &format!("{POD}{uid}"), driver);
    (written.names().last() == Some(name)).then_some(uid)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn place(driver: CgroupDriver, text: &str) -> Option<Place> {
        Place::parse(&super::super::kubepods(&CgroupPath::root(), driver), driver, &path(text))
    }

    /// As found on nodes: containerd, CRI-O and cri-dockerd under both drivers.
    #[rstest]
    #[case(CgroupDriver::Systemd, "cri-containerd-{}.scope")]
    #[case(CgroupDriver::Systemd, "crio-{}.scope")]
    #[case(CgroupDriver::Systemd, "docker-{}.scope")]
    #[case(CgroupDriver::Cgroupfs, "{}")]
    #[case(CgroupDriver::Cgroupfs, "crio-{}")]
    fn a_runtimes_container_is_known_by_its_path(#[case] driver: CgroupDriver, #[case] name: &str) {
        let uid = PodUid::new(UID).unwrap();
        let kubepods = super::super::kubepods(&CgroupPath::root(), driver);
        for class in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let pod = super::super::pod(&kubepods, class, &uid, driver);
            let of_pod = PodPlace { uid: uid.clone(), class, path: pod.clone() };
            assert_eq!(Place::parse(&kubepods, driver, &pod), Some(Place::Pod(of_pod.clone())));
            let own = pod.child(&name.replace("{}", ID)).unwrap();
            let leaf = Leaf::Container(ContainerId::new(ID).unwrap());
            let expected = Some(Place::Leaf { pod: of_pod, path: own.clone(), leaf });
            assert_eq!(Place::parse(&kubepods, driver, &own), expected);
            // systemd in a container, crun's own child, and a name that imitates another pod's container.
            for inner in ["init.scope", "container", &format!("kubepods/podx/{ID}")] {
                let inner = path(&format!("{own}/{inner}"));
                assert_eq!(Place::parse(&kubepods, driver, &inner), expected, "{inner}");
            }
        }
    }

    #[test]
    fn kubepods_and_its_classes_are_known() {
        let systemd = CgroupDriver::Systemd;
        assert_eq!(place(systemd, "/kubepods.slice"), Some(Place::Node));
        let burstable = Some(Place::Qos(QosClass::Burstable));
        assert_eq!(place(systemd, "/kubepods.slice/kubepods-burstable.slice"), burstable);
        assert_eq!(place(CgroupDriver::Cgroupfs, "/kubepods/burstable"), burstable);
    }

    #[test]
    fn a_static_pods_uid_is_its_hash() {
        let hash = "0123456789abcdef0123456789abcdef";
        let slice = format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{hash}.slice");
        let Some(Place::Pod(pod)) = place(CgroupDriver::Systemd, &slice) else { panic!("no pod") };
        assert_eq!(pod.uid.as_str(), hash);
    }

    #[rstest]
    #[case("/system.slice")]
    #[case("/")]
    #[case("/kubepods.slicex")]
    #[case("/kubepods.slice/other.slice")]
    #[case("/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-podx.slice")]
    #[case("/kubepods.slice/kubepods-podx.scope")]
    #[case("/kubepods.slice/kubepods-pod.slice")]
    #[case("/kubepods.slice/kubepods-poda-b.slice")]
    #[case("/kubepods.slice/podx")]
    #[case("/docker/0123/kubepods.slice/kubepods-podx.slice")]
    fn what_no_kubelet_makes_there_is_nobodys(#[case] text: &str) {
        assert_eq!(place(CgroupDriver::Systemd, text), None);
    }

    #[rstest]
    #[case("crio-conmon-{}.scope", Leaf::Helper)]
    #[case("kata_{}", Leaf::Other)]
    #[case("app", Leaf::Other)]
    #[case("cri-containerd-0123.scope", Leaf::Other)]
    fn other_names_below_a_pod_are_no_containers(#[case] name: &str, #[case] leaf: Leaf) {
        assert_eq!(Leaf::parse(&name.replace("{}", ID)), leaf);
    }

    proptest! {
        /// Whatever a process names its cgroups, the owner stays within the pod that the path is in.
        #[test]
        fn any_path_is_read(names in prop::collection::vec("[a-z.\\-_0-9]{1,12}", 0..6)) {
            let valid = names.iter().filter(|name| name.as_str() != "." && name.as_str() != "..");
            let text = valid.map(String::as_str).collect::<Vec<_>>().join("/");
            for driver in [CgroupDriver::Cgroupfs, CgroupDriver::Systemd] {
                let kubepods = super::super::kubepods(&CgroupPath::root(), driver);
                let whole = path(&format!("{kubepods}/{text}"));
                if let Some(Place::Pod(pod) | Place::Leaf { pod, .. }) = Place::parse(&kubepods, driver, &whole) {
                    let rest = whole.as_str().strip_prefix(pod.path.as_str());
                    prop_assert!(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')), "{whole}");
                }
            }
        }
    }
}
