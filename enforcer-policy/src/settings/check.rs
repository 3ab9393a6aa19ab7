//! Finds settings that contradict each other whatever the node, before anything is planned.

use crate::{
    allocatable,
    model::{CgroupPath, ResourceList, ResourceName},
};

use super::super::name::{self, NameError};
use super::{CpuManagerPolicy, KubeReservedPolicy, ReservedCgroup, Settings};

/// Settings that contradict each other on any node.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The driver has no path for a cgroup.
    #[error("{field}: {source}")]
    Name {
        /// The configuration's field.
        field: &'static str,
        /// The reason.
        source: NameError,
    },
    /// Containers are to get CPUs of their own, and none is kept for the others.
    #[error(
        "cpuManagerPolicy: static needs a reservation of CPU, which is not given away: set reservedSystemCPUs, or cpu in systemReserved or kubeReserved"
    )]
    NoCpuReserved,
    /// A reserved cgroup that would also contain pods, or that is within kubepods.
    #[error(
        "{field}: {path} must not be, contain or lie within {kubepods}, where pods are: name a cgroup beside it, such as /system.slice"
    )]
    HoldsPods {
        /// The configuration's field.
        field: &'static str,
        /// The cgroup.
        path: CgroupPath,
        /// kubepods.
        kubepods: CgroupPath,
    },
    /// What is reserved for the one would be reserved for the other too.
    #[error(
        "kubeReservedCgroup: {kube} and systemReservedCgroup {system} must not be or contain one another, as each is held to \
         its own reservation: name two cgroups beside each other, or hold only one of them (enforceNodeAllocatable)"
    )]
    Overlap {
        /// The cgroup of `systemReservedCgroup`.
        system: CgroupPath,
        /// That of `kubeReservedCgroup`.
        kube: CgroupPath,
    },
}

impl SettingsError {
    /// The configuration field to change.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            Self::Name { field, .. } | Self::HoldsPods { field, .. } => field,
            Self::Overlap { .. } => "kubeReservedCgroup",
            Self::NoCpuReserved => "cpuManagerPolicy",
        }
    }
}

