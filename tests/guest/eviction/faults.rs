//! Whatever fails around the daemon while the node runs short, the right pod goes, no other one, and no event is lost.

use std::{
    ffi::CString,
    fs,
    io::Write as _,
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    kernel,
    process::Process,
    random::Random,
    rounds::Rounds,
    wait::{TIMEOUT, wait_until},
};
use rustix::{
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Pid, Resource, Signal, kill_process},
    time::{ClockId, Timespec, clock_gettime, clock_settime},
};

use super::{
    LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES,
    exhausted::{Limited, first_free_descriptor},
    to_leave,
};

const NAME: &str = "eviction-faults";

/// What fails. Each lasts from before the shortage until the eviction is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Fault {
    /// The daemon can start no thread: `pids.max` of its cgroup.
    Threads,
    /// The daemon can open nothing more: `RLIMIT_NOFILE`.
    Descriptors,
    /// The disk of the journal is full.
    FullDisk,
    /// The reader of the daemon's log reads no more.
    Log,
    /// A manifest is a pipe without a writer.
    Manifest,
    /// The file system of the manifests answers no more.
    Folder,
    /// The clock on the wall is set a day back and forth.
    Clock,
    /// Cgroups come, run out of memory and go; in a soak thousands of them are there at once.
    Churn,
    /// A file in memory outlives the pod that wrote it.
    Volume,
}

const FAULTS: [Fault; 9] = [
    Fault::Threads,
    Fault::Descriptors,
    Fault::FullDisk,
    Fault::Log,
    Fault::Manifest,
    Fault::Folder,
    Fault::Clock,
    Fault::Churn,
    Fault::Volume,
];

/// The daemon with all that can fail around it.
struct Surroundings {
    scene: Scene,
    /// The daemon's own cgroup.
    cgroup: Cgroup,
    /// Where its state is: a disk of its own.
    state: PathBuf,
    /// Reads what it logs.
    log_reader: Process,
}

