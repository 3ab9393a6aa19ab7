use std::{
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    time::{Duration, Instant},
};

use rstest::rstest;

use super::{
    super::{
        kubelet::{KubeletSearch, kubelets},
        process::cached_stat,
    },
    *,
};
use crate::model::CgroupPath;

const PID: u32 = 77;
const HOSTS: &str = "user:[1]";

/// A cgroup `pod` with one below, and a process file system with a host's root and a container's.
struct Scene {
    temp: tempfile::TempDir,
    guard: Guard,
}

/// One process, as /proc shows it.
#[derive(Clone, Copy)]
struct Shown {
    /// Below which root its executable is: the host's, or a container's.
    root: &'static str,
    program: &'static str,
    uids: &'static str,
    user_namespace: &'static str,
    score: &'static str,
}

const KUBELET: Shown =
    Shown { root: "host", program: "kubelet", uids: "0 0 0 0", user_namespace: HOSTS, score: "-999" };

impl Scene {
    fn new(components: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let components: Vec<_> = components.iter().map(|name| NodeComponent::parse(name).unwrap()).collect();
        let guard = Guard::new(&temp.path().join("proc"), &components);
        let scene = Self { temp, guard };
        scene.write("cgroup/pod/container/cgroup.procs", "");
        scene.write("cgroup/pod/cgroup.procs", "");
        scene.write("proc/1/ns/.keep", "");
        let proc = scene.temp.path().join("proc/1");
        symlink(scene.temp.path().join("host"), proc.join("root")).unwrap();
        symlink(HOSTS, proc.join("ns/user")).unwrap();
        scene
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.temp.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A process in the container, and in /proc.
    fn run(&self, shown: Shown) {
        let Shown { root, program, uids, user_namespace, score } = shown;
        let folder = format!("proc/{PID}");
        self.write("cgroup/pod/container/cgroup.procs", &format!("{PID}\n"));
        self.write(&format!("{folder}/oom_score_adj"), score);
        self.write(&format!("{folder}/status"), &format!("Name:\tx\nUid:\t{}\n", uids.replace(' ', "\t")));
        self.write(&format!("{folder}/ns/.keep"), "");
        // The path is as process 1 sees it, as a mount namespace of its own is no part of it: below its root lies the whole of
        // this test's tree.
        let program = self.temp.path().join(root).join("usr/bin").join(program);
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        fs::write(&program, "").unwrap();
        let folder = self.temp.path().join(folder);
        symlink(&program, folder.join("exe")).unwrap();
        symlink(user_namespace, folder.join("ns/user")).unwrap();
        let below_the_host = self.temp.path().join("host").join(program.strip_prefix("/").unwrap());
        fs::create_dir_all(below_the_host.parent().unwrap()).unwrap();
        if root == "host" {
            fs::hard_link(&program, below_the_host).unwrap();
        } else {
            fs::write(below_the_host, "").unwrap();
        }
    }

    fn judge(&self, origin: Origin) -> Option<Forbidden> {
        let root = CgroupDir::unchecked(&self.temp.path().join("cgroup")).unwrap();
        self.guard.forbidden(&root.open(&CgroupPath::parse("pod").unwrap()).unwrap(), origin).unwrap()
    }

    fn both(&self) -> [Option<Forbidden>; 2] {
        [Origin::Made, Origin::Adopted].map(|origin| self.judge(origin))
    }
}

/// Whether the files that a test makes are root's, as a component's has to be.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn component(name: &str) -> Option<Forbidden> {
    is_root().then(|| Forbidden::HoldsComponent { pid: PID, name: name.to_owned() })
}

#[test]
fn what_holds_init_or_the_daemon_further_down_is_spared() {
    let scene = Scene::new(&[]);
    let procs = |text: &str| {
        scene.write("cgroup/pod/container/cgroup.procs", text);
        scene.both()
    };
    assert_eq!(procs(""), [None, None]);
    assert_eq!(procs("4194304\n1\n"), [Some(Forbidden::HoldsInit), Some(Forbidden::HoldsInit)]);
    let daemon = Some(Forbidden::HoldsDaemon);
    assert_eq!(procs(&format!("{}\n", std::process::id())), [daemon.clone(), daemon]);
}

#[test]
fn the_root_is_spared() {
    let temp = tempfile::tempdir().unwrap();
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    let guard = Guard::new(Path::new("/proc"), &[]);
    assert_eq!(guard.forbidden(&root, Origin::Made).unwrap(), Some(Forbidden::Root));
}

