//! What this host's own kubelet shows of its settings: its hard threshold of memory, by its flags and its configuration
//! files, where its pods and its runtime are, what it calls the host, and its folders.

mod hostname;
mod places;
mod shown;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::io::Errno;

pub use self::{
    hostname::KubeletHostname,
    places::{KubeletCgroupRoot, KubeletPlaces, kubelet_places},
    shown::{KubeletShown, kubelet_shown},
};
use super::{Error, KUBELETS_API_VERSION, KUBELETS_KIND, Origin, effective::text_of, fields::Fields};
use crate::{
    cgroup::{self, KubeletProcess},
    policy::{
        EvictionSettings,
        threshold::{self, Map, Signal, ThresholdError, ThresholdValue},
    },
    trust::{self, Untrusted},
};

/// The most files in the folder of additions.
const MOST_FILES: usize = 64;

/// How the names of files end that the kubelet reads in its folder of additions (`cmd/kubelet/app/server.go`).
const ADDITION: &str = "conf";

/// The kubelet's own hard threshold of `memory.available`.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletMemory {
    /// Below this it evicts; `None` if it has no such threshold.
    pub hard: Option<ThresholdValue>,
    /// Where that is from, in words.
    pub origin: String,
}

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
pub enum KubeletUnknown {
    /// Processes cannot be looked at.
    #[error("cannot look for the kubelet among the processes: {0}")]
    Processes(#[from] Errno),
    /// There is none, and no file in the usual place.
    #[error("no process of this host is the kubelet, and {} does not exist", .0.display())]
    Nowhere(PathBuf),
    /// The kubelet is a part of another program, which does not show how it is called.
    #[error("the kubelet is part of {program} (process {pid}), which does not show its settings")]
    Hidden {
        /// The program.
        program: String,
        /// Its process.
        pid: u32,
    },
    /// A flag cannot be read.
    #[error("the kubelet's flag --{flag} cannot be read: {value:?} {why}")]
    Flag {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A file cannot be opened.
    #[error("cannot read the kubelet's {}: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// Other users may change a file.
    #[error("the kubelet's {} {why}: {remedy}", .path.display())]
    Untrusted {
        /// The file, or a folder that leads to it.
        path: PathBuf,
        /// Which users may.
        why: String,
        /// How to fix it.
        remedy: String,
    },
    /// A file is not a valid kubelet configuration.
    #[error(transparent)]
    File(#[from] Error),
    /// Neither flags nor files say it, and the kubelet was asked in vain.
    #[error("{unknown}; and its configz endpoint does not say it: {why}")]
    Unanswered {
        /// What flags and files say.
        unknown: Box<Self>,
        /// Why there is no answer.
        why: String,
    },
    /// The cgroup root is not valid.
    #[error("{origin}: {value:?} is not the path of a cgroup")]
    CgroupRoot {
        /// Where it is written.
        origin: String,
        /// The beginning of what is written.
        value: String,
    },
    /// The threshold is not valid.
    #[error("{origin}: {source}")]
    Threshold {
        /// Where it is written.
        origin: String,
        /// What is wrong.
        source: ThresholdError,
    },
}

impl KubeletUnknown {
    /// Whether this process only lacks the rights to see it.
    #[must_use]
    pub fn is_for_lack_of_rights(&self) -> bool {
        match self {
            Self::Processes(errno) => matches!(*errno, Errno::ACCESS | Errno::PERM),
            Self::Open { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Unanswered { unknown, .. } => unknown.is_for_lack_of_rights(),
            _ => false,
        }
    }
}

/// Reads the threshold of that kubelet, or that of the usual file below `kubelet_root_dir` if none runs. The files are those
/// that the kubelet itself sees; process 1 is found below `proc`.
pub fn kubelet_memory(
    kubelet: Option<KubeletProcess>,
    proc: &Path,
    kubelet_root_dir: &Path,
) -> Result<KubeletMemory, KubeletUnknown> {
    let Some(KubeletProcess { pid, program, arguments, root, .. }) = kubelet else {
        let path = kubelet_root_dir.join("config.yaml");
        return match file(&cgroup::hosts_root(proc)?, &path) {
            Err(KubeletUnknown::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(KubeletUnknown::Nowhere(path))
            }
            read => combine(&[read?], &Flags::default()),
        };
    };
    match arguments {
        Some(arguments) if program == "kubelet" => of_kubelet(&arguments, &root),
        _ => Err(KubeletUnknown::Hidden { program, pid }),
    }
}

/// Where a threshold is from that the kubelet itself says.
const CONFIGZ: &str = "its configz endpoint";

impl KubeletMemory {
    /// What the kubelet says that is in force: whether there is an `evictionHard`, its threshold of `memory.available` as it is
    /// written, and `mergeDefaultEvictionSettings`.
    pub fn of_configz(is_set: bool, memory: Option<&str>, merges: bool) -> Result<Self, KubeletUnknown> {
        let origin = || CONFIGZ.to_owned();
        let decision = match memory {
            Some(text) => Decision::Set(text.to_owned(), origin()),
            None if is_set => Decision::Unnamed(origin()),
            None => Decision::Unset,
        };
        decided(decision, merges, || format!("its built-in default, as {CONFIGZ} does not show another"))
    }
}

/// That of a kubelet with these arguments, whose files are below `root`.
fn of_kubelet(arguments: &[String], root: impl AsFd) -> Result<KubeletMemory, KubeletUnknown> {
    let flags = Flags::read(arguments)?;
    combine(&layers(&flags, root)?, &flags)
}

/// The kubelet's files, each before those that change it.
fn layers(flags: &Flags, root: impl AsFd) -> Result<Vec<Layer>, KubeletUnknown> {
    let mut layers = Vec::new();
    if let Some(path) = path("config", flags.config.as_deref())? {
        layers.push(file(&root, path)?);
    }
    if let Some(path) = path("config-dir", flags.config_dir.as_deref())? {
        for addition in additions(&root, path)? {
            layers.push(Layer { is_addition: true, ..file(&root, &addition)? });
        }
    }
    Ok(layers)
}

/// The flags that decide. Those of a kubelet override its files.
#[derive(Debug, Default, PartialEq)]
struct Flags {
    config: Option<String>,
    config_dir: Option<String>,
    /// `--eviction-hard`, which stands in place of the files' whole `evictionHard`.
    hard: Option<Vec<(String, String)>>,
    /// `--merge-default-eviction-settings`.
    merge: Option<bool>,
    /// `--hostname-override`.
    hostname_override: Option<String>,
    /// `--root-dir`.
    root_dir: Option<String>,
    /// `--cert-dir`.
    cert_dir: Option<String>,
    /// `--cgroup-root`.
    cgroup_root: Option<String>,
    /// `--container-runtime-endpoint`.
    runtime_endpoint: Option<String>,
}

impl Flags {
    fn read(arguments: &[String]) -> Result<Self, KubeletUnknown> {
        let mut flags = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (flag, None),
            };
            let mut value = |flag| {
                value
                    .or_else(|| words.next().map(String::as_str))
                    .map(str::to_owned)
                    .ok_or(KubeletUnknown::Flag { flag, value: String::new(), why: "is missing" })
            };
            // As pflag takes it (`WordSepNormalizeFunc`).
            match name.replace('_', "-").as_str() {
                "config" => flags.config = Some(value("config")?),
                "config-dir" => flags.config_dir = Some(value("config-dir")?),
                "eviction-hard" => flags.add_hard(&value("eviction-hard")?)?,
                "hostname-override" => flags.hostname_override = Some(value("hostname-override")?),
                "root-dir" => flags.root_dir = Some(value("root-dir")?),
                "cert-dir" => flags.cert_dir = Some(value("cert-dir")?),
                "cgroup-root" => flags.cgroup_root = Some(value("cgroup-root")?),
                "container-runtime-endpoint" => {
                    flags.runtime_endpoint = Some(value("container-runtime-endpoint")?);
                }
                "merge-default-eviction-settings" => flags.merge = Some(!flag.ends_with("=false")),
                _ => {}
            }
        }
        Ok(flags)
    }

    /// The first flag begins anew, further ones add to it (`LangleSeparatedMapStringString.Set`).
    fn add_hard(&mut self, value: &str) -> Result<(), KubeletUnknown> {
        let hard = self.hard.get_or_insert_default();
        for pair in value.split(',').filter(|pair| !pair.is_empty()) {
            let (signal, amount) = pair.split_once('<').ok_or_else(|| KubeletUnknown::Flag {
                flag: "eviction-hard",
                value: pair.chars().take(100).collect(),
                why: "is not SIGNAL<AMOUNT",
            })?;
            hard.push((signal.trim().to_owned(), amount.trim().to_owned()));
        }
        Ok(())
    }
}

/// The path in a flag's value; `None` if it is not set.
fn path<'a>(flag: &'static str, value: Option<&'a str>) -> Result<Option<&'a Path>, KubeletUnknown> {
    match value.filter(|value| !value.is_empty()).map(Path::new) {
        Some(path) if !path.is_absolute() => {
            let value = path.display().to_string();
            Err(KubeletUnknown::Flag { flag, value, why: "is not an absolute path" })
        }
        path => Ok(path),
    }
}

/// What a file says.
#[derive(Debug)]
struct Layer {
    file: String,
    /// Whether it adds to the configuration's file, signal by signal.
    is_addition: bool,
    /// Whether it has `evictionHard`, and where.
    hard: Option<Origin>,
    /// The threshold as written there, and where.
    memory: Option<(String, Origin)>,
    merge: Option<bool>,
    /// `cgroupRoot` as written there, and where.
    cgroup_root: Option<(String, Origin)>,
    /// `containerRuntimeEndpoint` as written there.
    runtime_endpoint: Option<String>,
}

impl Layer {
    fn read(name: &str, text: &str) -> Result<Self, Error> {
        let mut fields = Fields::default();
        fields.read(name, text, true, KUBELETS_API_VERSION, KUBELETS_KIND)?;
        let pairs = fields.pairs(Map::Hard.field());
        let named = pairs.iter().flatten().find(|pair| pair.key == Signal::MemoryAvailable.as_str());
        let memory = named.map(|pair| (pair.text.clone(), pair.origin()));
        let merge = fields.boolean("mergeDefaultEvictionSettings");
        let cgroup_root = fields.text("cgroupRoot", |text| Ok(text.to_owned()));
        let runtime_endpoint = fields.kubelets_alone("containerRuntimeEndpoint");
        match fields.finish() {
            Ok(provenance) => Ok(Self {
                file: name.to_owned(),
                is_addition: false,
                hard: provenance.origins.get(Map::Hard.field()).cloned().filter(|_| pairs.is_some()),
                memory,
                merge,
                cgroup_root: cgroup_root.zip(provenance.origins.get("cgroupRoot").cloned()),
                runtime_endpoint,
            }),
            Err(problems) => Err(Error::Invalid { problems }),
        }
    }
}

fn open(root: impl AsFd, path: &Path) -> Result<OwnedFd, KubeletUnknown> {
    match trust::open_below(root, path) {
        Ok(Ok(open)) => Ok(open),
        Ok(Err((path, Untrusted { why, remedy }))) => Err(KubeletUnknown::Untrusted { path, why, remedy }),
        Err(source) => Err(KubeletUnknown::Open { path: path.to_owned(), source }),
    }
}

fn file(root: impl AsFd, path: &Path) -> Result<Layer, KubeletUnknown> {
    let shown = path.display().to_string();
    let text = text_of(&shown, File::from(open(root, path)?))?;
    Ok(Layer::read(&shown, &text)?)
}

/// The files in the folder of additions, in the kubelet's order.
fn additions(root: impl AsFd, path: &Path) -> Result<Vec<PathBuf>, KubeletUnknown> {
    let failed = |source: io::Error| KubeletUnknown::Open { path: path.to_owned(), source };
    let other = |what: &str| failed(io::Error::other(what.to_owned()));
    let folder = open(&root, path)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&folder).map_err(|errno| failed(errno.into()))? {
        let entry = entry.map_err(|errno| failed(errno.into()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "." | "..") {
            continue;
        }
        if entry.file_type().is_dir() {
            return Err(other("it has folders, which are not read"));
        }
        if Path::new(&name).extension().is_some_and(|extension| extension == ADDITION) {
            names.push(path.join(name));
        }
        if names.len() > MOST_FILES {
            return Err(other("it has more than 64 files"));
        }
    }
    names.sort();
    Ok(names)
}

/// What files and flags decide about `memory.available`, the later one before the earlier.
enum Decision {
    /// Nothing: the default applies.
    Unset,
    /// Other signals have thresholds, and the default need not apply.
    Unnamed(String),
    /// This.
    Set(String, String),
}

fn combine(layers: &[Layer], flags: &Flags) -> Result<KubeletMemory, KubeletUnknown> {
    let name = Signal::MemoryAvailable.as_str();
    let mut decision = Decision::Unset;
    for Layer { is_addition, hard, memory, .. } in layers {
        decision = match (hard, memory) {
            (_, Some((text, origin))) => Decision::Set(text.clone(), origin.to_string()),
            // An addition leaves the signals that it does not name as they are.
            (Some(origin), None) if !is_addition => Decision::Unnamed(origin.to_string()),
            _ => decision,
        };
    }
    if let Some(hard) = &flags.hard {
        let origin = String::from("its flag --eviction-hard");
        decision = match hard.iter().rev().find(|(signal, _)| signal == name) {
            Some((_, text)) => Decision::Set(text.clone(), origin),
            None => Decision::Unnamed(origin),
        };
    }
    let merge = flags.merge.or(layers.iter().rev().find_map(|layer| layer.merge)).unwrap_or(false);
    let unset = || match layers.first() {
        Some(layer) => format!("its built-in default, as {} does not set it", layer.file),
        None => String::from("its built-in default, as it has no configuration file"),
    };
    decided(decision, merge, unset)
}

/// What follows from a decision; `unset` says why the default applies if there is none.
fn decided(
    decision: Decision,
    merge: bool,
    unset: impl FnOnce() -> String,
) -> Result<KubeletMemory, KubeletUnknown> {
    let default = EvictionSettings::default().hard(Signal::MemoryAvailable).map(|threshold| threshold.value);
    match decision {
        Decision::Set(text, origin) => match threshold::parse(&text) {
            Ok(hard) => Ok(KubeletMemory { hard, origin }),
            Err(source) => Err(KubeletUnknown::Threshold { origin, source }),
        },
        Decision::Unnamed(origin) if merge => {
            let origin = format!("its built-in default, merged into {origin}");
            Ok(KubeletMemory { hard: default, origin })
        }
        Decision::Unnamed(origin) => Ok(KubeletMemory { hard: None, origin }),
        Decision::Unset => Ok(KubeletMemory { hard: default, origin: unset() }),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use rstest::rstest;
    use rustix::fs::{Mode, OFlags};

    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    /// What a kubelet with these arguments has, where its files are; an error in words.
    fn read(files: &[(&str, &str)], arguments: &[&str]) -> Result<(Option<String>, String), String> {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("{HEAD}{text}")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let arguments: Vec<_> = arguments.iter().map(|&word| word.to_owned()).collect();
        let root = rustix::fs::open(root.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        match of_kubelet(&arguments, root) {
            Ok(KubeletMemory { hard, origin }) => Ok((hard.map(|hard| hard.to_string()), origin)),
            Err(error) => Err(error.to_string()),
        }
    }

    const FILE: &str = "/var/lib/kubelet/config.yaml";

    #[rstest]
    #[case::unset("syncFrequency: 0s\n", &[], Some("100Mi"), "its built-in default, as /var/lib/kubelet/config.yaml does not set it")]
    #[case::set("evictionHard:\n  memory.available: 1Gi\n", &[], Some("1Gi"), "/var/lib/kubelet/config.yaml:4")]
    #[case::share("evictionHard: {memory.available: 5%}\n", &[], Some("5%"), "/var/lib/kubelet/config.yaml:3")]
    #[case::off("evictionHard: {memory.available: 0%}\n", &[], None, "/var/lib/kubelet/config.yaml:3")]
    #[case::others("evictionHard: {nodefs.available: 5%}\n", &[], None, "/var/lib/kubelet/config.yaml:3")]
    #[case::merged("mergeDefaultEvictionSettings: true\nevictionHard: {nodefs.available: 5%}\n", &[], Some("100Mi"), "its built-in default, merged into /var/lib/kubelet/config.yaml:4")]
    #[case::flag("evictionHard: {memory.available: 5%}\n", &["--eviction-hard=memory.available<300Mi,nodefs.available<10%"], Some("300Mi"), "its flag --eviction-hard")]
    #[case::flag_of_others("evictionHard: {memory.available: 5%}\n", &["--eviction_hard", "nodefs.available<10%"], None, "its flag --eviction-hard")]
    #[case::two_flags("", &["--eviction-hard", "memory.available<1Gi", "--eviction-hard=memory.available< 2Gi"], Some("2Gi"), "its flag --eviction-hard")]
    fn a_file_and_flags_decide_as_for_the_kubelet(
        #[case] text: &str,
        #[case] arguments: &[&str],
        #[case] hard: Option<&str>,
        #[case] origin: &str,
    ) {
        let arguments = [&["--config", FILE, "--v=2"], arguments].concat();
        assert_eq!(read(&[(FILE, text)], &arguments), Ok((hard.map(str::to_owned), origin.to_owned())));
    }

    #[test]
    fn what_the_kubelet_itself_says_is_read_as_a_file_is() {
        for (is_set, memory, merges, hard, origin) in [
            (true, Some("1Gi"), false, Some("1Gi"), CONFIGZ),
            (true, Some("0%"), false, None, CONFIGZ),
            (true, None, false, None, CONFIGZ),
            (true, None, true, Some("100Mi"), "its built-in default, merged into its configz endpoint"),
            (
                false,
                None,
                false,
                Some("100Mi"),
                "its built-in default, as its configz endpoint does not show another",
            ),
        ] {
            let known = KubeletMemory::of_configz(is_set, memory, merges).unwrap();
            let shown = known.hard.map(|hard| hard.to_string());
            assert_eq!((shown.as_deref(), known.origin.as_str()), (hard, origin));
        }
        let error = KubeletMemory::of_configz(true, Some("x"), false).unwrap_err().to_string();
        assert!(error.starts_with("its configz endpoint: "), "{error}");
    }

    #[test]
    fn additions_change_the_signals_that_they_name() {
        let files = [
            (FILE, "evictionHard: {memory.available: 5%}\n"),
            ("/etc/kubelet.d/10-a.conf", "evictionHard: {memory.available: 7%}\n"),
            ("/etc/kubelet.d/20-b.conf", "evictionHard: {nodefs.available: 7%}\n"),
            ("/etc/kubelet.d/30-c.yaml", "evictionHard: {memory.available: 9%}\n"),
        ];
        let arguments = [&*format!("--config={FILE}"), "--config-dir=/etc/kubelet.d"];
        let known = Ok((Some(String::from("7%")), String::from("/etc/kubelet.d/10-a.conf:3")));
        assert_eq!(read(&files, &arguments), known);
        let (hard, origin) = read(&files[2..], &["--config-dir=/etc/kubelet.d"]).unwrap();
        assert_eq!(hard.as_deref(), Some("100Mi"), "{origin}");
    }

    #[test]
    fn without_a_file_the_default_is_built_in() {
        let origin = String::from("its built-in default, as it has no configuration file");
        assert_eq!(read(&[], &["--v=2"]), Ok((Some(String::from("100Mi")), origin)));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_a_default() {
        for (text, arguments, why) in [
            ("", &["--config=/etc/none"][..], "cannot read the kubelet's /etc/none: "),
            (
                "",
                &["--config=kubelet.yaml"],
                "the kubelet's flag --config cannot be read: \"kubelet.yaml\" is not an",
            ),
            ("", &["--config"], "the kubelet's flag --config cannot be read: \"\" is missing"),
            (
                "",
                &["--eviction-hard=memory.available"],
                "the kubelet's flag --eviction-hard cannot be read: ",
            ),
            ("", &["--eviction-hard=memory.available<x"], "its flag --eviction-hard: "),
            ("evictionHard: 7\n", &["--config=/c"], "/c:3: evictionHard: expected a mapping"),
            ("evictionHard: {memory.available: -1}\n", &["--config=/c"], "/c:3: "),
            ("kind: Pod\n", &["--config=/c"], "/c:"),
        ] {
            let refused = read(&[("/c", text)], arguments).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_file_that_others_may_change_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("c");
        fs::write(&path, format!("{HEAD}evictionHard: {{memory.available: 5%}}\n")).unwrap();
        symlink("/c", temp.path().join("link")).unwrap();
        let read = |path: &str| {
            let root = rustix::fs::open(temp.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            of_kubelet(&[format!("--config={path}")], root).map(|known| known.origin)
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read("/link").unwrap(), "/link:3");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let refused = read("/link").unwrap_err().to_string();
        assert!(refused.starts_with("the kubelet's /c may be written to by everybody"), "{refused}");
    }
}
