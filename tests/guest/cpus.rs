//! CPUs that containers have of their own, on two sockets of two cores with two threads each, which are NUMA nodes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    cgroup::ROOT,
    daemon::Daemon,
    process::Process,
    stream::{Stream, is},
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

/// A daemon with a root cgroup of its own.
struct Scene {
    name: &'static str,
    daemon: Daemon,
}

impl Scene {
    fn open(name: &'static str, options: &str) -> Self {
        let settings = format!(
            "mode: enforce\ncgroupRoot: /{name}\ncpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n{options}"
        );
        fs::create_dir(Path::new(ROOT).join(name)).unwrap();
        let folder = Path::new("/tmp/cpus").join(name);
        Self { name, daemon: Daemon::start(&folder, &settings).unwrap() }
    }

    /// A pod with one container, of these requests and limits.
    fn add(&self, name: &str, requests: &str, limits: &str) {
        self.daemon.manifest(&format!("{name}.yaml"), &manifest(name, requests, limits)).unwrap();
        self.daemon.wait_until_decided(&format!("default/{name}")).unwrap();
    }

    /// A Guaranteed pod of that many CPUs.
    fn add_whole(&self, name: &str, cpus: u32) {
        let amounts = format!("cpu: {cpus}, memory: 64Mi");
        self.add(name, &amounts, &amounts);
    }

    fn folder(&self, pod: &str) -> PathBuf {
        let kubepods = Path::new(ROOT).join(self.name).join("kubepods");
        let classes =
            ["", "burstable", "besteffort"].map(|class| kubepods.join(class).join(format!("pod{pod}")));
        classes.into_iter().find(|path| path.exists()).unwrap_or_default()
    }

    fn read(&self, pod: &str, file: &str) -> String {
        fs::read_to_string(self.folder(pod).join(file)).unwrap_or_default().trim_end().to_owned()
    }

    fn cpus(&self, pod: &str) -> BTreeSet<u32> {
        cpus(&self.read(pod, "app/cpuset.cpus"))
    }

    fn wait_for(&self, pod: &str, wanted: &BTreeSet<u32>) {
        let what = format!("{wanted:?} in cpuset.cpus of {pod}");
        wait_until(&what, || self.cpus(pod) == *wanted);
        assert_eq!(cpus(&self.read(pod, "app/cpuset.cpus.effective")), *wanted, "{what}");
    }

    fn hold(&self, pod: &str) -> Process {
        let target = format!("default/{pod}");
        self.daemon.exec_until_ready(&target, &["workload", "hold", "--size", "4Mi"]).unwrap()
    }

    fn pod(&self, name: &str) -> Value {
        let answer = self.daemon.get("/v1/pods").unwrap();
        let view: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        view["pods"].as_array().unwrap().iter().find(|pod| pod["name"] == name).cloned().unwrap_or_default()
    }

    /// What `enforcer plan --live` would write to `cpuset.cpus`, in its order: the pod and the CPUs. `beside` are manifests
    /// that the daemon does not have.
    fn planned(&self, beside: &[&str]) -> Vec<(String, BTreeSet<u32>)> {
        let folder = self.daemon.pods();
        let given = beside.iter().flat_map(|path| ["-f", path]).chain(["-f", folder.to_str().unwrap()]);
        let arguments: Vec<&str> = ["-o", "json", "plan", "--live"].into_iter().chain(given).collect();
        let output = self.daemon.verb(&arguments).output().unwrap();
        let live: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(live["problems"], serde_json::json!([]), "{live}");
        let steps = live["steps"].as_array().unwrap().iter();
        let of_cpus = steps.filter(|step| step["do"] == "write" && step["file"] == "cpuset.cpus");
        let written = of_cpus.map(|step| {
            let path = step["cgroup"].as_str().unwrap().trim_end_matches("/app");
            let (_, pod) = path.rsplit_once("/pod").unwrap();
            (pod.to_owned(), cpus(step["new"].as_str().unwrap()))
        });
        written.collect()
    }

    fn state(&self) -> Value {
        let text = fs::read_to_string(self.daemon.folder().join("state/cpu_manager_state")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn manifest(name: &str, requests: &str, limits: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: {name}}}\nspec:\n  containers:\n  - name: app\n    \
         resources: {{requests: {{{requests}}}, limits: {{{limits}}}}}\n"
    )
}