#[rstest]
#[case::the_hosts(KUBELET, [true, true])]
#[case::a_containers_own_file(Shown { root: "container", ..KUBELET }, [false, false])]
#[case::of_another_user(Shown { uids: "1000 1000 1000 1000", ..KUBELET }, [false, false])]
#[case::that_gave_up_root_in_part(Shown { uids: "1000 0 0 0", ..KUBELET }, [false, false])]
#[case::of_another_user_namespace(Shown { user_namespace: "user:[2]", ..KUBELET }, [false, false])]
#[case::no_component(Shown { program: "sleep", ..KUBELET }, [false, false])]
#[case::k3s(Shown { program: "k3s", ..KUBELET }, [true, true])]
#[case::one_that_is_configured(Shown { program: "agent", ..KUBELET }, [true, true])]
#[case::a_supervisor_may_stand_in_a_pod(Shown { program: "conmon", ..KUBELET }, [false, true])]
#[case::so_may_podman(Shown { program: "podman", ..KUBELET }, [false, true])]
fn a_component_is_known_by_its_file_and_its_user(#[case] shown: Shown, #[case] expected: [bool; 2]) {
    let scene = Scene::new(&["agent"]);
    scene.run(shown);
    assert_eq!(scene.both(), expected.map(|spared| component(shown.program).filter(|_| spared)));
}

#[rstest]
#[case::the_hosts(KUBELET, "kubelet\0--config\0", "/system.slice/kubelet.service", true)]
#[case::a_title(Shown { program: "kubelite", ..KUBELET }, "kubelite", "/", true)]
#[case::a_containers_own_file(Shown { root: "container", ..KUBELET }, "kubelet", "/", false)]
#[case::of_another_user(Shown { uids: "1000 1000 1000 1000", ..KUBELET }, "kubelet", "/", false)]
#[case::of_another_user_namespace(Shown { user_namespace: "user:[2]", ..KUBELET }, "kubelet", "/", false)]
#[case::in_a_pod(KUBELET, "kubelet", "/kubepods/besteffort/pod1/2", false)]
#[case::in_a_slice(KUBELET, "kubelet", "/kubepods.slice/x.scope", false)]
#[case::another_program(Shown { program: "sleep", ..KUBELET }, "kubelet", "/", false)]
#[case::k3s(Shown { program: "k3s", ..KUBELET }, "/usr/local/bin/k3s server", "/", true)]
#[case::k3s_before_its_title(Shown { program: "k3s", ..KUBELET }, "k3s\0agent\0--token\0x\0", "/", true)]
#[case::asked_for_its_version(KUBELET, "kubelet\0--version\0", "/", false)]
#[case::k3s_without_a_kubelet(Shown { program: "k3s", ..KUBELET }, "k3s\0server\0--disable-agent\0", "/", false)]
#[case::k3s_as_kubectl(Shown { program: "k3s", ..KUBELET }, "kubectl\0get\0pods\0", "/", false)]
fn a_kubelet_is_known_by_its_identity(
    #[case] shown: Shown,
    #[case] cmdline: &str,
    #[case] cgroup: &str,
    #[case] runs: bool,
) {
    let scene = Scene::new(&[]);
    let proc = scene.temp.path().join("proc");
    let mut search = KubeletSearch::new(&proc);
    let mut latest =
        || search.latest(Instant::now()).unwrap().map(|process| (process.pid, process.start_ticks));
    assert!(kubelets(&proc).unwrap().is_empty() && latest().is_none());
    scene.run(shown);
    scene.write(&format!("proc/{PID}/cmdline"), cmdline);
    scene.write(&format!("proc/{PID}/comm"), "kubelet\n");
    fs::create_dir(proc.join(format!("{PID}/root"))).unwrap();
    scene.write(&format!("proc/{PID}/cgroup"), &format!("0::{cgroup}\n"));
    scene.write(
        &format!("proc/{PID}/stat"),
        &format!("{PID} (kubelet) S {} 7654 0 0", vec!["0"; 18].join(" ")),
    );
    let expected = (runs && is_root()).then_some((PID, 7_654));
    assert_eq!(kubelets(&proc).unwrap(), expected.into_iter().collect());
    assert_eq!([latest(), latest()], [expected; 2]);
    fs::remove_dir_all(proc.join(PID.to_string())).unwrap();
    assert_eq!(latest(), None, "it has ended");
}

