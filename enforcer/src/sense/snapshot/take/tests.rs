use std::{fs, path::Path};

use super::*;
use crate::{
    cgroup::CgroupDir,
    sense::snapshot::{EventCounts, Missing, NodePaths, Split},
};

const SECOND: u64 = 1_000_000_000;
const PRESSURE: &str =
    "some avg10=1.25 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=3\n";

/// A node of ordinary files.
struct Scene(tempfile::TempDir);

impl Scene {
    fn new(swap_kb: u64) -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        scene.write(
            "meminfo",
            &format!(
                "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 5000 kB\nSwapTotal: {swap_kb} kB\nSwapFree: 0 kB\n"
            ),
        );
        scene.write("pressure", PRESSURE);
        scene.write(
            "zoneinfo",
            "Node 0, zone Normal\n  pages free 9\n min 1\n low 2\n high 3\n managed 100\n",
        );
        scene
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn snapshots(&self) -> Snapshots {
        let path = |file: &str| self.0.path().join(file);
        let paths =
            NodePaths { meminfo: path("meminfo"), pressure: path("pressure"), zoneinfo: path("zoneinfo") };
        Snapshots::new(NodeFiles::open(&paths).unwrap())
    }

    fn pod(&self, name: &str, current: u64, request: u64) -> Guarded {
        self.write(&format!("{name}/memory.current"), &format!("{current}\n"));
        self.write(&format!("{name}/memory.stat"), "anon 70\nfile 20\nshmem 3\ninactive_file 10\n");
        self.write(&format!("{name}/memory.swap.current"), "11\n");
        self.write(&format!("{name}/memory.events"), "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n");
        self.write(&format!("{name}/memory.pressure"), PRESSURE);
        self.open(name, request)
    }

    fn open(&self, name: &str, request: u64) -> Guarded {
        let path: &Path = &self.0.path().join(name);
        Guarded::open(&CgroupDir::unchecked(path).unwrap(), request).unwrap()
    }
}

#[test]
fn reports_what_the_files_say() {
    let scene = Scene::new(64);
    let mut snapshots = scene.snapshots();
    let (hog, calm) = (scene.pod("hog", 100, 50), scene.pod("calm", 100, 100));
    let (hog_id, calm_id) = (hog.id(), calm.id());
    snapshots.guard(vec![hog, calm]);
    let snapshot = snapshots.take(SECOND).clone();
    assert_eq!(snapshot.at_ns, SECOND);
    let node = &snapshot.node;
    assert_eq!(node.memory.unwrap().available_bytes, 5_000 * 1_024);
    assert_eq!(node.pressure.unwrap().some.avg10_centipercent, 125);
    assert_eq!((node.zones.each().len(), node.zones_missing), (1, None));
    assert_eq!(node.available_slope_bytes_per_second, None);
    let hog = snapshot.cgroup(hog_id).unwrap();
    assert_eq!((hog.current_bytes, hog.swap_bytes), (Ok(100), Ok(11)));
    let split = Split {
        anon_bytes: 70,
        file_bytes: 20,
        inactive_file_bytes: 10,
        shmem_bytes: 3,
        file_mapped_bytes: 0,
    };
    assert_eq!(hog.split, Ok(split));
    let counts = EventCounts { low: 1, high: 2, max: 3, oom: 4, oom_kill: 5, oom_group_kill: 0 };
    assert_eq!(hog.events, Ok(counts));
    assert_eq!(hog.pressure.unwrap().full.total_us, 3);
    // A pod within its request is not read in detail.
    assert_eq!(snapshot.cgroup(calm_id).unwrap().split, Err(Missing::Unread));
    assert_eq!(snapshot.cgroup(CgroupId(u64::MAX)), None);
}

#[test]
fn slopes_begin_with_the_second_look_and_follow_the_cgroup() {
    let scene = Scene::new(0);
    let mut snapshots = scene.snapshots();
    snapshots.guard(vec![scene.pod("hog", 100, 0)]);
    assert_eq!(snapshots.take(SECOND).cgroups[0].growth_bytes_per_second, None);
    scene.write("hog/memory.current", "300\n");
    scene.write("meminfo", "MemTotal: 8000 kB\nMemFree: 1000 kB\nMemAvailable: 4999 kB\n");
    let snapshot = snapshots.take(2 * SECOND);
    assert_eq!(snapshot.cgroups[0].growth_bytes_per_second, Some(200));
    assert_eq!(snapshot.node.available_slope_bytes_per_second, Some(-1_024));
    // Opened anew it is the same; another one under its name is not.
    snapshots.guard(vec![scene.open("hog", 0)]);
    scene.write("hog/memory.current", "500\n");
    assert_eq!(snapshots.take(3 * SECOND).cgroups[0].growth_bytes_per_second, Some(200));
    let old = scene.0.path().join("old");
    fs::rename(scene.0.path().join("hog"), &old).unwrap();
    snapshots.guard(vec![scene.pod("hog", 5, 0)]);
    assert_eq!(snapshots.take(4 * SECOND).cgroups[0].growth_bytes_per_second, None);
}

#[test]
fn what_cannot_be_read_is_missing_and_the_rest_is_there() {
    let scene = Scene::new(0);
    fs::remove_file(scene.0.path().join("pressure")).unwrap();
    scene.write("zoneinfo", "Node 0, zone Normal\n  pages free 9\n");
    let mut snapshots = scene.snapshots();
    snapshots.guard(vec![scene.pod("hog", 100, 0), scene.pod("other", 100, 0)]);
    scene.write("hog/memory.current", "max\n");
    scene.write("hog/memory.events", "low 1\n");
    let snapshot = snapshots.take(SECOND);
    assert_eq!(snapshot.node.pressure, Err(Missing::Absent));
    assert_eq!(snapshot.node.zones_missing, Some(Missing::Malformed));
    let hog = snapshot.cgroups[0];
    assert_eq!((hog.current_bytes, hog.events), (Err(Missing::Malformed), Err(Missing::Malformed)));
    assert!(hog.split.is_ok(), "a cgroup of unknown usage is read in detail");
    assert_eq!(hog.swap_bytes, Err(Missing::Unread), "a node without swap has none");
    assert!(snapshot.cgroups[1].current_bytes.is_ok());
}

#[test]
fn two_change_places() {
    let scene = Scene::new(0);
    let mut snapshots = scene.snapshots();
    snapshots.guard(vec![scene.pod("hog", 100, 0)]);
    let first = snapshots.take(SECOND).clone();
    scene.write("hog/memory.current", "300\n");
    let second = snapshots.take(2 * SECOND).clone();
    assert_ne!(first, second);
    assert_eq!((snapshots.latest(), snapshots.previous()), (&second, &first));
}
