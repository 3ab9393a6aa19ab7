//! What the running kubelet shows by its flags, or by the program that it is a part of.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{
    Flags,
    hostname::{self, KubeletHostname, value},
};
use crate::{cgroup::KubeletProcess, config::effective::text_of};

/// The kubelet's root directory without its flag `--root-dir` (`cmd/kubelet/app/options`).
pub const KUBELET_ROOT_DIR: &str = "/var/lib/kubelet";

/// The kubelet's flags in `MicroK8s`, unless `kubelite` is given another file.
const KUBELITE_ARGUMENTS: &str = "/var/snap/microk8s/current/args/kubelet";

/// What the running kubelet shows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeletShown {
    /// What it calls this host.
    pub hostname: KubeletHostname,
    /// Its root directory; `None` if that is not known.
    pub root_dir: Option<PathBuf>,
}

impl KubeletShown {
    /// Nothing: no kubelet runs, or it does not show its flags.
    pub const NOTHING: Self = Self { hostname: KubeletHostname::Unknown, root_dir: None };

    /// The name may have been read elsewhere: a flag of the root directory that cannot be used hides no name.
    fn of_flags(flags: &Flags) -> Self {
        let hostname = hostname::of_flag(flags.hostname_override.as_deref());
        Self { hostname, root_dir: root_dir(flags.root_dir.as_deref()) }
    }
}

/// Reads the flags of that kubelet, or of the program that it is a part of.
#[must_use]
pub fn kubelet_shown(process: &KubeletProcess) -> KubeletShown {
    let KubeletProcess { program, arguments, environment, root, .. } = process;
    match (program.as_str(), arguments) {
        // Also that of RKE2 and of k0s, which give it its flags.
        ("kubelet", Some(arguments)) => of_arguments(arguments),
        ("kubelite", Some(arguments)) => of_kubelite(arguments, environment, root),
        // It gives its kubelet no root directory; what an administrator passes on is hidden by its title.
        ("k3s", arguments) => KubeletShown {
            hostname: hostname::of_k3s(arguments.as_deref(), environment, root),
            root_dir: root_dir(None),
        },
        _ => KubeletShown::NOTHING,
    }
}

fn of_arguments(arguments: &[String]) -> KubeletShown {
    match Flags::read(arguments) {
        Ok(flags) => KubeletShown::of_flags(&flags),
        Err(error) => {
            tracing::debug!(
                "the kubelet's flags do not say its root directory and what it calls its host: {error}"
            );
            KubeletShown::NOTHING
        }
    }
}

/// `MicroK8s` keeps the kubelet's flags in a file, one a line, without quotes and with variables.
fn of_kubelite(arguments: &[String], environment: &[String], root: &OwnedFd) -> KubeletShown {
    let path = value(arguments, &["--kubelet-args-file"]).unwrap_or(KUBELITE_ARGUMENTS);
    let text = match shared(root, Path::new(path)).map(|file| text_of(path, file)) {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => {
            tracing::debug!("the kubelet's flags cannot be read: {error}");
            return KubeletShown::NOTHING;
        }
        Err(error) => {
            tracing::debug!(%error, "cannot read the kubelet's flags in {path}");
            return KubeletShown::NOTHING;
        }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let flags: Vec<_> = lines.map(|line| replaced(&line.replace(['"', '\''], ""), environment)).collect();
    let shown = of_arguments(&flags);
    match &shown.hostname {
        // A variable that is not known.
        KubeletHostname::Overridden(name) if name.contains('$') => {
            KubeletShown { hostname: KubeletHostname::Unknown, ..shown }
        }
        _ => shown,
    }
}

/// A line with the values of the variables `${NAME}` that are known.
fn replaced(line: &str, environment: &[String]) -> String {
    let variables = environment.iter().filter_map(|word| word.split_once('='));
    variables.fold(line.to_owned(), |line, (name, value)| line.replace(&format!("${{{name}}}"), value))
}

/// The root directory by its flag; `None` if that is no path from the root, or has a variable.
fn root_dir(flag: Option<&str>) -> Option<PathBuf> {
    let path = Path::new(flag.filter(|path| !path.is_empty()).unwrap_or(KUBELET_ROOT_DIR));
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    (path.is_absolute() && is_plain && !path.to_string_lossy().contains('$')).then(|| path.to_owned())
}

/// A regular file below `root`, whoever may write to it: in `MicroK8s` its group may, which has root by the kubelet's flags.
fn shared(root: impl AsFd, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(rustix::fs::openat2(root, path, flags, Mode::empty(), within)?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[cfg(test)]
mod tests;
