//! Where the running kubelet has its pods' cgroups, and where its container runtime listens: by its flags and files.

use std::{
    os::fd::AsFd,
    path::{Component, Path, PathBuf},
};

use super::{Flags, KubeletUnknown, hostname::value, layers, shown};
use crate::{cgroup::KubeletProcess, model::CgroupPath};

/// The longest path of a cgroup that is taken from a kubelet, in bytes.
const MOST_CGROUP_BYTES: usize = 4_095;

/// The longest path of a socket, in bytes (unix(7): `sun_path` has 108 with the zero at its end).
const MOST_SOCKET_BYTES: usize = 107;

/// How much of a wrong value is shown, in characters.
const MOST_SHOWN: usize = 100;

/// Where the flag is written that comes before the files.
const FLAG: &str = "its flag --cgroup-root";

/// What the running kubelet shows of where its pods' cgroups are, and its container runtime.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KubeletPlaces {
    /// The parent cgroup of its kubepods; `None` if it is not shown.
    pub cgroup_root: Option<KubeletCgroupRoot>,
    /// The socket of its container runtime; `None` if it names none, or none of this host.
    pub runtime: Option<PathBuf>,
}

/// The parent cgroup of a kubelet's kubepods.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KubeletCgroupRoot {
    /// Its path, as the kubelet has it.
    pub path: CgroupPath,
    /// Where that is from, in words.
    pub origin: String,
}

/// Reads the flags and the files of that kubelet, or of the program that it is a part of. What such a program does not
/// show is not known.
pub fn kubelet_places(process: &KubeletProcess) -> Result<KubeletPlaces, KubeletUnknown> {
    let KubeletProcess { program, arguments, environment, root, .. } = process;
    match (program.as_str(), arguments) {
        ("kubelet", Some(arguments)) => of_flags(&Flags::read(arguments)?, root),
        ("kubelite", Some(arguments)) => match shown::kubelite_flags(arguments, environment, root) {
            Some(flags) => of_flags(&Flags::read(&flags)?, root),
            None => Ok(KubeletPlaces::default()),
        },
        ("k3s", Some(arguments)) => of_k3s(arguments),
        _ => Ok(KubeletPlaces::default()),
    }
}

/// Those of a kubelet with these flags, whose files are below `root`.
fn of_flags(flags: &Flags, root: impl AsFd) -> Result<KubeletPlaces, KubeletUnknown> {
    let layers = match layers(flags, root) {
        Ok(layers) => layers,
        // The flag comes before the files, whatever they say.
        Err(_) if flags.cgroup_root.is_some() => Vec::new(),
        Err(unknown) => return Err(unknown),
    };
    let in_file = layers.iter().rev().find_map(|layer| layer.cgroup_root.as_ref());
    let cgroup_root = match (&flags.cgroup_root, in_file) {
        (Some(text), _) => cgroup_root(text, FLAG)?,
        (None, Some((text, origin))) => cgroup_root(text, &origin.to_string())?,
        (None, None) => cgroup_root("/", "its built-in default")?,
    };
    let in_file = layers.iter().rev().find_map(|layer| layer.runtime_endpoint.as_deref());
    let runtime = flags.runtime_endpoint.as_deref().or(in_file).and_then(socket);
    Ok(KubeletPlaces { cgroup_root: Some(cgroup_root), runtime })
}

/// k3s has a flag of its own for the runtime, and passes others on. What its files say is not known.
fn of_k3s(arguments: &[String]) -> Result<KubeletPlaces, KubeletUnknown> {
    let root = shown::passed(arguments, "cgroup-root").map(|text| cgroup_root(text, FLAG)).transpose()?;
    let endpoint = shown::passed(arguments, "container-runtime-endpoint")
        .or_else(|| value(arguments, &["--container-runtime-endpoint"]));
    Ok(KubeletPlaces { cgroup_root: root, runtime: endpoint.and_then(socket) })
}

/// The root in a flag or field. Empty is the root of the hierarchy, as for the kubelet.
fn cgroup_root(text: &str, origin: &str) -> Result<KubeletCgroupRoot, KubeletUnknown> {
    let is_odd = |char: char| char.is_control() || char == '$';
    let is_plain = text.len() <= MOST_CGROUP_BYTES && !text.chars().any(is_odd);
    match CgroupPath::parse(text) {
        Ok(path) if is_plain => Ok(KubeletCgroupRoot { path, origin: origin.to_owned() }),
        Ok(_) | Err(_) => Err(KubeletUnknown::CgroupRoot {
            origin: origin.to_owned(),
            value: text.chars().take(MOST_SHOWN).collect(),
        }),
    }
}

