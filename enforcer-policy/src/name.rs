//! The paths of the cgroups of pods and containers (`pkg/kubelet/cm/cgroup_manager_linux.go`,
//! `pod_container_manager_linux.go`).
//!
//! The cgroupfs driver creates plain directories: `/kubepods/burstable/pod<uid>/<container>`. The systemd driver
//! creates slices, each of which repeats the names above it:
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`.

mod components;
mod mirror;
mod parse;

use crate::model::{CgroupPath, PodUid, QosClass};

use super::{CgroupDriver, Settings};

pub use self::{
    components::{CgroupName, NameError},
    mirror::cgroup_uids,
    parse::{Leaf, Place, PodPlace},
};

/// The longest name of a directory, in bytes; systemd's longest unit name is the same.
const NAME_MAX: usize = 255;
/// The length that an escaped container name is cut to, in bytes.
const ESCAPED_MAX: usize = 200;
/// The suffix of a slice.
const SLICE: &str = ".slice";
/// The prefix and suffix of a container's scope.
const SCOPE_OWNER: &str = "enforcer-";
const SCOPE: &str = ".scope";

/// A cgroup that the configuration names (`cgroupRoot`, `systemReservedCgroup`, `kubeReservedCgroup`), in the driver's
/// notation.
///
/// Under systemd `/machine` becomes `/machine.slice`, and `/machine/a` becomes `/machine.slice/machine-a.slice`, as in
/// the kubelet; a path of slices, such as `/machine.slice`, is unchanged. [`check`] says which paths are valid.
#[must_use]
pub fn given(path: &CgroupPath, driver: CgroupDriver) -> CgroupPath {
    match driver {
        CgroupDriver::Cgroupfs => path.clone(),
        CgroupDriver::Systemd if path.names().any(|name| name.ends_with(SLICE)) => path.clone(),
        CgroupDriver::Systemd => {
            path.names().fold(CgroupPath::root(), |parent, name| child(&parent, name, driver))
        }
    }
}

/// Checks that the driver can name a cgroup of the configuration, and the pods below it if it is `cgroupRoot`.
pub fn check(path: &CgroupPath, driver: CgroupDriver) -> Result<(), NameError> {
    match driver {
        CgroupDriver::Cgroupfs => Ok(()),
        CgroupDriver::Systemd => {
            let pod = "p".repeat("pod".len() + PodUid::MAX_BYTES);
            let base = CgroupName::parse(path, driver)?;
            base.check_unit()?;
            ["kubepods", "besteffort", &pod]
                .iter()
                .try_fold(base, |parent, component| parent.child(component))?
                .path(driver)
                .map(drop)
        }
    }
}

/// kubepods below the root from the configuration.
#[must_use]
pub fn kubepods(root: &CgroupPath, driver: CgroupDriver) -> CgroupPath {
    child(&given(root, driver), "kubepods", driver)
}

/// The parent of a class's pods: kubepods itself for Guaranteed.
#[must_use]
pub fn qos(kubepods: &CgroupPath, class: QosClass, driver: CgroupDriver) -> CgroupPath {
    match class {
        QosClass::Guaranteed => kubepods.clone(),
        QosClass::Burstable => child(kubepods, "burstable", driver),
        QosClass::BestEffort => child(kubepods, "besteffort", driver),
    }
}

/// kubepods and the classes' cgroups under the other driver.
#[must_use]
pub fn of_other_driver(settings: &Settings) -> Vec<CgroupPath> {
    let other = match settings.cgroup_driver {
        CgroupDriver::Cgroupfs => CgroupDriver::Systemd,
        CgroupDriver::Systemd => CgroupDriver::Cgroupfs,
    };
    if check(&settings.cgroup_root, other).is_err() {
        return Vec::new();
    }
    let kubepods = kubepods(&settings.cgroup_root, other);
    [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
        .map(|class| qos(&kubepods, class, other))
        .into()
}

/// A pod's cgroup: `pod<uid>`. The uid comes from [`cgroup_uids`].
#[must_use]
pub fn pod(kubepods: &CgroupPath, class: QosClass, uid: &PodUid, driver: CgroupDriver) -> CgroupPath {
    child(&qos(kubepods, class, driver), &format!("pod{uid}"), driver)
}

/// A container's cgroup, by the container's name and the uid in the name of its pod's cgroup.
///
/// Under cgroupfs it is the name itself. Under systemd it is a scope, `enforcer-<uid>-<name>.scope`, with `_` for each
/// `-` in the uid: unit names are unique on the whole machine, whatever slice they are in, so the name alone is not
/// enough; the first word shows the owner, as in `cri-containerd-` and `crio-`. The uid ends at the first `-`, so no
/// other pod or container has that scope.
///
/// Names that are not DNS labels, which the API server and the manifest source refuse, are escaped, so that none leaves
/// the pod's cgroup or hits a file of it, and no two of them collide.
#[must_use]
pub fn container(pod: &CgroupPath, uid: &PodUid, name: &str, driver: CgroupDriver) -> CgroupPath {
    match driver {
        CgroupDriver::Cgroupfs => pod.plain_child(&leaf(name, NAME_MAX)),
        CgroupDriver::Systemd => {
            let before = format!("{SCOPE_OWNER}{}-", components::escape(uid.as_str()));
            let leaf = leaf(name, NAME_MAX - before.len() - SCOPE.len());
            pod.plain_child(&format!("{before}{leaf}{SCOPE}"))
        }
    }
}

/// Whether a container's cgroup is one of our scopes, which exists from the container's first process to its last. A
/// scope that the container adopts is not one.
#[must_use]
pub fn is_scope(container: &CgroupPath) -> bool {
    container.names().last().is_some_and(|name| name.starts_with(SCOPE_OWNER) && name.ends_with(SCOPE))
}

/// The cgroup one component below another one (upstream `ToCgroupfs`, `ToSystemd`).
fn child(parent: &CgroupPath, component: &str, driver: CgroupDriver) -> CgroupPath {
    match driver {
        CgroupDriver::Cgroupfs => parent.plain_child(component),
        CgroupDriver::Systemd => {
            let above = parent.names().last().map(|name| name.strip_suffix(SLICE).unwrap_or(name));
            let own = components::escape(component);
            parent.plain_child(&match above {
                Some(above) => format!("{above}-{own}{SLICE}"),
                None => format!("{own}{SLICE}"),
            })
        }
    }
}

/// A container's name as part of a directory's name, at most `room` bytes, which must hold a DNS label.
fn leaf(name: &str, room: usize) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.len() <= room && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let escape = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("_{byte:02x}") };
    let mut escaped: String = std::iter::once(String::from("_")).chain(name.bytes().map(escape)).collect();
    if escaped.len() > room {
        // The beginning and a hash of the whole name: FNV-1a, 64 bits.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let hash = format!("__{hash:016x}");
        escaped.truncate(ESCAPED_MAX.min(room.saturating_sub(hash.len())));
        escaped.push_str(&hash);
    }
    escaped
}

#[cfg(test)]
mod tests;
