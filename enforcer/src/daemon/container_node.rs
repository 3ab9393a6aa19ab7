//! A node that is a container itself, as kind makes them: beside its kubelet the daemon only observes.
//!
//! Its memory is the machine's, which it shares with whatever else runs there, and its processes and cgroups are a part of what
//! the kernel reports. So a threshold that is crossed says nothing about this node's pods, and a kill here may be for the
//! memory of others.

use std::{fs::File, io::Read as _, path::Path};

use crate::{
    cgroup,
    config::{Config, Mode, ValueSource},
    sense::PidNamespace,
    trust,
};

/// The most bytes that are read of process 1's environment: systemd's and kind's are far shorter.
const MOST_BYTES: u64 = 64 << 10;

/// The variable that a container manager sets for the init that it starts (systemd's Container Interface).
const VARIABLE: &[u8] = b"container=";

/// Where systemd notes which container manager started it, and what the entrypoint of kind's image leaves.
const MARKS: [(&str, &str); 3] = [
    ("/run/systemd/container", "systemd runs in a container there"),
    ("/kind/product_uuid", "it is a node of kind"),
    ("/kind/product_name", "it is a node of kind"),
];

/// Why this machine counts as a container with an init of its own; `None` if it does not. In the machine's own PID namespace
/// process 1 is the machine's, whatever container the daemon is in.
pub(super) fn of(proc: &Path, pid_namespace: Option<PidNamespace>) -> Option<String> {
    if pid_namespace?.is_initial() {
        return None;
    }
    manager(proc).or_else(|| mark(proc))
}

/// The container manager that the environment of process 1 names.
fn manager(proc: &Path) -> Option<String> {
    let mut environment = Vec::new();
    let file = File::open(proc.join("1/environ")).ok()?;
    file.take(MOST_BYTES).read_to_end(&mut environment).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(VARIABLE))?;
    let value = String::from_utf8_lossy(value).escape_debug().to_string();
    (!value.is_empty()).then(|| format!("process 1 was started in a container of {value}"))
}

fn mark(proc: &Path) -> Option<String> {
    let found = MARKS.into_iter().find(|(path, _)| {
        let root = cgroup::hosts_root(proc).ok();
        root.is_some_and(|root| matches!(trust::open_below(root, Path::new(path)), Ok(Ok(_))))
    });
    found.map(|(path, what)| format!("{what} ({path})"))
}

/// Has a configuration that would evict only observe, where a kubelet's node is such a container. Returns why, for a person, if
/// that changed anything.
pub(super) fn settle(config: &mut Config, container: Option<&String>, kubelets: bool) -> Option<String> {
    let why = container.filter(|_| kubelets && config.mode == Mode::Enforce)?;
    config.mode = Mode::Observe;
    config.value_sources.set("mode", ValueSource::Host("the node is a container"));
    Some(format!(
        "the node is a container itself: {why}. Its memory is that of the machine, so no pod here is evicted for it, and mode: \
         enforce is taken for mode: observe; run the daemon on the machine"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const INITIAL: u64 = 0xEFFF_FFFC;

    /// What is found of a process 1 with that environment.
    fn found(environment: &str, inode: u64) -> Option<String> {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("1")).unwrap();
        fs::write(temp.path().join("1/environ"), environment).unwrap();
        of(temp.path(), Some(PidNamespace::new(4, inode)))
    }

    #[test]
    fn a_node_is_a_container_if_its_inits_environment_says_so() {
        let docker = "PATH=/bin\0container=docker\0";
        let shown = found(docker, 7).unwrap();
        assert!(shown.contains("docker"), "{shown}");
        assert_eq!(found(docker, INITIAL), None, "process 1 is the machine's");
        for plain in ["", "PATH=/bin\0", "container=\0", "mycontainer=docker\0"] {
            assert_eq!(found(plain, 7), None, "{plain:?}");
        }
        let hostile = found("container=\u{1b}[31m\0", 7).unwrap();
        assert!(!hostile.contains('\u{1b}'), "{hostile}");
        assert_eq!(of(Path::new("/nowhere"), None), None);
    }

    #[test]
    fn only_enforcing_beside_a_kubelet_becomes_observing() {
        let why = String::from("kind");
        for (mode, container, kubelets, becomes) in [
            (Mode::Enforce, Some(&why), true, Mode::Observe),
            (Mode::Enforce, Some(&why), false, Mode::Enforce),
            (Mode::Enforce, None, true, Mode::Enforce),
            (Mode::DryRun, Some(&why), true, Mode::DryRun),
            (Mode::Observe, Some(&why), true, Mode::Observe),
        ] {
            let mut config = Config { mode, ..Config::default() };
            let said = settle(&mut config, container, kubelets);
            assert_eq!(config.mode, becomes, "{mode:?} {container:?} {kubelets}");
            assert_eq!(said.is_some(), mode != becomes, "{mode:?} {container:?} {kubelets}");
        }
    }
}
