//! Protected memory: whose page cache the kernel takes when a neighbour needs more.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use enforcer_tests::{disk::Disk, kernel, plan::Planned, process::Process, wait::TIMEOUT};
use rustix::process::Signal;

use super::Scene;

const MIB: u64 = 1 << 20;

/// All that the pods have: less than their files and the neighbours' memory together.
const KUBEPODS_BYTES: u64 = 384 * MIB;

/// The page cache of each pod that does nothing but keep it, by class.
const GUARANTEED_BYTES: u64 = 96 * MIB;
const BURSTABLE_BYTES: u64 = 80 * MIB;
const BESTEFFORT_BYTES: u64 = 120 * MIB;

/// A pod of each class has read a file and does nothing. Neighbours then take memory that cannot be reclaimed: the first as
/// much as the BestEffort pod's file has and more, the second more than all files have.
struct Pressure {
    scene: Scene,
    idle: [(&'static str, Process); 3],
    neighbours: Vec<Process>,
    _disks: [Disk; 3],
}

impl Pressure {
    fn begin(name: &'static str, settings: &str) -> Self {
        let node_bytes = kernel::meminfo_bytes("MemTotal").unwrap();
        let settings = format!(
            "systemReserved: {{memory: \"{}\"}}\nevictionHard: {{memory.available: \"0%\"}}\n{settings}",
            node_bytes - KUBEPODS_BYTES
        );
        let scene = Scene::open(name, &settings);
        for (pod, resources) in [
            ("bank", "{limits: {cpu: \"1\", memory: 128Mi}}"),
            ("shop", "{requests: {memory: 96Mi}}"),
            ("batch", "{}"),
            ("first", "{}"),
            ("second", "{}"),
        ] {
            let manifest = format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, uid: {pod}}}\nspec:\n  containers:\n  - name: app\n    \
                 resources: {resources}\n"
            );
            scene.daemon.manifest(&format!("{pod}.yaml"), &manifest).unwrap();
        }
        Planned::of(&scene.daemon).unwrap().wait_until_held().unwrap();
        let disks =
            [GUARANTEED_BYTES, BURSTABLE_BYTES, BESTEFFORT_BYTES].map(|bytes| Disk::new(bytes).unwrap());
        let reader = |pod: &'static str, disk: &Disk, bytes: u64| {
            let (file, size) = (disk.path(), bytes.to_string());
            let read = ["workload", "cache", "--file", &file, "--size", &size];
            let mut process = scene.daemon.exec_until_ready(&format!("default/{pod}"), &read).unwrap();
            process.signal(Signal::STOP).unwrap();
            process.wait_until_stopped(TIMEOUT).unwrap();
            (pod, process)
        };
        let idle = [
            reader("bank", &disks[0], GUARANTEED_BYTES),
            reader("shop", &disks[1], BURSTABLE_BYTES),
            reader("batch", &disks[2], BESTEFFORT_BYTES),
        ];
        let pressure = Self { scene, idle, neighbours: Vec::new(), _disks: disks };
        let whole = pressure.kept_percent();
        assert!(whole.iter().all(|percent| *percent >= 95), "{whole:?} % of the files are cached");
        pressure
    }

    /// How much of the file of each idle pod is still in memory: Guaranteed, Burstable, BestEffort.
    fn kept_percent(&self) -> [u64; 3] {
        let of = |cgroup: &str, whole_bytes: u64| {
            let path = format!("/{}/kubepods/{cgroup}", self.scene.name);
            kernel::cgroup_counter(&path, "memory.stat", "file").unwrap() * 100 / whole_bytes
        };
        [
            of("podbank", GUARANTEED_BYTES),
            of("burstable/podshop", BURSTABLE_BYTES),
            of("besteffort/podbatch", BESTEFFORT_BYTES),
        ]
    }

    /// The first neighbour takes 180 MiB, of which the node has about 90 left.
    fn first(&mut self) -> [u64; 3] {
        let hold = ["workload", "hold", "--size", "180Mi"];
        self.neighbours.push(self.scene.daemon.exec_until_ready("default/first", &hold).unwrap());
        let kept = self.kept_percent();
        println!("{}: beside a neighbour {kept:?} % are kept", self.scene.name);
        kept
    }

    /// The second takes 160 MiB more, or dies of it, or the first does; then this many neighbours are left.
    fn second(&mut self, left: usize) -> [u64; 3] {
        let hold = ["workload", "spike", "--size", "160Mi"];
        let child = self.scene.daemon.exec("default/second", &hold).unwrap();
        self.neighbours.push(Process::new(child));
        let anon_bytes = |pod: &str| {
            let path = format!("/{}/kubepods/besteffort/pod{pod}", self.scene.name);
            kernel::cgroup_counter(&path, "memory.stat", "anon").unwrap()
        };
        let start = Instant::now();
        let living = loop {
            let living =
                self.neighbours.iter_mut().filter_map(|one| one.lives().ok()).filter(|lives| *lives).count();
            if living == 1 || anon_bytes("first") + anon_bytes("second") >= 340 * MIB {
                break living;
            }
            assert!(start.elapsed() < TIMEOUT, "the pressure does not end\n{}", self.state());
            thread::sleep(Duration::from_millis(50));
        };
        let kept = self.kept_percent();
        println!("{}: beside two neighbours, of which {living} live, {kept:?} % are kept", self.scene.name);
        assert_eq!(living, left, "neighbours that live: {kept:?} % of the files are kept");
        kept
    }

    /// What the kernel says of the pods' cgroup and of the neighbours' processes.
    fn state(&self) -> String {
        let root = format!("/sys/fs/cgroup/{}/kubepods", self.scene.name);
        let files = ["memory.current", "memory.events", "memory.stat"].map(|file| format!("{root}/{file}"));
        let ids = self.neighbours.iter().map(Process::id);
        let processes = ids.flat_map(|id| ["status", "stack"].map(|file| format!("/proc/{id}/{file}")));
        let read = |path: String| format!("{path}:\n{}", fs::read_to_string(&path).unwrap_or_default());
        files.into_iter().chain(processes).map(read).collect()
    }

    fn end(mut self) {
        for (pod, process) in &mut self.idle {
            assert!(process.lives().unwrap(), "{pod} was killed");
        }
        drop((self.neighbours, self.idle));
        self.scene.daemon.stop().unwrap();
    }
}