#[test]
fn a_kubelet_is_found_again_late_and_after_another() {
    let scene = Scene::new(&[]);
    let proc = scene.temp.path().join("proc");
    scene.write("proc/loadavg", "0.00 0.00 0.00 1/90 900\n");
    let mut search = KubeletSearch::new(&proc);
    let begin = Instant::now();
    let mut latest = |now| search.latest(now).unwrap().map(|process| process.pid);
    assert_eq!([latest(begin), latest(begin), latest(begin)], [None; 3]);
    scene.run(KUBELET);
    scene.write(&format!("proc/{PID}/cmdline"), "kubelet\0");
    scene.write(&format!("proc/{PID}/cgroup"), "0::/system.slice/kubelet.service\n");
    scene.write(&format!("proc/{PID}/stat"), &format!("{PID} (kubelet) S {} 7 0", vec!["0"; 18].join(" ")));
    fs::create_dir(proc.join(format!("{PID}/root"))).unwrap();
    let is = |pid| Some(pid).filter(|_| is_root());
    assert_eq!(latest(begin), None, "no process was started");
    let later = begin + Duration::from_mins(2);
    assert_eq!([latest(later), latest(later)], [is(PID), is(PID)], "one that had another program before");
    fs::rename(proc.join(PID.to_string()), proc.join("33")).unwrap();
    assert_eq!([latest(later), latest(later)], [is(33), is(33)], "as one has ended, all are looked at");
}

/// A program counts as the host's only if no user but root can write it, and both device and inode match.
#[test]
fn a_component_is_a_file_of_roots_alone_and_on_its_own_device() {
    let scene = Scene::new(&[]);
    scene.run(KUBELET);
    assert_eq!(scene.both(), [component("kubelet"), component("kubelet")]);
    let program = fs::read_link(scene.temp.path().join(format!("proc/{PID}/exe"))).unwrap();
    let init = Processes::open(&scene.temp.path().join("proc")).unwrap().get(1).unwrap();
    let mut elsewhere = cached_stat(rustix::fs::CWD, &program.display().to_string()).unwrap();
    let path = program.display().to_string();
    assert_eq!(init.has_program(&path, &elsewhere).unwrap(), is_root());
    elsewhere.stx_dev_minor += 1;
    assert!(!init.has_program(&path, &elsewhere).unwrap());
    for mode in [0o775, 0o757] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(scene.both(), [None, None], "{mode:o}");
    }
}

/// A runtime's conmon has that score, and with `CAP_SYS_RESOURCE` each process can take it.
#[test]
fn a_score_of_minus_1000_spares_what_is_adopted_and_makes_no_pod_immune() {
    let unkillable = Some(Forbidden::HoldsUnkillable { pid: PID });
    for program in ["sleep", "conmon"] {
        let scene = Scene::new(&[]);
        scene.run(Shown { program, score: "-1000", ..KUBELET });
        assert_eq!(scene.both(), [None, unkillable.clone()], "{program}");
    }
    let scene = Scene::new(&[]);
    scene.run(Shown { score: "-1000", ..KUBELET });
    assert_eq!(scene.both(), [component("kubelet"), unkillable]);
}

#[test]
fn a_component_whose_file_was_replaced_while_it_runs_is_spared() {
    let scene = Scene::new(&[]);
    scene.run(KUBELET);
    let exe = scene.temp.path().join(format!("proc/{PID}/exe"));
    // Its link leads to the old file, which has no name any more; the nearest to it here is one that is open.
    let program = fs::read_link(&exe).unwrap();
    let old = fs::File::open(&program).unwrap();
    fs::remove_file(&program).unwrap();
    let below_the_host = scene.temp.path().join("host").join(program.strip_prefix("/").unwrap());
    fs::remove_file(&below_the_host).unwrap();
    let init = Processes::open(&scene.temp.path().join("proc")).unwrap().get(1).unwrap();
    let stat = cached_stat(&old, "").unwrap();
    let link = format!("{} (deleted)", program.display());
    assert_eq!(init.has_program(&link, &stat).unwrap(), is_root());
    fs::write(&below_the_host, "the new one").unwrap();
    assert_eq!(init.has_program(&link, &stat).unwrap(), is_root());
    assert_ne!(init.has_program("/proc/self/fd/kubelet (deleted)", &stat), Ok(true));
}

