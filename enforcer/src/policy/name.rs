//! Where pods and containers have their cgroups (`pkg/kubelet/cm/cgroup_manager_linux.go`,
//! `pod_container_manager_linux.go`).
//!
//! The cgroupfs driver makes plain folders: `/kubepods/burstable/pod<uid>/<container>`. The systemd driver makes
//! slices, each of which repeats the names above it:
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`.

mod components;
mod mirror;

use crate::model::{CgroupPath, PodUid, QosClass};

use super::{CgroupDriver, Settings};

pub use self::{
    components::{CgroupName, NameError},
    mirror::cgroup_uids,
};

/// The longest name of a directory, in bytes; systemd's longest unit name is the same.
const NAME_MAX: usize = 255;
/// What is kept of an escaped container name that is cut, in bytes.
const ESCAPED_MAX: usize = 200;
/// What ends the name of a slice.
const SLICE: &str = ".slice";
/// What begins and ends the name of a container's scope.
const SCOPE_OWNER: &str = "enforcer-";
const SCOPE: &str = ".scope";

/// A cgroup that the configuration names (`cgroupRoot`, `systemReservedCgroup`, `kubeReservedCgroup`), as the driver
/// has it.
///
/// Under systemd `/machine` is `/machine.slice`, and `/machine/a` is `/machine.slice/machine-a.slice`, as in the
/// kubelet; what is a slice already, such as `/machine.slice`, stays as it is. [`check`] says which paths fit.
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

/// kubepods below the root that the configuration names.
#[must_use]
pub fn kubepods(root: &CgroupPath, driver: CgroupDriver) -> CgroupPath {
    child(&given(root, driver), "kubepods", driver)
}

/// Where the pods of a class stand: kubepods itself for Guaranteed.
#[must_use]
pub fn qos(kubepods: &CgroupPath, class: QosClass, driver: CgroupDriver) -> CgroupPath {
    match class {
        QosClass::Guaranteed => kubepods.clone(),
        QosClass::Burstable => child(kubepods, "burstable", driver),
        QosClass::BestEffort => child(kubepods, "besteffort", driver),
    }
}

/// Where pods would stand under the other driver: kubepods and its classes'.
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

/// A pod's cgroup: `pod<uid>`. The uid is one of [`cgroup_uids`].
#[must_use]
pub fn pod(kubepods: &CgroupPath, class: QosClass, uid: &PodUid, driver: CgroupDriver) -> CgroupPath {
    child(&qos(kubepods, class, driver), &format!("pod{uid}"), driver)
}

/// A container's cgroup, by the container's name and the uid that its pod's cgroup is named by.
///
/// Under cgroupfs it is the name itself. Under systemd it is a scope, `enforcer-<uid>-<name>.scope`, the uid's `-`
/// written `_`: units have one name on the whole machine, whatever slice they are in, so the name alone would not do;
/// the first word says whose it is, as those of `cri-containerd-` and `crio-` do. The uid ends at the first `-`, so no
/// other pod or container has that scope.
///
/// Names that are no DNS label, which the API server and the manifest source refuse, are escaped, so that none
/// leaves the pod's cgroup or hits a file of it, and no two of them meet.
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

/// Whether a container's cgroup is a scope of ours, which comes with the container's first process and goes with its
/// last. A scope that the container adopts is not.
#[must_use]
pub fn is_scope(container: &CgroupPath) -> bool {
    container.names().last().is_some_and(|name| name.starts_with(SCOPE_OWNER) && name.ends_with(SCOPE))
}

/// The cgroup of one more component below a cgroup of the driver's (upstream `ToCgroupfs`, `ToSystemd`).
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

/// A container's name as part of a directory's name, at the most `room` bytes, no fewer than a DNS label.
fn leaf(name: &str, room: usize) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !name.is_empty() && name.len() <= room && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let escape = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("_{byte:02x}") };
    let mut escaped: String = std::iter::once(String::from("_")).chain(name.bytes().map(escape)).collect();
    if escaped.len() > room {
        // The beginning and a hash of the whole: FNV-1a, 64 bits.
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
