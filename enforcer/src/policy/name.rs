//! Where pods and containers have their cgroups, as the kubelet's cgroupfs driver names them
//! (`pkg/kubelet/cm/cgroup_manager_linux.go`, `pod_container_manager_linux.go`).

use crate::model::{CgroupPath, PodUid, QosClass};

/// The longest name of a directory, in bytes.
const NAME_MAX: usize = 255;

/// kubepods below the given root.
#[must_use]
pub fn kubepods(root: &CgroupPath) -> CgroupPath {
    root.plain_child("kubepods")
}

/// Where the pods of a class stand: kubepods itself for Guaranteed.
#[must_use]
pub fn qos(kubepods: &CgroupPath, class: QosClass) -> CgroupPath {
    match class {
        QosClass::Guaranteed => kubepods.clone(),
        QosClass::Burstable => kubepods.plain_child("burstable"),
        QosClass::BestEffort => kubepods.plain_child("besteffort"),
    }
}

/// A pod's cgroup: `pod<uid>`.
#[must_use]
pub fn pod(kubepods: &CgroupPath, class: QosClass, uid: &PodUid) -> CgroupPath {
    qos(kubepods, class).plain_child(&format!("pod{uid}"))
}

/// A container's cgroup, by the container's name.
///
/// Names that are no DNS label, which the API server and the manifest source refuse, are escaped, so that none
/// leaves the pod's cgroup or hits a file of it, and no two of them meet.
#[must_use]
pub fn container(pod: &CgroupPath, name: &str) -> CgroupPath {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(is_plain) {
        return pod.plain_child(name);
    }
    let escape = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("_{byte:02x}") };
    let mut escaped: String = std::iter::once(String::from("_")).chain(name.bytes().map(escape)).collect();
    if escaped.len() > NAME_MAX {
        // 200 bytes and a hash of the whole: FNV-1a, 64 bits.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        escaped.truncate(200);
        escaped = format!("{escaped}__{hash:016x}");
    }
    pod.plain_child(&escaped)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_are_the_cgroupfs_drivers() {
        let kubepods = kubepods(&CgroupPath::root());
        let uid = PodUid::new("6c1a4e95-6bb6-11e6-bc26-28d2444e470d").unwrap();
        let path = |class| container(&pod(&kubepods, class, &uid), "app").to_string();
        let tail = "pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d/app";
        assert_eq!(path(QosClass::Guaranteed), format!("/kubepods/{tail}"));
        assert_eq!(path(QosClass::Burstable), format!("/kubepods/burstable/{tail}"));
        assert_eq!(path(QosClass::BestEffort), format!("/kubepods/besteffort/{tail}"));
        let root = CgroupPath::parse("/machine").unwrap();
        assert_eq!(super::kubepods(&root).as_str(), "/machine/kubepods");
    }

    proptest! {
        #[test]
        fn a_container_stays_in_its_pod_and_to_itself(
            left in "\\PC{0,300}|[./_]{0,4}|[a-z.-]{1,8}",
            right in "\\PC{0,300}|[./_]{0,4}|[a-z.-]{1,8}",
        ) {
            let pod = CgroupPath::parse("/kubepods/podx").unwrap();
            let path = container(&pod, &left);
            prop_assert_eq!(CgroupPath::parse(path.as_str()), Ok(path.clone()));
            prop_assert_eq!(path.parent(), Some(pod.clone()));
            prop_assert_eq!(container(&pod, &right) == path, left == right);
        }
    }
}