impl Surroundings {
    fn set_up() -> Self {
        let folder = Path::new("/tmp").join(NAME);
        let state = folder.join("state");
        fs::create_dir_all(&state).unwrap();
        mount("state", &state, "tmpfs", MountFlags::empty(), c"size=24m,mode=0750").unwrap();
        let log = folder.join("log-pipe");
        assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
        let reader = Command::new("sh")
            .args(["-c", r#"exec cat "$0" > "$0.text""#])
            .arg(&log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let cgroup = Cgroup::create("faults-daemon").unwrap();
        let start = r#"echo 0 > "$0/cgroup.procs" && exec "$@" 2> "$LOG""#;
        let start = start.replace("$LOG", log.to_str().unwrap());
        let settings = format!(
            "mode: enforce\nevictionPressureTransitionPeriod: 1ms\njournalMaxBytes: 16Mi\noomScorePolicy: ranked\n\
             evictionHard: {{memory.available: {}Mi}}\nbreaker: {{maxKills: 10000, maxShare: 1}}",
            THRESHOLD_BYTES / MIB
        );
        let wrapper = ["sh", "-c", &start, cgroup.path().to_str().unwrap()];
        let mut daemon = Daemon::launch(&folder, &settings, &wrapper).unwrap();
        daemon.wait_until_ready().unwrap();
        let stream = daemon.follow().unwrap();
        let log_reader = Process::new(reader);
        Self { scene: Scene { daemon, stream }, cgroup, state, log_reader }
    }

    /// Has it fail until what is given back is dropped.
    fn begin(&self, fault: Fault) -> Failing {
        match fault {
            Fault::Threads => {
                let present = self.cgroup.read("pids.current").unwrap();
                self.cgroup.write("pids.max", &present).unwrap();
                Failing::Threads(self.cgroup.path().join("pids.max"))
            }
            Fault::Descriptors => {
                let daemon = &self.scene.daemon;
                let limited = Limited::set(daemon, Resource::Nofile, first_free_descriptor(daemon));
                Failing::Descriptors { _limited: limited }
            }
            Fault::FullDisk => {
                let ballast = self.state.join("ballast");
                let mut file = fs::File::create(&ballast).unwrap();
                while file.write_all(&[7; 4_096]).is_ok() {}
                Failing::FullDisk(ballast)
            }
            Fault::Log => {
                self.log_reader.signal(Signal::STOP).unwrap();
                Failing::Log(self.log_reader.id())
            }
            Fault::Manifest => {
                let pipe = self.scene.daemon.pods().join("pipe.yaml");
                assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
                Failing::Manifest(pipe)
            }
            Fault::Folder => Failing::Folder(Unanswered::over(self.scene.daemon.pods())),
            Fault::Clock => {
                let now = clock_gettime(ClockId::Realtime);
                set_clock(now.tv_sec - 86_400);
                Failing::Clock
            }
            Fault::Churn => Failing::Churn(churn()),
            Fault::Volume => {
                let folder = Path::new("/tmp").join(NAME).join("volume");
                fs::create_dir_all(&folder).unwrap();
                mount("volume", &folder, "tmpfs", MountFlags::empty(), c"size=128m").unwrap();
                let writer = Cgroup::create("faults-volume").unwrap();
                let write = r#"echo 0 > "$0/cgroup.procs" && dd if=/dev/zero of="$1/file" bs=1M count=96"#;
                let written = Command::new("sh")
                    .args(["-c", write])
                    .args([writer.path(), &folder])
                    .stderr(Stdio::null())
                    .status();
                assert!(written.unwrap().success());
                Failing::Volume(folder)
            }
        }
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        let _busy = unmount(&self.state, UnmountFlags::DETACH);
    }
}

fn set_clock(seconds: i64) {
    clock_settime(ClockId::Realtime, Timespec { tv_sec: seconds, tv_nsec: 0 }).unwrap();
}

/// A file system whose server answers nothing: who looks at it waits.
pub(super) struct Unanswered {
    folder: PathBuf,
    /// The server's end. Once it is closed, all who wait get an error.
    server: Option<fs::File>,
    /// Looks into the folder.
    looks: Process,
}

impl Unanswered {
    pub(super) fn over(folder: PathBuf) -> Self {
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount("unanswered", &folder, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        let looks = Command::new("ls").arg(&folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { folder, server: Some(server), looks: Process::new(looks.unwrap()) }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let waits = self.looks.lives();
        unmount(&self.folder, UnmountFlags::DETACH).unwrap();
        self.server.take();
        assert!(thread::panicking() || waits.unwrap(), "the folder was answered for");
    }
}

/// Makes cgroups, runs processes in them out of memory, and removes them: 250 one after the other, in a soak 5,000 that stand
/// at the same time, with a process in each twentieth.
fn churn() -> Child {
    let (standing, each) = if enforcer_tests::rounds::is_soak() { (5_000, 20) } else { (1, 1) };
    let work = "cd /sys/fs/cgroup/faults-churn; i=0; while [ $i -lt $2 ]; do j=0; while [ $j -lt $0 ]; do mkdir $i-$j; j=$((j+1)); \
                done; j=0; while [ $j -lt $0 ]; do d=$i-$j; if [ $((j%$1)) = 0 ]; then echo 4M > $d/memory.max; \
                (echo 0 > $d/cgroup.procs; exec workload spike --size 16Mi) > /dev/null 2>&1; fi; rmdir $d; j=$((j+1)); \
                done; i=$((i+1)); done";
    fs::create_dir_all("/sys/fs/cgroup/faults-churn").unwrap();
    fs::write("/sys/fs/cgroup/faults-churn/cgroup.subtree_control", "+memory").unwrap();
    let numbers = [standing, each, 250 / standing.min(250)].map(|number: u32| number.to_string());
    Command::new("sh").args(["-c", work]).args(numbers).spawn().unwrap()
}

/// What is undone at its end.
enum Failing {
    Threads(PathBuf),
    Descriptors {
        _limited: Limited,
    },
    FullDisk(PathBuf),
    Log(u32),
    Manifest(PathBuf),
    #[expect(dead_code, reason = "its end undoes it")]
    Folder(Unanswered),
    Clock,
    Churn(Child),
    Volume(PathBuf),
}

impl Drop for Failing {
    fn drop(&mut self) {
        match self {
            Self::Descriptors { .. } | Self::Folder(_) => {}
            Self::Threads(file) => fs::write(file, "max").unwrap(),
            Self::FullDisk(ballast) => fs::remove_file(ballast).unwrap(),
            Self::Log(reader) => {
                let pid = i32::try_from(*reader).ok().and_then(Pid::from_raw).unwrap();
                kill_process(pid, Signal::CONT).unwrap();
            }
            Self::Manifest(pipe) => fs::remove_file(pipe).unwrap(),
            Self::Clock => set_clock(clock_gettime(ClockId::Realtime).tv_sec + 86_400),
            Self::Churn(child) => {
                child.wait().unwrap();
            }
            Self::Volume(folder) => {
                unmount(&*folder, UnmountFlags::DETACH).unwrap();
                drop(fs::remove_dir("/sys/fs/cgroup/faults-volume"));
            }
        }
    }
}

/// Starts a pod that fills the node as soon as the file is there: its process stands before anything fails.
fn hog_at(scene: &Scene, signal: &Path, to: &str) -> Process {
    let work = r#"until [ -e "$0" ]; do sleep 0.1; done; exec workload ramp --huge --no-catch-up --rate 200Mi --to "$1""#;
    scene.manifest("hog", 0, "", "");
    let hog = scene.daemon.exec("default/hog", &["sh", "-c", work, signal.to_str().unwrap(), to]);
    Process::new(hog.unwrap())
}

#[guest_test(daemon, repeats)]
fn whatever_fails_the_right_pod_goes_and_no_event_is_lost() {
    let mut random = Random::of_this_run();
    println!("{}", random.seed());
    let mut around = Surroundings::set_up();
    let first = usize::try_from(random.below(9)).unwrap();
    let go = Path::new("/tmp").join(NAME).join("go");
    let mut rounds = Rounds::new(2, 100);
    while let Some(round) = rounds.next() {
        let fault = FAULTS[(first + usize::try_from(round).unwrap()) % FAULTS.len()];
        println!("round {round}: {fault:?}");
        drop(fs::remove_file(&go));
        let mut shop = around.scene.hold("shop", 0, "memory: 200Mi", "", "100Mi");
        let mut cache = around.scene.hold("cache", 0, "memory: 20Mi", "", "60Mi");
        let filler_bytes = to_leave(THRESHOLD_BYTES + 400 * MIB);
        let mut filler = around.scene.fill(&filler_bytes);
        let to = to_leave(LEFT_BYTES);
        let mut hog = hog_at(&around.scene, &go, &to);
        let by_kernel = kernel::vmstat("oom_kill").unwrap();
        wait_until("the hog as a candidate", || {
            let next = around.scene.daemon.get("/v1/ranking").unwrap();
            next.contains("\"hog\"")
        });

        let failing = around.begin(fault);
        fs::write(&go, "").unwrap();
        hog.wait_for_end(TIMEOUT).unwrap();
        for (name, process) in [("shop", &mut shop), ("cache", &mut cache), ("filler", &mut filler)] {
            assert!(process.lives().unwrap(), "round {round}, {fault:?}: {name} died");
        }
        drop(failing);
        let decided = around.scene.wait("eviction.decided", "hog");
        assert_eq!(decided["data"]["dryRun"], false, "round {round}, {fault:?}: {decided}");
        around.scene.wait("eviction.completed", "hog");
        around.scene.wait_for_end_of_shortage();
        let others =
            around.scene.stream.of("eviction.decided").filter(|event| event["subject"] != "default/hog");
        assert_eq!(others.count(), 0, "round {round}, {fault:?}");
        if fault != Fault::Churn {
            let killed = kernel::vmstat("oom_kill").unwrap();
            assert_eq!(killed, by_kernel, "round {round}, {fault:?}: the kernel killed as well");
        }
        drop((shop, cache, filler, hog));
        around.scene.catch_up();
        around.scene.clear(&["shop", "cache", "filler", "hog"]);
        // Without a gap, or this is an error.
        around.scene.daemon.events().unwrap();
        rounds.note(&around.scene.daemon).unwrap();
    }
}
