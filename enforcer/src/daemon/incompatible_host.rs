//! Refuses a configuration that this machine cannot carry out, before anything starts.

use std::path::Path;

use super::{host::Host, reach};
use crate::{
    cgroup::{self, CgroupDir},
    config::{Config, Mode, PreKillHook},
    model::CgroupPath,
    policy::{CgroupDriver, SettingsError, allocatable},
    sense::PidNamespace,
};

/// The reasons that this host does not support the configuration, all at once. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be followed here:\n{}", .problems.join("\n"))]
pub struct IncompatibleHost {
    problems: Vec<String>,
}

/// Checks the configuration against the host.
pub(super) fn check(config: &Config, host: &Host, kubelets: bool) -> Result<(), IncompatibleHost> {
    let settings = &config.settings;
    let mut problems: Vec<String> =
        settings.check().err().unwrap_or_default().iter().map(SettingsError::to_string).collect();
    if let Err(overreserved) = allocatable::validate(&host.node, settings) {
        problems.extend(overreserved.iter().map(ToString::to_string));
    }
    if let Some(present) = &host.cpus {
        let missing = settings.reserved_system_cpus.difference(present);
        if !missing.is_empty() && !kubelets {
            problems.push(format!(
                "reservedSystemCPUs: CPUs {missing} do not exist here: this machine has {present}"
            ));
        }
    }
    let writes = config.mode == Mode::Enforce && !kubelets;
    if writes
        && settings.cgroup_driver == CgroupDriver::Systemd
        && let Err(absent) = &host.systemd
    {
        problems.push(format!(
            "cgroupDriver: systemd needs systemd, which makes the pods' slices: {absent}; where there is none, write \
             cgroupDriver: cgroupfs"
        ));
    }
    // Where there is no hierarchy at all, the start says so.
    if writes
        && settings.cgroup_driver == CgroupDriver::Cgroupfs
        && let Ok(mount) = CgroupDir::mount(Path::new(cgroup::MOUNT))
    {
        problems.extend(missing_root(&mount, &settings.cgroup_root));
    }
    if config.mode == Mode::Enforce && !host.pid_namespace.is_some_and(PidNamespace::is_initial) {
        problems.push(String::from(
            "mode: enforce needs the machine's own PID namespace: elsewhere the kubelet and the container runtime may be \
             invisible among the processes of a cgroup, and would be killed with it; run it there (hostPID: true, \
             --pid=host), or write mode: dry-run",
        ));
    }
    problems.extend(reach::beyond_capacity(config, host));
    if let Some(PreKillHook { program, .. }) = &config.pre_kill_hook
        && let Err(error) = program.check()
    {
        problems.push(format!("preKillHook.path: {}", crate::chain(&error)));
    }
    if problems.is_empty() { Ok(()) } else { Err(IncompatibleHost { problems }) }
}

/// Without it no pod's cgroup can be made; systemd makes it with the slices below it.
fn missing_root(mount: &CgroupDir, root: &CgroupPath) -> Option<String> {
    mount.open(root).err().filter(cgroup::Error::is_gone).map(|_gone| {
        format!(
            "cgroupRoot: the cgroup {root} does not exist, and kubepods is made in it: make it before the daemon starts \
             (mkdir -p {}{root}), or write the one that you have",
            cgroup::MOUNT
        )
    })
}

