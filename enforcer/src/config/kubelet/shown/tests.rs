//! What kubelets and the programs that they are a part of show.

use std::{fs, os::unix::fs::PermissionsExt as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rstest::rstest;

use super::*;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn overridden(name: &str) -> KubeletHostname {
    KubeletHostname::Overridden(name.to_owned())
}

/// What such a process shows, below whose root are these files.
fn shown(
    program: &str,
    arguments: Option<&[&str]>,
    environment: &[&str],
    files: &[(&str, &str)],
) -> KubeletShown {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    let root = rustix::fs::open(folder.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    kubelet_shown(&KubeletProcess {
        pid: 7,
        start_ticks: 1,
        program: program.to_owned(),
        arguments: arguments.map(words),
        environment: words(environment),
        root,
    })
}

/// What it calls its host.
fn called(
    program: &str,
    arguments: Option<&[&str]>,
    environment: &[&str],
    files: &[(&str, &str)],
) -> KubeletHostname {
    shown(program, arguments, environment, files).hostname
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
fn a_kubelets_flag_says_what_it_calls_its_host(#[case] arguments: &[&str], #[case] called: KubeletHostname) {
    assert_eq!(of_arguments(&words(arguments)).hostname, called);
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

#[rstest]
#[case::none(&["--v=2"], Some(("/var/lib/kubelet", "/var/lib/kubelet/pki")))]
#[case::empty(&["--root-dir=", "--cert-dir="], Some(("/var/lib/kubelet", "/var/lib/kubelet/pki")))]
#[case::k0s(
    &["--root-dir=/var/lib/k0s/kubelet", "--cert-dir=/var/lib/k0s/kubelet/pki"],
    Some(("/var/lib/k0s/kubelet", "/var/lib/k0s/kubelet/pki"))
)]
#[case::certificates_do_not_follow(&["--root-dir", "/k"], Some(("/k", "/var/lib/kubelet/pki")))]
#[case::the_last_counts(&["--root-dir=/a", "--root-dir=/b"], Some(("/b", "/var/lib/kubelet/pki")))]
#[case::not_absolute(&["--root-dir=kubelet"], None)]
#[case::not_plain(&["--cert-dir=/a/../b"], None)]
#[case::no_variables(&["--root-dir=${SNAP_COMMON}/k"], None)]
#[case::missing(&["--root-dir"], None)]
fn a_kubelets_flags_say_its_folders(#[case] arguments: &[&str], #[case] expected: Option<(&str, &str)>) {
    let shown = shown("kubelet", Some(arguments), &["SNAP_COMMON=/c"], &[]);
    assert_eq!(shown.folders, expected.map(folders));
}

fn folders((root, certificates): (&str, &str)) -> KubeletFolders {
    KubeletFolders { root: root.into(), certificates: certificates.into() }
}

#[test]
fn folders_that_cannot_be_used_hide_no_name() {
    let arguments = ["--root-dir=kubelet", "--hostname-override=a"];
    let expected = KubeletShown { hostname: overridden("a"), folders: None };
    assert_eq!(shown("kubelet", Some(&arguments), &[], &[]), expected);
}

#[test]
fn microk8s_says_the_folders_with_variables_of_its_snap() {
    let files =
        [(MICROK8S, "--root-dir=${SNAP_COMMON}/var/lib/kubelet\n--cert-dir=${SNAP_DATA}/certs\n--v=2\n")];
    let of = |environment| shown("kubelite", Some(&[]), environment, &files).folders;
    let variables = ["A=b", "SNAP_COMMON=/var/snap/microk8s/common", "SNAP_DATA=/var/snap/microk8s/7"];
    let expected = ("/var/snap/microk8s/common/var/lib/kubelet", "/var/snap/microk8s/7/certs");
    assert_eq!(of(&variables), Some(folders(expected)));
    assert_eq!(of(&variables[..2]), None, "a value is not known");
}

#[test]
fn k3s_passes_its_kubelets_folders_on_where_it_shows_its_arguments() {
    let of = |arguments| shown("k3s", arguments, &[], &[]).folders;
    assert_eq!(of(None), None, "it shows a title");
    assert_eq!(of(Some(&["agent", "--v=2"])), Some(KubeletFolders::default()));
    for arguments in [
        &["agent", "--kubelet-arg=root-dir=/k", "--kubelet-arg", "cert-dir=/c"][..],
        &["agent", "--kubelet-arg=--root-dir=/a", "--kubelet-arg=--cert-dir=/c", "--kubelet-arg=root-dir=/k"],
    ] {
        assert_eq!(of(Some(arguments)), Some(folders(("/k", "/c"))), "{arguments:?}");
    }
}

#[test]
fn a_kubelet_that_shows_a_title_shows_nothing() {
    assert_eq!(shown("kubelet", None, &[], &[]), KubeletShown::NOTHING);
}