/// A list in the kernel's form.
fn cpus(list: &str) -> BTreeSet<u32> {
    let ranges = list.split(',').filter(|range| !range.is_empty());
    ranges
        .flat_map(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            from.parse().unwrap()..=to.parse().unwrap()
        })
        .collect()
}

/// The CPUs that a process may run on.
fn allowed(process: &Process) -> BTreeSet<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    cpus(list.trim())
}

/// The threads on a CPU's core.
fn core(cpu: u32) -> BTreeSet<u32> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    cpus(fs::read_to_string(path).unwrap().trim_end())
}

fn online() -> BTreeSet<u32> {
    cpus(fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim_end())
}

fn wait_for_degraded(stream: &mut Stream, place: &str) -> Value {
    let fits = |event: &Value| {
        is(event, "degraded.entered") && event["data"]["what"] == "cpus" && event["data"]["place"] == place
    };
    stream.wait_for(&format!("degraded.entered of {place}"), TIMEOUT, fits).unwrap()
}

#[guest_test(numa)]
fn guaranteed_pods_have_cpus_of_their_own_and_the_others_are_moved_at_once() {
    let mut scene = Scene::open("own", "");
    let all = online();
    assert_eq!(all.len(), 8, "{all:?}");
    scene.add("shared", "cpu: 100m, memory: 32Mi", "cpu: 500m, memory: 64Mi");
    scene.wait_for("shared", &all);
    let shared = scene.hold("shared");
    assert_eq!(allowed(&shared), all);

    assert_eq!(scene.planned(&[]), [], "all is as planned");
    // The plan for a pod that is yet to come takes its CPUs from the others before it gets them.
    let coming = "/tmp/cpus/coming.yaml";
    fs::write(coming, manifest("two", "cpu: 2, memory: 64Mi", "cpu: 2, memory: 64Mi")).unwrap();
    let planned = scene.planned(&[coming]);
    let pods: Vec<&str> = planned.iter().map(|(pod, _)| pod.as_str()).collect();
    assert_eq!(pods, ["shared", "two"], "{planned:?}");
    assert_eq!(scene.cpus("shared"), all, "nothing was written");

    scene.add_whole("two", 2);
    let two = scene.cpus("two");
    assert_eq!(two, core(*two.first().unwrap()), "a whole core");
    assert_eq!(two, planned[1].1, "those that were planned");
    assert_eq!(all.difference(&two).copied().collect::<BTreeSet<_>>(), planned[0].1);
    let rest: BTreeSet<u32> = all.difference(&two).copied().collect();
    scene.wait_for("shared", &rest);
    wait_until("the shared process on the other CPUs", || allowed(&shared) == rest);
    let own = scene.hold("two");
    assert_eq!(allowed(&own), two);
    for file in ["cpu.max", "app/cpu.max"] {
        assert_eq!(scene.read("two", file), "max 100000", "{file}");
    }
    assert_eq!(scene.read("shared", "app/cpu.max"), "50000 100000");

    scene.add_whole("four", 4);
    let four = scene.cpus("four");
    assert!(four.len() == 4 && four.is_disjoint(&two) && !four.contains(&0), "{four:?} beside {two:?}");
    let node = |cpu: &u32| cpu / 4;
    assert_eq!(four.iter().map(node).collect::<BTreeSet<_>>().len(), 1, "one NUMA node: {four:?}");
    let left: BTreeSet<u32> = rest.difference(&four).copied().collect();
    scene.wait_for("shared", &left);
    scene.add_whole("more", 2);
    let more = scene.pod("more");
    assert_eq!(more["state"], "rejected", "{more}");
    let reason = more["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("UnexpectedAdmissionError: Allocate failed due to not enough cpus"),
        "{reason}"
    );
    assert_eq!(cpus(scene.state()["entries"]["two"]["app"].as_str().unwrap()), two);

    // The daemon is killed, and nothing changes.
    scene.daemon.succeed().unwrap();
    for (pod, before) in [("two", &two), ("four", &four), ("shared", &left)] {
        scene.wait_for(pod, before);
    }
    assert_eq!((allowed(&own), allowed(&shared)), (two.clone(), left.clone()));
    let written = |event: &&Value| {
        is(event, "limits.restored") && event["data"]["files"].to_string().contains("cpuset.cpus")
    };
    let events = scene.daemon.events().unwrap();
    assert_eq!(events.iter().filter(written).count(), 0, "nothing had to be restored");

    // What a pod leaves behind is everybody's at once, and so is the refused pod's turn.
    scene.daemon.remove_manifest("more.yaml").unwrap();
    scene.daemon.remove_manifest("four.yaml").unwrap();
    scene.wait_for("shared", &rest);
    wait_until("the shared process on more CPUs", || allowed(&shared) == rest);
    scene.daemon.remove_manifest("two.yaml").unwrap();
    // It still runs there.
    assert_eq!(allowed(&own), two);
    drop(own);
    scene.wait_for("shared", &all);
    wait_until("the record", || scene.state()["entries"] == serde_json::json!({}));
    drop(shared);
    scene.daemon.stop().unwrap();
}

