//! Limits that are lowered under load, and values that others write.

use std::{
    fs,
    path::{Path, PathBuf},
};

use enforcer_tests::{
    cgroup::Cgroup,
    daemon::Daemon,
    host::Swap,
    load::Load,
    pods::{Container, pod},
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

fn daemon(name: &str, settings: &str) -> Daemon {
    let folder = Path::new("/tmp/limits").join(name);
    Daemon::start(&folder, &format!("mode: enforce\n{settings}")).unwrap()
}

/// A scene that waits for `limits.applied` gives its pod a name of its own: a pod of the same name from an earlier scene may
/// already have these limits, and then nothing is written.
fn limited(name: &str, limit: &str) -> String {
    pod(name, 0, &[Container { name: "app", requests: "", limits: &format!("memory: {limit}") }])
}

/// The container's cgroup, once it is there.
fn app(daemon: &Daemon, pod: &str) -> PathBuf {
    let pods = daemon.verb(&["-o", "json", "plan", "-f"]).arg(daemon.pods()).output().unwrap();
    let plan: Value = serde_json::from_slice(&pods.stdout).unwrap();
    let pods = plan["pods"].as_array().unwrap();
    let pod = pods.iter().find(|planned| planned["name"] == pod).unwrap();
    let path = pod["containers"][0]["cgroup"]["path"].as_str().unwrap();
    let cgroup = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    wait_until("the container's cgroup", || cgroup.join("memory.max").exists());
    cgroup
}

fn read(cgroup: &Path, file: &str) -> String {
    fs::read_to_string(cgroup.join(file)).unwrap().trim_end().to_owned()
}

fn bytes(cgroup: &Path, file: &str) -> u64 {
    read(cgroup, file).parse().unwrap()
}

const MIB: u64 = 1 << 20;

#[guest_test(daemon)]
fn a_limit_below_what_cannot_be_reclaimed_kills_nothing_and_is_reported() {
    let daemon = daemon("held", "");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("web.yaml", &limited("web", "512Mi")).unwrap();
    let mut load =
        Process::new(daemon.exec("default/web", &["workload", "hold", "--huge", "--size", "300Mi"]).unwrap());
    let app = app(&daemon, "web");
    wait_until("300Mi in use", || bytes(&app, "memory.current") > 300 * MIB);

    daemon.manifest("web.yaml", &limited("web", "128Mi")).unwrap();
    let is_it = |event: &Value| {
        let message = event["data"]["message"].as_str().unwrap_or_default();
        message.contains("/app/memory.max stays above 134217728: ") && message.contains(" bytes are in use")
    };
    let reported = stream.wait_for("degraded.entered", TIMEOUT, is_it).unwrap();
    assert_eq!(reported["data"]["what"], "limits");
    assert!(load.lives().unwrap());
    assert_eq!(bytes(&app, "memory.max"), 512 * MIB);
    wait_until("memory.high back at its value", || read(&app, "memory.high") == "max");
    assert!(read(&app, "memory.events").contains("oom_kill 0"), "{}", read(&app, "memory.events"));

    // Back to what fits, and it is no problem any longer.
    daemon.manifest("web.yaml", &limited("web", "384Mi")).unwrap();
    let is_over = |event: &Value| is(event, "degraded.left") && is_it(event);
    stream.wait_for("degraded.left", TIMEOUT, is_over).unwrap();
    wait_until("the new limit", || bytes(&app, "memory.max") == 384 * MIB);
    assert!(load.lives().unwrap());
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_another_writes_is_put_right_and_later_if_it_insists() {
    let daemon = daemon("drift", "");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("drift.yaml", &limited("drift", "64Mi")).unwrap();
    stream.wait_for_pod("limits.applied", "default/drift", TIMEOUT).unwrap();
    let app = app(&daemon, "drift");
    wait_until("the limit", || read(&app, "memory.max") == "67108864");
    let of = |kind: &'static str, pointer: &'static str, value: &'static str| {
        move |event: &Value| is(event, kind) && event.pointer(pointer).is_some_and(|found| found == value)
    };
    for foreign in ["max", "134217728", "268435456"] {
        fs::write(app.join("memory.max"), foreign).unwrap();
        wait_until("the planned value", || read(&app, "memory.max") == "67108864");
        let drifted = of("limits.drifted", "/data/new", foreign);
        let drifted = stream.wait_for("limits.drifted", TIMEOUT, drifted).unwrap();
        assert_eq!(drifted["subject"], "default/drift");
        assert_eq!(drifted["data"]["old"], "67108864", "{drifted}");
        assert_eq!(drifted["data"]["action"], "restored", "{drifted}");
        let restored = of("limits.restored", "/data/files/0/old", foreign);
        let restored = stream.wait_for("limits.restored", TIMEOUT, restored).unwrap();
        assert_eq!(restored["data"]["files"][0]["new"], "67108864", "{restored}");
    }
    fs::write(app.join("memory.max"), "536870912").unwrap();
    let delayed = of("limits.drifted", "/data/action", "delayed");
    let delayed = stream.wait_for("limits.drifted", TIMEOUT, delayed).unwrap();
    assert_eq!(delayed["data"]["new"], "536870912");
    stream.wait_for("the contest", TIMEOUT, of("degraded.entered", "/data/what", "drift")).unwrap();
    wait_until("the planned value", || read(&app, "memory.max") == "67108864");
    stream.wait_for("its end", TIMEOUT, of("degraded.left", "/data/what", "drift")).unwrap();
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_another_writes_is_only_reported_if_it_is_to_be() {
    let daemon = daemon("report", "onDrift: report");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("report.yaml", &limited("report", "64Mi")).unwrap();
    stream.wait_for_pod("limits.applied", "default/report", TIMEOUT).unwrap();
    let app = app(&daemon, "report");
    wait_until("the limit", || read(&app, "memory.max") == "67108864");
    fs::write(app.join("memory.max"), "max").unwrap();
    let drifted = stream.wait_for_pod("limits.drifted", "default/report", TIMEOUT).unwrap();
    assert_eq!(drifted["data"]["action"], "reported");
    assert_eq!(read(&app, "memory.max"), "max");
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_limit_below_what_can_be_reclaimed_is_reached_without_a_kill() {
    let _swap = Swap::on(1 << 30).unwrap();
    let daemon = daemon("reclaimed", "memorySwap: {swapBehavior: LimitedSwap}");
    let manifest = |request: &str, limit: &str| {
        let (requests, limits) = (format!("memory: {request}"), format!("memory: {limit}"));
        pod("web", 0, &[Container { name: "app", requests: &requests, limits: &limits }])
    };
    daemon.manifest("web.yaml", &manifest("448Mi", "512Mi")).unwrap();
    let mut load =
        Process::new(daemon.exec("default/web", &["workload", "hold", "--size", "300Mi"]).unwrap());
    let app = app(&daemon, "web");
    wait_until("300Mi in use", || bytes(&app, "memory.current") > 300 * MIB);
    daemon.manifest("web.yaml", &manifest("248Mi", "256Mi")).unwrap();
    wait_until("the new limit", || bytes(&app, "memory.max") == 256 * MIB);
    wait_until("memory.high back at its value", || read(&app, "memory.high") == "max");
    assert!(load.lives().unwrap());
    assert!(read(&app, "memory.events").contains("oom_kill 0"), "{}", read(&app, "memory.events"));
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn kubepods_own_limit_is_lowered_no_further_than_it_fits() {
    let name = "node";
    let root = Cgroup::create(name).unwrap();
    let daemon = daemon(name, "cgroupRoot: /node");
    daemon
        .manifest("web.yaml", &pod("web", 0, &[Container { name: "app", requests: "", limits: "" }]))
        .unwrap();
    let mut load =
        Process::new(daemon.exec("default/web", &["workload", "hold", "--huge", "--size", "300Mi"]).unwrap());
    let app = app(&daemon, "web");
    wait_until("300Mi in use", || bytes(&app, "memory.current") > 300 * MIB);
    let kubepods = Path::new("/sys/fs/cgroup/node/kubepods");
    let before = bytes(kubepods, "memory.max");
    daemon.stop().unwrap();

    // As an operator who reserves nearly everything for the system.
    let reserved = before / MIB - 200;
    let settings = format!("cgroupRoot: /node\nsystemReserved: {{memory: {reserved}Mi}}");
    let daemon = self::daemon(name, &settings);
    let mut stream = daemon.follow().unwrap();
    let is_it = |event: &Value| {
        let message = event["data"]["message"].as_str().unwrap_or_default();
        message.contains("/node/kubepods/memory.max stays above ")
    };
    stream.wait_for("degraded.entered", TIMEOUT, is_it).unwrap();
    assert!(load.lives().unwrap());
    assert_eq!(bytes(kubepods, "memory.max"), before);
    daemon.stop().unwrap();
    drop((load, root));
}

#[guest_test(daemon)]
fn an_adopted_cgroup_has_its_own_values_back_when_the_pod_goes() {
    let service = Cgroup::create("adopted/web.service").unwrap();
    service.write("memory.max", "402653184").unwrap();
    let mut load = Load::start(&service, &["hold", "--size", "16Mi"]).unwrap();
    load.wait_for("ready").unwrap();
    let score =
        || fs::read_to_string(format!("/proc/{}/oom_score_adj", load.pid())).unwrap().trim().to_owned();
    let before = score();

    let daemon = daemon("adopted", "");
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations: {enforcer.dev/cgroup: /adopted/web.service}\n\
                    spec:\n  containers:\n  - name: app\n    resources: {limits: {cpu: 500m, memory: 256Mi}}\n";
    daemon.manifest("web.yaml", manifest).unwrap();
    let is = |file: &'static str, value: &'static str| {
        let service = &service;
        move || service.read(file).unwrap() == value
    };
    wait_until("the pod's limit", is("memory.max", "268435456"));
    wait_until("the pod's score", || score() == "-997");
    let pods = daemon.verb(&["-o", "json", "plan", "--live"]).output().unwrap();
    let live: Value = serde_json::from_slice(&pods.stdout).unwrap();
    assert_eq!(live["steps"], Value::Array(vec![]), "{live}");

    // Another start knows what it held before, also if the manifest went meanwhile.
    drop(daemon);
    fs::remove_file("/tmp/limits/adopted/pods/web.yaml").unwrap();
    let daemon = self::daemon("adopted", "");
    wait_until("the service's own limit", is("memory.max", "402653184"));
    assert_eq!(service.number("cgroup.events", "populated").unwrap(), 1);

    // While it runs, its processes have their own score back too.
    fs::write(format!("/proc/{}/oom_score_adj", load.pid()), &before).unwrap();
    daemon.manifest("web.yaml", manifest).unwrap();
    wait_until("the pod's limit", is("memory.max", "268435456"));
    wait_until("the pod's score", || score() == "-997");
    daemon.remove_manifest("web.yaml").unwrap();
    wait_until("the service's own limit", is("memory.max", "402653184"));
    wait_until("the service's own score", || score() == before);
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn what_the_kubelet_should_have_written_is_reported_and_not_written() {
    let kubepods = Cgroup::create("audited/kubepods").unwrap();
    kubepods.write("cpu.weight", "7").unwrap();
    let daemon = daemon("audited", "ownership: kubelet\ncgroupRoot: /audited");
    let mut stream = daemon.follow().unwrap();
    let is_it = |event: &Value| {
        is(event, "limits.drifted")
            && event["data"]["cgroup"] == "/audited/kubepods"
            && event["data"]["file"] == "cpu.weight"
    };
    let reported = stream.wait_for("limits.drifted", TIMEOUT, is_it).unwrap();
    assert_eq!(
        (&reported["data"]["new"], &reported["data"]["action"]),
        (&"7".into(), &"audited".into()),
        "{reported}"
    );
    // Another value is another difference, noticed when it is written.
    kubepods.write("cpu.weight", "8").unwrap();
    let is_other = |event: &Value| is_it(event) && event["data"]["new"] == "8";
    stream.wait_for("limits.drifted", TIMEOUT, is_other).unwrap();
    assert_eq!(kubepods.read("cpu.weight").unwrap(), "8");
    assert!(!kubepods.path().join("burstable").exists());
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_changed_configuration_is_in_force_after_a_sighup_and_a_bad_one_never() {
    let daemon = daemon("reload", "");
    let mut stream = daemon.follow().unwrap();
    daemon.manifest("web.yaml", &limited("web", "64Mi")).unwrap();
    let pod = app(&daemon, "web").parent().unwrap().to_owned();
    wait_until("no limit of processes", || read(&pod, "pids.max") == "max");
    let config = Path::new("/tmp/limits/reload/config.yaml");
    let text = fs::read_to_string(config).unwrap();
    let reload = |with: &str| {
        fs::write(config, format!("{text}{with}\n")).unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    };
    reload("podPidsLimit: many");
    let rejected = stream.wait_for("config.rejected", TIMEOUT, |event| is(event, "config.rejected")).unwrap();
    assert!(rejected["data"]["message"].as_str().unwrap().contains("podPidsLimit"), "{rejected}");
    reload("podPidsLimit: 50");
    let is_changed = |event: &Value| {
        is(event, "config.loaded")
            && event["data"]["message"]
                .as_str()
                .is_some_and(|said| said.starts_with("changed: podPidsLimit: "))
    };
    stream.wait_for("config.loaded", TIMEOUT, is_changed).unwrap();
    wait_until("the limit of processes", || read(&pod, "pids.max") == "50");
    reload("");
    wait_until("no limit of processes again", || read(&pod, "pids.max") == "max");
    daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn everything_is_given_back_on_request() {
    let folder = Path::new("/tmp/limits/restore");
    let settings = "mode: enforce\ncgroupRoot: /restore";
    let root = Cgroup::create("restore").unwrap();
    let daemon = Daemon::start_with(folder, settings, &["--on-exit", "restore"]).unwrap();
    daemon.manifest("web.yaml", &limited("web", "64Mi")).unwrap();
    daemon.manifest("idle.yaml", &limited("idle", "64Mi")).unwrap();
    let load = Process::new(daemon.exec("default/web", &["workload", "hold", "--size", "4Mi"]).unwrap());
    let (web, idle) = (app(&daemon, "web"), app(&daemon, "idle"));
    wait_until("the process", || read(&web, "cgroup.events").contains("populated 1"));
    daemon.stop().unwrap();
    assert_eq!(read(&web, "memory.max"), "max");
    assert_eq!(read(web.parent().unwrap(), "cpu.weight"), "100");
    assert!(!idle.exists() && !idle.parent().unwrap().exists());
    drop(load);
    drop(root);
}