impl Settings {
    /// Checks what no single field shows: that the driver can name the cgroups, and that no reservation contains pods or
    /// the other one.
    pub fn check(&self) -> Result<(), Vec<SettingsError>> {
        let mut problems = Vec::new();
        if self.cpu_manager_policy == CpuManagerPolicy::Static && !self.reserves_cpu() {
            problems.push(SettingsError::NoCpuReserved);
        }
        let mut fits = |field, path: &CgroupPath| match name::check(path, self.cgroup_driver) {
            Ok(()) => true,
            Err(source) => {
                problems.push(SettingsError::Name { field, source });
                false
            }
        };
        let root_fits = fits("cgroupRoot", &self.cgroup_root);
        let reserved = [
            ("systemReservedCgroup", &self.system_reserved_cgroup),
            ("kubeReservedCgroup", &self.kube_reserved_cgroup),
        ];
        let reserved = reserved.map(|(field, cgroup)| {
            let path = cgroup.as_ref().map(|ReservedCgroup { path, scope: _ }| path)?;
            fits(field, path).then(|| (field, name::given(path, self.cgroup_driver)))
        });
        if let [Some((_, system)), Some((_, kube))] = &reserved
            && (is_within(system, kube) || is_within(kube, system))
        {
            problems.push(SettingsError::Overlap { system: system.clone(), kube: kube.clone() });
        }
        if root_fits {
            let kubepods = name::kubepods(&self.cgroup_root, self.cgroup_driver);
            problems.extend(
                reserved
                    .into_iter()
                    .flatten()
                    .filter(|(_, path)| is_within(path, &kubepods) || is_within(&kubepods, path))
                    .map(|(field, path)| SettingsError::HoldsPods {
                        field,
                        path,
                        kubepods: kubepods.clone(),
                    }),
            );
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Whether any cpu is reserved, on whatever node.
    fn reserves_cpu(&self) -> bool {
        let reserved = allocatable::reserved(&ResourceList::new(), self);
        let is_positive = reserved.get(ResourceName::CPU).is_some_and(|cpu| cpu.is_positive());
        is_positive || self.kube_reserved_policy == KubeReservedPolicy::Auto
    }
}

/// Whether a cgroup is the other one or below it.
fn is_within(path: &CgroupPath, above: &CgroupPath) -> bool {
    std::iter::successors(Some(path.clone()), CgroupPath::parent).any(|path| path == *above)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{CgroupDriver, ReservedScope, model::Quantity};

    #[rstest]
    #[case::default("/", None, CgroupDriver::Cgroupfs, &[])]
    #[case::beside("/", Some("/system.slice"), CgroupDriver::Systemd, &[])]
    #[case::the_root("/", Some("/"), CgroupDriver::Cgroupfs, &["systemReservedCgroup"])]
    #[case::kubepods("/", Some("/kubepods"), CgroupDriver::Systemd, &["systemReservedCgroup"])]
    #[case::a_pod("/", Some("/kubepods/burstable/podx"), CgroupDriver::Cgroupfs, &["systemReservedCgroup"])]
    #[case::above("/machine", Some("/machine.slice"), CgroupDriver::Systemd, &["systemReservedCgroup"])]
    #[case::another_name("/machine", Some("/machine.slice"), CgroupDriver::Cgroupfs, &[])]
    #[case::no_names("/a_b", Some("/c/d.slice"), CgroupDriver::Systemd, &["cgroupRoot", "systemReservedCgroup"])]
    fn impossible_combinations_are_reported(
        #[case] root: &str,
        #[case] reserved: Option<&str>,
        #[case] cgroup_driver: CgroupDriver,
        #[case] fields: &[&str],
    ) {
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        let settings = Settings {
            cgroup_root: path(root),
            cgroup_driver,
            system_reserved_cgroup: reserved
                .map(|text| ReservedCgroup { path: path(text), scope: ReservedScope::All }),
            ..Settings::default()
        };
        let reported: Vec<_> =
            settings.check().err().unwrap_or_default().iter().map(SettingsError::field).collect();
        assert_eq!(reported, fields);
    }

    #[rstest]
    #[case::beside("/system.slice", "/kube.slice", CgroupDriver::Systemd, true)]
    #[case::the_same("/system.slice", "/system.slice", CgroupDriver::Cgroupfs, false)]
    #[case::within("/system.slice", "/system.slice/kube", CgroupDriver::Cgroupfs, false)]
    #[case::around("/host/system", "/host", CgroupDriver::Cgroupfs, false)]
    #[case::a_like_name("/system", "/system2", CgroupDriver::Cgroupfs, true)]
    fn no_two_reservations_are_held_in_one_cgroup(
        #[case] system: &str,
        #[case] kube: &str,
        #[case] cgroup_driver: CgroupDriver,
        #[case] fits: bool,
        #[values(ReservedScope::All, ReservedScope::Compressible)] scope: ReservedScope,
    ) {
        let cgroup = |text: &str| ReservedCgroup { path: CgroupPath::parse(text).unwrap(), scope };
        let settings = Settings {
            cgroup_driver,
            system_reserved_cgroup: Some(cgroup(system)),
            kube_reserved_cgroup: Some(cgroup(kube)),
            ..Settings::default()
        };
        let reported = settings.check().err().unwrap_or_default();
        let fields: Vec<_> = reported.iter().map(SettingsError::field).collect();
        assert_eq!(fields, if fits { vec![] } else { vec!["kubeReservedCgroup"] });
        assert!(reported.iter().all(|error| error.to_string().contains(system)), "{reported:?}");
    }

    #[test]
    fn where_containers_get_cpus_of_their_own_some_are_kept_for_the_others() {
        let fixed = Settings { cpu_manager_policy: CpuManagerPolicy::Static, ..Settings::default() };
        assert_eq!(fixed.check(), Err(vec![SettingsError::NoCpuReserved]));
        let cpu = [(ResourceName::new(ResourceName::CPU), Quantity::from_milli(1))];
        for reserving in [
            Settings { reserved_system_cpus: "0".parse().unwrap(), ..fixed.clone() },
            Settings { kube_reserved: cpu.clone().into(), ..fixed.clone() },
            Settings { system_reserved: cpu.into(), ..fixed.clone() },
            Settings { kube_reserved_policy: KubeReservedPolicy::Auto, ..fixed },
        ] {
            assert_eq!(reserving.check(), Ok(()));
        }
    }
}