#[test]
fn what_cannot_be_found_out_spares_what_is_adopted() {
    let scene = Scene::new(&[]);
    scene.write("cgroup/pod/container/cgroup.procs", "0\n4194304\n");
    assert_eq!(scene.both(), [None, Some(Forbidden::Unseen(Unseen::Outside))]);

    // A file that cannot be read as what it is stands for one that the kernel refuses.
    scene.run(KUBELET);
    fs::remove_file(scene.temp.path().join(format!("proc/{PID}/oom_score_adj"))).unwrap();
    fs::create_dir(scene.temp.path().join(format!("proc/{PID}/oom_score_adj"))).unwrap();
    let unknown = Forbidden::HoldsUnknown { pid: PID, errno: Errno::ISDIR };
    assert_eq!(scene.judge(Origin::Adopted), Some(unknown));

    scene.write("cgroup/pod/container/cgroup.procs", "");
    fs::remove_file(scene.temp.path().join("cgroup/pod/cgroup.procs")).unwrap();
    fs::create_dir(scene.temp.path().join("cgroup/pod/cgroup.procs")).unwrap();
    let unread = Forbidden::Unseen(Unseen::Unread(Errno::ISDIR));
    assert_eq!(scene.both(), [None, Some(unread)]);
}

#[test]
fn what_is_nested_too_deep_spares_what_is_adopted() {
    let scene = Scene::new(&[]);
    let deepest = |depth: usize| format!("cgroup/pod/{}cgroup.procs", "x/".repeat(depth));
    scene.write(&deepest(16), "1\n");
    let init = Some(Forbidden::HoldsInit);
    assert_eq!(scene.both(), [init.clone(), init]);
    scene.write(&deepest(16), "");
    assert_eq!(scene.both(), [None, None]);
    scene.write(&deepest(17), "1\n");
    assert_eq!(scene.both(), [None, Some(Forbidden::Unseen(Unseen::TooDeep))]);
}

#[test]
fn what_has_too_many_cgroups_is_not_walked_for_ever_and_spares_what_is_adopted() {
    let scene = Scene::new(&[]);
    let pod = scene.temp.path().join("cgroup/pod");
    let count = fs::read_dir(&pod).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count();
    for number in count..4_096 {
        fs::create_dir(pod.join(format!("x{number}"))).unwrap();
    }
    assert_eq!(scene.both(), [None, None]);
    fs::create_dir_all(pod.join("y/deep")).unwrap();
    assert_eq!(scene.both(), [None, Some(Forbidden::Unseen(Unseen::TooMany))]);
}

#[test]
fn a_cgroup_whose_name_is_no_text_hides_nothing() {
    let scene = Scene::new(&[]);
    let inner = scene.temp.path().join("cgroup/pod").join(OsStr::from_bytes(b"x\xff")).join("inner");
    fs::create_dir_all(&inner).unwrap();
    fs::write(inner.join("cgroup.procs"), "").unwrap();
    assert_eq!(scene.both(), [None, None]);
    fs::write(inner.join("cgroup.procs"), "1\n").unwrap();
    let init = Some(Forbidden::HoldsInit);
    assert_eq!(scene.both(), [init.clone(), init]);
}

#[test]
fn a_unit_of_a_component_is_not_adopted() {
    let scene = Scene::new(&["kubelet.service"]);
    scene.write("cgroup/pod/kubelet.service/cgroup.procs", "");
    let unit = Forbidden::HoldsUnit { name: String::from("kubelet.service") };
    assert_eq!(scene.both(), [None, Some(unit.clone())]);
    let root = CgroupDir::unchecked(&scene.temp.path().join("cgroup")).unwrap();
    let within = root.open(&CgroupPath::parse("pod/kubelet.service").unwrap()).unwrap();
    assert_eq!(scene.guard.forbidden(&within, Origin::Adopted).unwrap(), Some(unit));
}

#[test]
fn a_list_longer_than_one_read_is_read_whole() {
    let temp = tempfile::tempdir().unwrap();
    let list: Vec<_> = (4_194_305..4_204_305).map(|pid: u32| pid.to_string()).collect();
    fs::write(temp.path().join("cgroup.procs"), list.join("\n")).unwrap();
    let mut seen = Vec::new();
    let root = CgroupDir::unchecked(temp.path()).unwrap();
    assert_eq!(each_process(&root, &mut |pid| seen.push(pid)).unwrap(), None);
    assert_eq!(seen, (4_194_305..4_204_305).collect::<Vec<_>>());
}