#[guest_test(numa)]
fn whole_cores_alone_are_given_where_that_is_asked_for() {
    let scene = Scene::open("cores", "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}");
    scene.add_whole("three", 3);
    let three = scene.pod("three");
    assert_eq!(three["state"], "rejected", "{three}");
    let reason = three["reason"].as_str().unwrap();
    assert!(reason.starts_with("SMTAlignmentError: SMT Alignment Error: requested 3 cpus"), "{reason}");
    let mut given = BTreeSet::new();
    for name in ["a", "b"] {
        scene.add_whole(name, 2);
        let own = scene.cpus(name);
        assert_eq!(own, core(*own.first().unwrap()), "{name}");
        assert!(own.is_disjoint(&given));
        given.extend(own);
    }
    scene.daemon.stop().unwrap();
    let scene = Scene::open("spread", "cpuManagerPolicyOptions: {distribute-cpus-across-cores: \"true\"}");
    scene.add_whole("two", 2);
    let cores: BTreeSet<BTreeSet<u32>> = scene.cpus("two").into_iter().map(core).collect();
    assert_eq!(cores.len(), 2, "{cores:?}");
    scene.daemon.stop().unwrap();
}

#[guest_test(numa)]
fn a_foreign_write_is_restored_and_an_offline_cpu_reported_once_without_a_change() {
    let scene = Scene::open("offline", "");
    let mut stream = scene.daemon.follow().unwrap();
    scene.add("shared", "cpu: 100m, memory: 32Mi", "cpu: 500m, memory: 64Mi");
    scene.add_whole("own", 2);
    let own = scene.cpus("own");
    let shared = scene.cpus("shared");
    fs::write(scene.folder("own").join("app/cpuset.cpus"), "0-7").unwrap();
    let restored = |event: &Value| {
        is(event, "limits.restored") && event["data"]["files"].to_string().contains("cpuset.cpus")
    };
    stream.wait_for("limits.restored of cpuset.cpus", TIMEOUT, restored).unwrap();
    scene.wait_for("own", &own);

    let cpu = *own.last().unwrap();
    let switch = format!("/sys/devices/system/cpu/cpu{cpu}/online");
    fs::write(&switch, "0").unwrap();
    let place = format!("cpu{cpu}");
    let event = wait_for_degraded(&mut stream, &place);
    let message = event["data"]["message"].as_str().unwrap();
    assert!(message.contains("container app of pod default/own"), "{message}");
    assert_eq!((scene.cpus("own"), scene.cpus("shared")), (own.clone(), shared.clone()));
    // No other pod gets it, and none the CPUs of others instead.
    scene.add_whole("other", 2);
    assert!(scene.cpus("other").is_disjoint(&own));
    fs::write(&switch, "1").unwrap();
    let is_back = |event: &Value| is(event, "degraded.left") && event["data"]["place"] == place.as_str();
    stream.wait_for("degraded.left", TIMEOUT, is_back).unwrap();
    scene.wait_for("own", &own);
    let entered = |event: &&Value| is(event, "degraded.entered") && event["data"]["what"] == "cpus";
    assert_eq!(stream.seen.iter().filter(entered).count(), 1, "one event");
    scene.daemon.stop().unwrap();
}
