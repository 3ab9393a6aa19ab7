//! Whether a configuration fits this machine, and what of the machine a first one depends on.

use anyhow::bail;

use super::{
    container_node, evictors, host::Host, incompatible_host, kubelet_threshold::KubeletThreshold, ownership,
    specifying::Access,
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
    let host = Host::read(config)?;
    let (mut config, kubelets) = (config.clone(), ownership::kubelet_owns_cgroups(config, &host.boot_id));
    if kubelets {
        let access = Access::new(&config, &host.machine_name);
        ownership::follow_kubelet(&mut config, &host.boot_id, &access.running_kubelet());
        let kubelet = KubeletThreshold::of_files(&access);
        evictors::settle(&mut config, &kubelet, host.node.memory_bytes);
    }
    container_node::settle(&mut config, host.container.as_ref(), kubelets);
    incompatible_host::check(&config, &host, kubelets)?;
    incompatible_host::check_reach(&config, &host)?;
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
