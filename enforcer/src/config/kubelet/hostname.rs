//! What the running kubelet calls this host: by its flag, or where it is a part of another program, by that program's.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Flags, open};
use crate::{cgroup::KubeletProcess, config::effective::text_of};

/// The kubelet's flags in `MicroK8s`, unless `kubelite` is given another file.
const KUBELITE_ARGUMENTS: &str = "/var/snap/microk8s/current/args/kubelet";

/// Where K3s keeps its state, unless it is given another folder.
const K3S_DATA: &str = "/var/lib/rancher/k3s";

/// The certificate by which the kubelet in K3s is known to the API server, below that folder: K3s has it made anew with each
/// start.
const K3S_CERTIFICATE: &str = "agent/client-kubelet.crt";

/// What the user of a node's certificate begins with.
const NODE_USER: &[u8] = b"system:node:";

/// The tags of the two kinds of text that it may be written as (ASN.1).
const TEXT: [u8; 2] = [0x0c, 0x13];

/// What the running kubelet calls this host: its node has that name, unless a cloud provider gives it another.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KubeletHostname {
    /// This, by its flag `--hostname-override`, or by what the program says that it is a part of.
    Overridden(String),
    /// The host's own name, in lower case: it has no such flag.
    Own,
    /// Not known: no kubelet runs, or it does not show its flags.
    Unknown,
}

/// Reads the flags of that kubelet, or of the program that it is a part of.
#[must_use]
pub fn kubelet_hostname(process: &KubeletProcess) -> KubeletHostname {
    let KubeletProcess { program, arguments, environment, root, .. } = process;
    match (program.as_str(), arguments) {
        // Also that of RKE2 and of k0s, which give it its flags.
        ("kubelet", Some(arguments)) => of_flags(arguments),
        ("kubelite", Some(arguments)) => of_kubelite(arguments, root),
        ("k3s", arguments) => of_k3s(arguments.as_deref(), environment, root),
        _ => KubeletHostname::Unknown,
    }
}

/// As upstream `GetHostname` (`pkg/util/node`) takes the flag: empty is not set, and only spaces are an error.
fn of_flags(arguments: &[String]) -> KubeletHostname {
    let flags = match Flags::read(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            tracing::debug!("the kubelet's flags do not say what it calls its host: {error}");
            return KubeletHostname::Unknown;
        }
    };
    match flags.hostname_override.filter(|name| !name.is_empty()) {
        None => KubeletHostname::Own,
        Some(name) => named(&name),
    }
}

/// `MicroK8s` keeps the kubelet's flags in a file, one a line, without quotes and with variables.
fn of_kubelite(arguments: &[String], root: &OwnedFd) -> KubeletHostname {
    let path = value(arguments, &["--kubelet-args-file"]).unwrap_or(KUBELITE_ARGUMENTS);
    let text = match shared(root, Path::new(path)).map(|file| text_of(path, file)) {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => {
            tracing::debug!("the kubelet's flags do not say what it calls its host: {error}");
            return KubeletHostname::Unknown;
        }
        Err(error) => {
            tracing::debug!(%error, "cannot read the kubelet's flags in {path}");
            return KubeletHostname::Unknown;
        }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let flags: Vec<_> = lines.map(|line| line.replace(['"', '\''], "")).collect();
    match of_flags(&flags) {
        // A variable of the snap.
        KubeletHostname::Overridden(name) if name.contains('$') => KubeletHostname::Unknown,
        called => called,
    }
}

/// K3s replaces its arguments and its environment by a title; where it does not, its flag comes before its certificate, which
/// may be one of an earlier start.
fn of_k3s(arguments: Option<&[String]>, environment: &[String], root: &OwnedFd) -> KubeletHostname {
    let variable = |name: &str| {
        let value = environment.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.filter(|value| !value.is_empty())
    };
    let arguments = arguments.unwrap_or_default();
    // With it, the name ends in a number of the machine.
    let has_id = arguments.iter().any(|word| word == "--with-node-id" || word == "--with-node-id=true");
    if let Some(name) = value(arguments, &["--node-name"]).filter(|_| !has_id) {
        return named(name);
    }
    let data =
        value(arguments, &["--data-dir", "-d"]).or_else(|| variable("K3S_DATA_DIR")).unwrap_or(K3S_DATA);
    let path = Path::new(data).join(K3S_CERTIFICATE);
    let certified = open(root, &path)
        .and_then(|file| Ok(certified(&text_of(&path.display().to_string(), File::from(file))?)));
    match (certified, variable("K3S_NODE_NAME")) {
        (Ok(Some(name)), _) => named(&name),
        (_, Some(name)) if !has_id => named(name),
        (Ok(None), _) => KubeletHostname::Unknown,
        (Err(error), _) => {
            tracing::debug!("k3s does not say what it calls its host: {error}");
            KubeletHostname::Unknown
        }
    }
}

fn named(name: &str) -> KubeletHostname {
    match name.trim() {
        "" => KubeletHostname::Unknown,
        name => KubeletHostname::Overridden(name.to_lowercase()),
    }
}

/// The value of the last flag of one of those names.
fn value<'a>(arguments: &'a [String], names: &[&str]) -> Option<&'a str> {
    let at = |place: usize| arguments.get(place).map(String::as_str);
    let of = |(place, word): (usize, &'a String)| match word.split_once('=') {
        Some((name, value)) => names.contains(&name).then_some(value),
        None => at(place + 1).filter(|_| names.contains(&word.as_str())),
    };
    arguments.iter().enumerate().rev().find_map(of)
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

