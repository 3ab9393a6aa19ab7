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
use crate::{cgroup::KubeletProcess, config::effective::text_of, specs::KubeletFolders};

/// The kubelet's flags in `MicroK8s`, unless `kubelite` is given another file.
const KUBELITE_ARGUMENTS: &str = "/var/snap/microk8s/current/args/kubelet";

/// What the running kubelet shows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeletShown {
    /// What it calls this host.
    pub hostname: KubeletHostname,
    /// Its folders; `None` if they are not known.
    pub folders: Option<KubeletFolders>,
}

impl KubeletShown {
    /// Nothing: no kubelet runs, or it does not show its flags.
    pub const NOTHING: Self = Self { hostname: KubeletHostname::Unknown, folders: None };
}

/// Reads the flags of that kubelet, or of the program that it is a part of.
#[must_use]
pub fn kubelet_shown(process: &KubeletProcess) -> KubeletShown {
    let KubeletProcess { program, arguments, environment, root, .. } = process;
    match (program.as_str(), arguments) {
        // Also that of RKE2 and of k0s, which give it its flags.
        ("kubelet", Some(arguments)) => of_arguments(arguments),
        ("kubelite", Some(arguments)) => of_kubelite(arguments, environment, root),
        ("k3s", arguments) => KubeletShown {
            hostname: hostname::of_k3s(arguments.as_deref(), environment, root),
            folders: arguments.as_deref().and_then(of_k3s),
        },
        _ => KubeletShown::NOTHING,
    }
}

fn of_arguments(arguments: &[String]) -> KubeletShown {
    match Flags::read(arguments) {
        Ok(Flags { hostname_override, root_dir, cert_dir, .. }) => KubeletShown {
            hostname: hostname::of_flag(hostname_override.as_deref()),
            // Folders that cannot be used hide no name.
            folders: folders(root_dir.as_deref(), cert_dir.as_deref()),
        },
        Err(error) => {
            tracing::debug!("the kubelet's flags do not say its folders and what it calls its host: {error}");
            KubeletShown::NOTHING
        }
    }
}

fn of_kubelite(arguments: &[String], environment: &[String], root: &OwnedFd) -> KubeletShown {
    let Some(flags) = kubelite_flags(arguments, environment, root) else { return KubeletShown::NOTHING };
    let shown = of_arguments(&flags);
    match &shown.hostname {
        // A variable that is not known.
        KubeletHostname::Overridden(name) if name.contains('$') => {
            KubeletShown { hostname: KubeletHostname::Unknown, ..shown }
        }
        _ => shown,
    }
}

/// `MicroK8s` keeps the kubelet's flags in a file, one a line, without quotes and with variables. `None` if they cannot be
/// read.
pub(super) fn kubelite_flags(
    arguments: &[String],
    environment: &[String],
    root: &OwnedFd,
) -> Option<Vec<String>> {
    let path = value(arguments, &["--kubelet-args-file"]).unwrap_or(KUBELITE_ARGUMENTS);
    let text = match shared(root, Path::new(path)).map(|file| text_of(path, file)) {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => {
            tracing::debug!("the kubelet's flags cannot be read: {error}");
            return None;
        }
        Err(error) => {
            tracing::debug!(%error, "cannot read the kubelet's flags in {path}");
            return None;
        }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Some(lines.map(|line| replaced(&line.replace(['"', '\''], ""), environment)).collect())
}

/// A line with the values of the variables `${NAME}` that are known.
fn replaced(line: &str, environment: &[String]) -> String {
    let variables = environment.iter().filter_map(|word| word.split_once('='));
    variables.fold(line.to_owned(), |line, (name, value)| line.replace(&format!("${{{name}}}"), value))
}

/// The folders of the kubelet in k3s.
fn of_k3s(arguments: &[String]) -> Option<KubeletFolders> {
    folders(passed(arguments, "root-dir"), passed(arguments, "cert-dir"))
}

/// The value of that flag of the kubelet in k3s, which passes on what an administrator gives it as `--kubelet-arg`.
pub(super) fn passed<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments.iter().enumerate().rev().find_map(|(place, word)| {
        let given = match word.strip_prefix("--kubelet-arg")? {
            "" => arguments.get(place + 1)?.as_str(),
            joined => joined.strip_prefix('=')?,
        };
        given.trim_start_matches('-').strip_prefix(name)?.strip_prefix('=')
    })
}

/// The folders by these flags; `None` if one is no path from the root, or has a variable.
fn folders(root: Option<&str>, certificates: Option<&str>) -> Option<KubeletFolders> {
    let usual = KubeletFolders::default();
    let certificates = folder(certificates, usual.certificates)?;
    Some(KubeletFolders { root: folder(root, usual.root)?, certificates })
}

fn folder(flag: Option<&str>, usual: PathBuf) -> Option<PathBuf> {
    let path = flag.filter(|path| !path.is_empty()).map_or(usual, PathBuf::from);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    (path.is_absolute() && is_plain && !path.to_string_lossy().contains('$')).then_some(path)
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
