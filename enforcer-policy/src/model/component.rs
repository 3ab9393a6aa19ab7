//! Processes that are scored besides pods, such as the kubelet, by unit or program name.

use std::fmt;

/// A program or unit that the node needs to run its pods; its processes are found by it.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum NodeComponent {
    /// A systemd unit that has processes of its own: a service or scope.
    Unit(String),
    /// The file name of a program.
    Executable(String),
}

/// Why a text is not the name of a component.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{name:?} is neither a unit, such as kubelet.service, nor the file name of a program, such as kubelet: {why}"
)]
pub struct InvalidComponent {
    name: String,
    why: &'static str,
}

/// systemd's kinds of units without processes of their own.
const WITHOUT_PROCESSES: [&str; 8] =
    ["slice", "target", "socket", "mount", "automount", "timer", "path", "device"];

impl NodeComponent {
    /// Reads a unit's name, which ends in `.service` or `.scope`, or a program's file name.
    pub fn parse(name: &str) -> Result<Self, InvalidComponent> {
        let wrong = |why| Err(InvalidComponent { name: name.to_owned(), why });
        if name.is_empty() || name.len() > 255 {
            return wrong("it must have 1 to 255 bytes");
        }
        if name == "." || name == ".." || name.contains(['/', '\0']) {
            return wrong("it must be a name, without its directory");
        }
        let kind = name.rsplit_once('.').map(|(_, kind)| kind);
        if kind.is_some_and(|kind| WITHOUT_PROCESSES.contains(&kind)) {
            return wrong("a unit of that kind has no processes; name its services");
        }
        if !matches!(kind, Some("service" | "scope")) {
            return Ok(Self::Executable(name.to_owned()));
        }
        // systemd's rule (`VALID_CHARS` in basic/unit-name.c, and `@` for instances).
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte)) {
            Ok(Self::Unit(name.to_owned()))
        } else {
            wrong("a unit's name may only contain letters, digits and :-_.\\@")
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Unit(name) | Self::Executable(name) => name,
        }
    }
}

impl fmt::Display for NodeComponent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::NodeComponent;

    #[test]
    fn units_and_programs_are_reported_apart() {
        let executable = |name: &str| NodeComponent::Executable(name.to_owned());
        let unit = |name: &str| NodeComponent::Unit(name.to_owned());
        assert_eq!(NodeComponent::parse("kubelet"), Ok(executable("kubelet")));
        assert_eq!(NodeComponent::parse("kube-proxy.bin"), Ok(executable("kube-proxy.bin")));
        assert_eq!(NodeComponent::parse("containerd.service"), Ok(unit("containerd.service")));
        assert_eq!(NodeComponent::parse("k3s@1.service"), Ok(unit("k3s@1.service")));
        assert_eq!(NodeComponent::parse("init.scope"), Ok(unit("init.scope")));
    }

    #[test]
    fn what_has_no_processes_is_refused() {
        for name in ["", "..", "/usr/bin/kubelet", "a\0b", "system.slice", "a b.service", &"x".repeat(256)] {
            assert!(NodeComponent::parse(name).is_err(), "{name:?}");
        }
    }
}