/// Checks the thresholds against the present amounts: another time they may be within reach.
pub(super) fn check_reach(config: &Config, host: &Host) -> Result<(), IncompatibleHost> {
    let problems = reach::out_of_reach(config, host);
    if problems.is_empty() { Ok(()) } else { Err(IncompatibleHost { problems }) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{
        cgroup::Absent,
        config::{KubeletMemory, Machine, draft},
        model::{Node, Quantity, ResourceName},
        policy::{Settings, threshold::ThresholdValue},
    };

    fn host() -> Host {
        let node = crate::sample::node();
        let systemd = Err(Absent::Init);
        let pid_namespace = Some(PidNamespace::new(4, 0xEFFF_FFFC));
        Host {
            name: String::from("host"),
            machine_name: String::from("host"),
            boot_id: String::from("boot"),
            node,
            systemd,
            pid_namespace,
            cpus: "0-3".parse().ok(),
            container: None,
        }
    }

    #[test]
    fn who_cannot_see_all_processes_may_report_and_not_evict() {
        for pid_namespace in [Some(PidNamespace::new(4, 7)), None] {
            let host = Host { pid_namespace, ..host() };
            let fits = |mode| check(&Config { mode, ..Config::default() }, &host, true).is_ok();
            assert_eq!([Mode::Observe, Mode::DryRun, Mode::Enforce].map(fits), [true, true, false]);
        }
    }

    #[rstest]
    #[case(Mode::Enforce, false, CgroupDriver::Systemd, false)]
    #[case(Mode::Enforce, true, CgroupDriver::Systemd, true)]
    #[case(Mode::DryRun, false, CgroupDriver::Systemd, true)]
    #[case(Mode::Observe, false, CgroupDriver::Systemd, true)]
    #[case(Mode::Enforce, false, CgroupDriver::Cgroupfs, true)]
    fn slices_need_systemd(
        #[case] mode: Mode,
        #[case] kubelets: bool,
        #[case] cgroup_driver: CgroupDriver,
        #[case] fits: bool,
    ) {
        let settings = Settings { cgroup_driver, ..Settings::default() };
        let config = Config { mode, settings, ..Config::default() };
        assert_eq!(check(&config, &host(), kubelets).is_ok(), fits);
        let booted_by_systemd = Host { systemd: Ok(()), ..host() };
        assert!(check(&config, &booted_by_systemd, kubelets).is_ok());
    }

    #[test]
    fn a_root_that_does_not_exist_is_named_with_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("machine/pods")).unwrap();
        let mount = CgroupDir::unchecked(temp.path()).unwrap();
        let missing = |root: &str| missing_root(&mount, &CgroupPath::parse(root).unwrap());
        assert_eq!(["/", "/machine", "/machine/pods"].map(missing), [None, None, None]);
        for root in ["/none", "/machine/none", "/none/pods"] {
            let problem = missing(root).unwrap();
            assert!(
                problem.starts_with(&format!("cgroupRoot: the cgroup {root} does not exist")),
                "{problem}"
            );
            assert!(problem.contains(&format!("mkdir -p /sys/fs/cgroup{root}")), "{problem}");
        }
    }

    #[test]
    fn a_drafted_configuration_fits_the_machine_that_it_is_for() {
        for (memory_mib, has_kubelet) in
            [256, 2 << 10, 16 << 10, 1 << 20].into_iter().flat_map(|mib| [(mib, false), (mib, true)])
        {
            let memory_bytes = memory_mib << 20;
            let node = Node { max_pids: Some(4_096), memory_bytes, ..host().node };
            let machine = Machine {
                cpu_milli: node.cpu_milli,
                memory_bytes,
                swap_bytes: 0,
                max_pids: node.max_pids,
                has_systemd: true,
                has_kubelet,
            };
            let host = Host { node, systemd: Ok(()), ..host() };
            for mode in ["dry-run", "enforce"] {
                let text = draft(&machine).replace("mode: dry-run", &format!("mode: {mode}"));
                let mut config = Config::parse("c.yaml", &text).unwrap();
                assert_eq!(config.mode.as_str(), mode);
                if has_kubelet {
                    let kubelet = KubeletMemory {
                        hard: Some(ThresholdValue::Amount(100 << 20)),
                        origin: String::from("k.yaml:3"),
                    };
                    config.settle_beside_kubelet(&Ok(kubelet), memory_bytes);
                }
                check(&config, &host, has_kubelet).unwrap();
                assert_eq!(config.idle(Some(&[String::from("memory")])), None);
            }
        }
    }

    #[test]
    fn everything_is_reported_at_once() {
        let settings = Settings {
            cgroup_root: CgroupPath::parse("/a_b").unwrap(),
            cgroup_driver: CgroupDriver::Systemd,
            system_reserved: [(ResourceName::new("memory"), Quantity::from_units(1 << 40))].into(),
            ..Settings::default()
        };
        let config = Config { mode: Mode::Enforce, settings, ..Config::default() };
        let IncompatibleHost { problems } = check(&config, &host(), false).unwrap_err();
        let shown = problems.join("\n");
        assert_eq!(problems.len(), 3, "{shown}");
        assert!(
            ["cgroupRoot: ", "systemReserved ", "cgroupDriver: "].iter().all(|place| shown.contains(place)),
            "{shown}"
        );
    }
}