/// The node whose certificate is the first in this PEM text: its subject is a text with its length before it.
fn certified(pem: &str) -> Option<String> {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let bytes = BASE64_STANDARD.decode(body.split_ascii_whitespace().collect::<String>()).ok()?;
    let begin = bytes.windows(NODE_USER.len()).position(|window| window == NODE_USER)?;
    let [tag, length] = *bytes.get(begin.checked_sub(2)?..begin)? else { return None };
    // A longer text has a longer length.
    if !TEXT.contains(&tag) || length >= 0x80 {
        return None;
    }
    let name = bytes.get(begin + NODE_USER.len()..begin + usize::from(length))?;
    str::from_utf8(name).ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rstest::rstest;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn overridden(name: &str) -> KubeletHostname {
        KubeletHostname::Overridden(name.to_owned())
    }

    /// What such a process calls its host, below whose root are these files.
    fn called(
        program: &str,
        arguments: Option<&[&str]>,
        environment: &[&str],
        files: &[(&str, &str)],
    ) -> KubeletHostname {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let root = rustix::fs::open(folder.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        kubelet_hostname(&KubeletProcess {
            pid: 7,
            start_ticks: 1,
            program: program.to_owned(),
            arguments: arguments.map(words),
            environment: words(environment),
            root,
        })
    }

    /// A certificate of that user, as far as is read: the issuer's name before it, and more behind.
    fn certificate(user: &str) -> String {
        let mut bytes = b"\x30\x82\x01\x20\x0c\x0dk3s-client-ca\x30\x1e\x0c".to_vec();
        bytes.push(u8::try_from(user.len()).unwrap());
        bytes.extend_from_slice(user.as_bytes());
        bytes.extend_from_slice(b"\x30\x59\x30\x13");
        let text = BASE64_STANDARD.encode(bytes);
        let (first, second) = text.split_at(20);
        format!("-----BEGIN CERTIFICATE-----\n{first}\n{second}\n-----END CERTIFICATE-----\n")
    }

    #[rstest]
    #[case::none(&["--v=2"], KubeletHostname::Own)]
    #[case::empty(&["--hostname-override="], KubeletHostname::Own)]
    #[case::joined(&["--hostname-override=worker-7.example"], KubeletHostname::Overridden(String::from("worker-7.example")))]
    #[case::separate(&["--hostname-override", "worker-7", "--v=2"], KubeletHostname::Overridden(String::from("worker-7")))]
    #[case::trimmed_and_lowered(&["--hostname_override= Worker-7 "], KubeletHostname::Overridden(String::from("worker-7")))]
    #[case::the_last_counts(&["--hostname-override=a", "--hostname-override=b"], KubeletHostname::Overridden(String::from("b")))]
    #[case::blank(&["--hostname-override=  "], KubeletHostname::Unknown)]
    #[case::missing(&["--hostname-override"], KubeletHostname::Unknown)]
    fn a_kubelets_flag_says_what_it_calls_its_host(
        #[case] arguments: &[&str],
        #[case] called: KubeletHostname,
    ) {
        let arguments: Vec<_> = arguments.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(of_flags(&arguments), called);
    }

    const K3S: &str = "/var/lib/rancher/k3s/agent/client-kubelet.crt";

    #[test]
    fn k3s_says_the_nodes_name_by_its_flag_its_certificate_or_its_environment() {
        let of_start = certificate("system:node:certified");
        let files = [(K3S, of_start.as_str())];
        let elsewhere = [("/data/agent/client-kubelet.crt", of_start.as_str())];
        let no_node = certificate("system:admin");
        let call = |arguments, environment, files| called("k3s", arguments, environment, files);
        for (arguments, environment, files, expected) in [
            (Some(&["server", "--node-name", "Worker-7"][..]), &[][..], &files[..], overridden("worker-7")),
            (Some(&["agent", "--node-name=a", "--node-name=b"]), &["K3S_NODE_NAME=c"], &[], overridden("b")),
            // Its title, as `ps` shows it.
            (None, &[], &files, overridden("certified")),
            (None, &["K3S_NODE_NAME=c"], &files, overridden("certified")),
            (Some(&["server"]), &["A=b", "K3S_NODE_NAME=c"], &[], overridden("c")),
            (Some(&["server", "--node-name", "a", "--with-node-id"]), &[], &files, overridden("certified")),
            (
                Some(&["server", "--node-name", "a", "--with-node-id"]),
                &["K3S_NODE_NAME=c"],
                &[],
                KubeletHostname::Unknown,
            ),
            (Some(&["server", "--data-dir", "/data"]), &[], &elsewhere, overridden("certified")),
            (None, &["K3S_DATA_DIR=/data"], &elsewhere, overridden("certified")),
            // Its configuration's file may name the node.
            (Some(&["server"]), &[], &[], KubeletHostname::Unknown),
            (None, &[], &[(K3S, no_node.as_str())], KubeletHostname::Unknown),
            (None, &[], &[(K3S, "no certificate")], KubeletHostname::Unknown),
            (None, &["K3S_NODE_NAME="], &[], KubeletHostname::Unknown),
        ] {
            let shown = format!("{arguments:?} {environment:?} {files:?}");
            assert_eq!(call(arguments, environment, files), expected, "{shown}");
        }
    }

    const MICROK8S: &str = "/var/snap/microk8s/current/args/kubelet";

    #[test]
    fn microk8s_says_the_nodes_name_in_the_file_of_the_kubelets_flags() {
        let flags = "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config\n# --hostname-override=no\n\n  \
                     --hostname-override=\"Worker-7\"\n--v=2\n";
        let default = Some(&["--scheduler-args-file=/s"][..]);
        let of = |arguments, name: &str, text: &str| called("kubelite", arguments, &[], &[(name, text)]);
        assert_eq!(of(default, MICROK8S, flags), overridden("worker-7"));
        assert_eq!(of(default, MICROK8S, "--v=2\n"), KubeletHostname::Own);
        let elsewhere = Some(&["--kubelet-args-file=/args/kubelet", "--v=2"][..]);
        assert_eq!(of(elsewhere, "/args/kubelet", flags), overridden("worker-7"));
        // What is not known is not the host's own name.
        assert_eq!(of(elsewhere, MICROK8S, flags), KubeletHostname::Unknown);
        assert_eq!(of(default, MICROK8S, "--hostname-override=${NAME}\n"), KubeletHostname::Unknown);
        assert_eq!(of(None, MICROK8S, flags), KubeletHostname::Unknown, "a title shows no file");
    }

    #[test]
    fn a_kubelet_of_its_own_process_says_it_by_its_flags_alone() {
        let environment = ["K3S_NODE_NAME=c"];
        let of = |arguments| called("kubelet", arguments, &environment, &[]);
        assert_eq!(of(Some(&["--hostname-override=a"])), overridden("a"));
        assert_eq!(of(Some(&["--v=2"])), KubeletHostname::Own);
        assert_eq!(of(None), KubeletHostname::Unknown);
    }
}