/// The path of a unix socket of this host; `None` of any other endpoint, and of one whose path must be decoded first.
fn socket(endpoint: &str) -> Option<PathBuf> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    let is_odd = |char: char| char.is_control() || matches!(char, '%' | '?' | '#' | '$');
    let has_text = path.len() <= MOST_SOCKET_BYTES && !path.chars().any(is_odd);
    let path = Path::new(path);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    (has_text && is_plain && path.is_absolute()).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use rstest::rstest;
    use rustix::fs::{Mode, OFlags};

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    const FILE: &str = "/var/lib/kubelet/config.yaml";

    /// What such a process shows, below whose root are these files.
    fn shown(
        program: &str,
        arguments: Option<&[&str]>,
        files: &[(&str, &str)],
    ) -> Result<KubeletPlaces, String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
        kubelet_places(&KubeletProcess {
            pid: 7,
            start_ticks: 1,
            program: program.to_owned(),
            arguments: arguments.map(words),
            environment: words(&["SNAP_COMMON=/var/snap/microk8s/common"]),
            root: rustix::fs::open(folder.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap(),
        })
        .map_err(|unknown| unknown.to_string())
    }

    /// The cgroup root that is shown, and where it is from.
    fn root(places: Result<KubeletPlaces, String>) -> Result<Option<(String, String)>, String> {
        let of = |KubeletCgroupRoot { path, origin }: KubeletCgroupRoot| (path.to_string(), origin);
        places.map(|places| places.cgroup_root.map(of))
    }

    #[rstest]
    #[case::unset("", &[], "/", "its built-in default")]
    #[case::of_file("cgroupRoot: /kubelet\n", &[], "/kubelet", "/var/lib/kubelet/config.yaml:3")]
    #[case::empty("cgroupRoot: \"\"\n", &[], "/", "/var/lib/kubelet/config.yaml:3")]
    #[case::without_a_slash("cgroupRoot: a/b\n", &[], "/a/b", "/var/lib/kubelet/config.yaml:3")]
    #[case::of_flag("cgroupRoot: /kubelet\n", &["--cgroup-root=/flag"], "/flag", "its flag --cgroup-root")]
    #[case::separate("", &["--cgroup_root", "/flag"], "/flag", "its flag --cgroup-root")]
    #[case::the_last_counts("", &["--cgroup-root=/a", "--cgroup-root=/b"], "/b", "its flag --cgroup-root")]
    fn a_kubelets_flag_or_file_says_its_cgroup_root(
        #[case] text: &str,
        #[case] arguments: &[&str],
        #[case] path: &str,
        #[case] origin: &str,
    ) {
        let arguments = [&["--config", FILE, "--v=2"], arguments].concat();
        let places = shown("kubelet", Some(&arguments), &[(FILE, &*format!("{HEAD}{text}"))]);
        assert_eq!(root(places), Ok(Some((path.to_owned(), origin.to_owned()))));
    }

    #[test]
    fn additions_come_after_the_file() {
        let with = |text: &str| format!("{HEAD}{text}");
        let (base, first) = (with("cgroupRoot: /a\n"), with("cgroupRoot: /b\n"));
        let second = with("containerRuntimeEndpoint: unix:///run/b.sock\n");
        let files =
            [(FILE, &*base), ("/etc/kubelet.d/10-a.conf", &*first), ("/etc/kubelet.d/20-b.conf", &*second)];
        let arguments = ["--config=/var/lib/kubelet/config.yaml", "--config-dir=/etc/kubelet.d"];
        let places = shown("kubelet", Some(&arguments), &files).unwrap();
        assert_eq!(places.runtime, Some(PathBuf::from("/run/b.sock")));
        let expected = (String::from("/b"), String::from("/etc/kubelet.d/10-a.conf:3"));
        assert_eq!(root(Ok(places)), Ok(Some(expected)));
    }

    #[test]
    fn a_cgroup_root_that_cannot_be_used_is_not_taken_for_a_default() {
        let long = format!("--cgroup-root=/{}", "a/".repeat(3_000));
        for (arguments, text, why) in [
            (&["--cgroup-root=/a/../b"][..], "", "its flag --cgroup-root: \"/a/../b\" is not the path of"),
            (&["--cgroup-root=/${ROOT}"], "", "its flag --cgroup-root: "),
            (&["--cgroup-root=/a\u{1b}b"], "", "its flag --cgroup-root: \"/a\\u{1b}b\" is not"),
            (&[&*long], "", "its flag --cgroup-root: "),
            (&["--cgroup-root"], "", "the kubelet's flag --cgroup-root cannot be read: "),
            (&["--config=/c"], "cgroupRoot: /a/./b\n", "/c:3: \"/a/./b\" is not the path of a cgroup"),
            (&["--config=/c"], "cgroupRoot: [a]\n", "/c:3: cgroupRoot: expected a string or number"),
            (&["--config=/none"], "", "cannot read the kubelet's /none: "),
        ] {
            let refused =
                shown("kubelet", Some(arguments), &[("/c", &*format!("{HEAD}{text}"))]).unwrap_err();
            assert!(refused.starts_with(why) && refused.len() < 300, "{refused}");
        }
        // A flag needs no file.
        let places = shown("kubelet", Some(&["--config=/none", "--cgroup-root=/a"]), &[]);
        assert_eq!(root(places), Ok(Some((String::from("/a"), String::from("its flag --cgroup-root")))));
    }

    #[rstest]
    #[case::url("unix:///run/crio/crio.sock", Some("/run/crio/crio.sock"))]
    #[case::path("/run/k3s/cri-dockerd/cri-dockerd.sock", Some("/run/k3s/cri-dockerd/cri-dockerd.sock"))]
    #[case::none("", None)]
    #[case::relative("unix://run/crio.sock", None)]
    #[case::opaque("unix:/run/crio.sock", None)]
    #[case::network("tcp://10.0.0.1:1234", None)]
    #[case::windows("npipe:////./pipe/containerd", None)]
    #[case::above("/run/../etc/x.sock", None)]
    #[case::escaped("unix:///run/a%2fb.sock", None)]
    #[case::query("unix:///run/a.sock?x=y", None)]
    #[case::variable("${SNAP_DATA}/run/containerd.sock", None)]
    #[case::variable_within("/var/${NAME}/containerd.sock", None)]
    #[case::control("/run/a\u{7}.sock", None)]
    fn only_a_unix_socket_of_this_host_is_taken_from_a_kubelet(
        #[case] endpoint: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(socket(endpoint), expected.map(PathBuf::from));
    }

    #[test]
    fn a_socket_whose_path_no_address_holds_is_none() {
        let of = |count: usize| socket(&format!("/run/{}", "a".repeat(count))).is_some();
        assert_eq!([of(102), of(103)], [true, false]);
    }

    #[test]
    fn a_kubelets_flag_or_file_says_its_runtimes_socket() {
        let text = format!("{HEAD}containerRuntimeEndpoint: \"unix:///run/file.sock\"\n");
        let flag = "--container-runtime-endpoint=unix:///run/flag.sock";
        for (arguments, expected) in [
            (&["--config=/c"][..], Some("/run/file.sock")),
            (&["--config=/c", flag], Some("/run/flag.sock")),
            (&["--config=/c", "--container-runtime-endpoint=tcp://[::1]:1"], None),
            (&["--v=2"], None),
        ] {
            let places = shown("kubelet", Some(arguments), &[("/c", &*text)]).unwrap();
            assert_eq!(places.runtime, expected.map(PathBuf::from), "{arguments:?}");
        }
    }

    #[test]
    fn programs_that_a_kubelet_is_a_part_of_show_its_places_by_its_flags() {
        let flags = "--cgroup-root=/kubelet\n\
                     --container-runtime-endpoint=\"${SNAP_COMMON}/run/containerd.sock\"\n";
        let microk8s = ("/var/snap/microk8s/current/args/kubelet", flags);
        let places = shown("kubelite", Some(&[]), &[microk8s]).unwrap();
        let socket = PathBuf::from("/var/snap/microk8s/common/run/containerd.sock");
        assert_eq!(places.runtime, Some(socket));
        let expected = (String::from("/kubelet"), String::from("its flag --cgroup-root"));
        assert_eq!(root(Ok(places)), Ok(Some(expected.clone())));
        let arguments = [
            "agent",
            "--kubelet-arg=cgroup-root=/kubelet",
            "--container-runtime-endpoint",
            "/run/crio/crio.sock",
        ];
        let places = shown("k3s", Some(&arguments), &[]).unwrap();
        assert_eq!(places.runtime, Some(PathBuf::from("/run/crio/crio.sock")));
        assert_eq!(root(Ok(places)), Ok(Some(expected)));
        // Its files may say another one.
        assert_eq!(shown("k3s", Some(&["server"]), &[]), Ok(KubeletPlaces::default()));
        // The file of its flags is not there.
        assert_eq!(shown("kubelite", Some(&[]), &[]), Ok(KubeletPlaces::default()));
        for program in ["k3s", "kubelet", "kubelite"] {
            assert_eq!(shown(program, None, &[]), Ok(KubeletPlaces::default()), "{program} shows a title");
        }
    }
}
