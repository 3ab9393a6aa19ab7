//! Whether a configuration fits this machine, and what of the machine a first one depends on.

use anyhow::bail;

use super::{
    IncompatibleHost, container_node, evictors, host::Host, incompatible_host,
    kubelet_threshold::KubeletThreshold, ownership, specifying::Access,
};
use crate::{
    cgroup::MOUNT,
    config::{Config, Machine, Mode},
    sense::{Hierarchy, HostFacts},
};

/// Checks that this machine supports the configuration, that every eviction threshold could be reached if all pods were gone
/// now, and that some threshold may have a pod evicted, unless the mode is `observe`. Returns what is to be known all the
/// same.
pub fn fits(config: &Config) -> anyhow::Result<Vec<String>> {
    fits_host(config, &Host::read(config)?)
}

fn fits_host(config: &Config, host: &Host) -> anyhow::Result<Vec<String>> {
    let (mut config, kubelets) = (config.clone(), ownership::kubelet_owns_cgroups(config, &host.boot_id));
    if kubelets {
        let access = Access::new(&config, &host.machine_name);
        ownership::follow_kubelet(&mut config, &host.boot_id, &access.running_kubelet());
        let kubelet = KubeletThreshold::of_files(&access);
        evictors::settle(&mut config, &kubelet, host.node.memory_bytes);
    }
    let (config, _only_observes) = checked(config, host, kubelets)?;
    incompatible_host::check_reach(&config, host)?;
    let HostFacts { hierarchy, controllers, .. } = HostFacts::gather();
    let has_cgroup2 = hierarchy.is_none_or(|hierarchy| hierarchy == Hierarchy::Unified);
    if let Some(why) = config.idle(controllers.as_deref().filter(|_| has_cgroup2)) {
        bail!(why);
    }
    // The configuration is not what is wrong then.
    let lacks = (!has_cgroup2 && config.mode != Mode::Observe).then(|| {
        format!("nothing can be enforced on this host: there is no cgroup v2 at {MOUNT}; see enforcer doctor")
    });
    Ok(config.forbidden_kills().into_iter().chain(lacks).collect())
}

/// The configuration as a daemon here follows it, and why it only observes, for a person, if that is because the node is
/// a container. A start takes both from here, and cannot have the one without the other.
pub(super) fn checked(
    mut config: Config,
    host: &Host,
    kubelets: bool,
) -> Result<(Config, Option<String>), IncompatibleHost> {
    let only_observes = container_node::settle(&mut config, host.container.as_ref(), kubelets);
    incompatible_host::check(&config, host, kubelets)?;
    Ok((config, only_observes))
}

/// What of this machine a first configuration depends on.
pub fn machine() -> anyhow::Result<Machine> {
    let config = Config::default();
    let Host { node, boot_id, systemd, .. } = Host::read(&config)?;
    Ok(Machine {
        cpu_milli: node.cpu_milli,
        memory_bytes: node.memory_bytes,
        swap_bytes: node.swap_bytes,
        max_pids: node.max_pids,
        has_systemd: systemd.is_ok(),
        has_kubelet: ownership::kubelet_owns_cgroups(&config, &boot_id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::PidNamespace;

    /// One that would evict beside a kubelet, with a threshold that is within reach wherever this test runs.
    fn enforcing() -> Config {
        let text = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: enforce\nownership: kubelet\n\
                    evictionHard:\n  memory.available: 1Mi\n";
        Config::parse("c.yaml", text).unwrap()
    }

    /// A node in a PID namespace of its own that shows no sign of a container.
    fn unmarked() -> Host {
        Host { container: None, ..Host::of_kind() }
    }

    #[test]
    fn a_start_only_observes_where_the_node_is_a_container() {
        let (config, why) = checked(enforcing(), &Host::of_kind(), true).unwrap();
        assert_eq!(config.mode, Mode::Observe);
        assert_eq!(config.value_sources.of("mode"), "host: the node is a container");
        let why = why.unwrap();
        assert!(why.contains("the node is a container itself") && why.contains("mode: observe"), "{why}");

        let machine = Host { pid_namespace: Some(PidNamespace::new(4, 0xEFFF_FFFC)), ..unmarked() };
        let (config, why) = checked(enforcing(), &machine, true).unwrap();
        assert_eq!((config.mode, why), (Mode::Enforce, None));
        checked(enforcing(), &unmarked(), true).unwrap_err();
    }

    #[test]
    fn a_check_takes_enforcing_for_observing_where_the_node_is_a_container() {
        fits_host(&enforcing(), &Host::of_kind()).unwrap();
        let refused = fits_host(&enforcing(), &unmarked()).unwrap_err().to_string();
        assert!(refused.contains("mode: enforce needs the machine's own PID namespace"), "{refused}");
    }
}