/// Without protection the neighbour has all memory that can be taken from others.
#[guest_test(daemon)]
fn without_memory_qos_a_neighbour_takes_every_pods_cache() {
    let mut pressure = Pressure::begin("unprotected", "");
    let [bank, shop, _] = pressure.first();
    assert!(bank < 95 || shop < 95, "{bank} % and {shop} % are kept");
    let [bank, shop, _] = pressure.second(2);
    assert!(bank < 50 && shop < 60, "{bank} % and {shop} % are kept");
    pressure.end();
}

/// `memory.low` gives way only when there is nothing else to take, `memory.min` never does.
#[guest_test(kernel)]
fn with_memory_qos_a_guaranteed_pods_cache_survives_a_neighbour() {
    let mut pressure = Pressure::begin("tiered", "memoryReservationPolicy: TieredReservation");
    // What protects pods from memory outside of kubepods, which nothing here takes.
    assert_eq!(pressure.scene.read("memory.min"), (224 * MIB).to_string());
    assert_eq!(pressure.scene.read("podbank/memory.min"), (128 * MIB).to_string());
    assert_eq!(pressure.scene.read("burstable/podshop/memory.low"), (96 * MIB).to_string());
    let [bank, shop, batch] = pressure.first();
    assert!(bank >= 95 && shop >= 95 && batch < 80, "{bank} %, {shop} % and {batch} % are kept");
    let [bank, shop, _] = pressure.second(1);
    assert!(bank >= 95 && shop < 50, "{bank} % and {shop} % are kept");
    pressure.end();
}

/// With `memoryProtection: request` the Burstable pod keeps its request as well.
#[guest_test(daemon)]
fn memory_min_for_every_pod_protects_a_burstable_pods_cache_too() {
    let mut pressure = Pressure::begin("requested", "memoryProtection: request");
    for (file, mib) in [
        ("memory.min", 224),
        ("podbank/memory.min", 128),
        ("podbank/app/memory.min", 128),
        ("burstable/memory.min", 96),
        ("burstable/podshop/memory.min", 96),
        ("burstable/podshop/app/memory.min", 96),
    ] {
        assert_eq!(pressure.scene.read(file), (mib * MIB).to_string(), "{file}");
    }
    assert_eq!(pressure.scene.read("burstable/memory.low"), "0");
    assert_eq!(pressure.scene.read("besteffort/podbatch/memory.min"), "0");
    let [bank, shop, batch] = pressure.first();
    assert!(bank >= 95 && shop >= 95 && batch < 80, "{bank} %, {shop} % and {batch} % are kept");
    let [bank, shop, _] = pressure.second(1);
    assert!(bank >= 95 && shop >= 95, "{bank} % and {shop} % are kept");
    pressure.end();
}
