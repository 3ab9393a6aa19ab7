//! Slices and scopes have the values that are planned, in the files and in systemd, and keep them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use enforcer_tests::{
    daemon::Daemon,
    host::HugePages,
    plan::{self, Planned},
    process::Process,
    rounds::Rounds,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{Scene, folder, pod, read, reload, settings_of, shown, text, wait_until_in};

const PODS: &str = include_str!("../enforcement/pods.yaml");

const SETTINGS: &str = "memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9\npodPidsLimit: 64\n\
                        memorySwap: {swapBehavior: LimitedSwap}";

/// The property that systemd has for a file.
fn properties(file: &str, value: &str) -> Vec<(&'static str, u64)> {
    let number = |text: &str| if text == "max" { u64::MAX } else { text.parse().unwrap() };
    match file {
        "cpu.weight" => vec![("CPUWeight", number(value))],
        "cpu.max" => {
            let (quota, period) = value.split_once(' ').unwrap();
            let per_second = match quota {
                "max" => u64::MAX,
                quota => number(quota) * 1_000_000 / number(period),
            };
            vec![("CPUQuotaPerSecUSec", per_second)]
        }
        "memory.min" => vec![("MemoryMin", number(value))],
        "memory.low" => vec![("MemoryLow", number(value))],
        "memory.high" => vec![("MemoryHigh", number(value))],
        "memory.max" => vec![("MemoryMax", number(value))],
        "memory.swap.max" => vec![("MemorySwapMax", number(value))],
        "pids.max" => vec![("TasksMax", number(value))],
        _ => Vec::new(),
    }
}

/// What systemd itself has, as the bus carries it.
fn held_by_systemd(unit: &str, names: &[&str]) -> Vec<u64> {
    const SYSTEMD: &str = "org.freedesktop.systemd1";
    let busctl = |arguments: &[&str]| -> String {
        let output = Command::new("busctl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let manager = "org.freedesktop.systemd1.Manager";
    let object = busctl(&["call", SYSTEMD, "/org/freedesktop/systemd1", manager, "GetUnit", "s", unit]);
    let object = object.trim().trim_start_matches("o \"").trim_end_matches('"');
    let kind = match unit.rsplit('.').next() {
        Some("slice") => "Slice",
        Some("service") => "Service",
        _ => "Scope",
    };
    let mut arguments = vec!["get-property", SYSTEMD, object];
    let interface = format!("{SYSTEMD}.{kind}");
    arguments.push(&interface);
    arguments.extend(names);
    busctl(&arguments).lines().map(|line| line.trim_start_matches("t ").parse().unwrap()).collect()
}

/// The planned files that systemd keeps, beside what they hold otherwise.
fn lost(planned: &Planned) -> Vec<String> {
    let kept = planned.cgroups.iter().flat_map(|(path, files)| {
        files.iter().filter(|(file, value)| !properties(file, value).is_empty()).map(move |file| (path, file))
    });
    kept.filter_map(|(path, (file, value))| {
        let held = fs::read_to_string(plan::folder(path).join(file)).unwrap_or_default();
        let wanted = plan::as_read(file, value).unwrap();
        (held.trim_end() != wanted).then(|| format!("{path}/{file} holds {held:?}, planned is {wanted:?}"))
    })
    .collect()
}

/// A process in every container of every admitted pod, a pod's at a time: an emulated systemd is slow.
fn populate(scene: &Scene) -> BTreeMap<String, Process> {
    let mut processes = BTreeMap::new();
    for pod in scene.pods().iter().filter(|pod| pod["state"] == "active") {
        let name = |value: &Value| value.as_str().unwrap().to_owned();
        let containers = pod["containers"].as_array().unwrap();
        let started: Vec<_> = containers
            .iter()
            .map(|container| {
                let target = [&pod["namespace"], &pod["name"], &container["name"]].map(name).join("/");
                (name(&container["cgroup"]), scene.exec(&target, &["sleep", "1000"]))
            })
            .collect();
        for (path, process) in started {
            wait_until_in(&process, &plan::folder(&path));
            processes.insert(path, process);
        }
    }
    processes
}

#[guest_test(systemd, repeats)]
fn every_value_is_what_the_plan_says_and_survives_a_reload() {
    let _pages = HugePages::reserve(4).unwrap();
    let scene = Scene::open("values", SETTINGS);
    scene.daemon.manifest("pods.yaml", PODS).unwrap();
    let planned = Planned::of(&scene.daemon).unwrap();
    let slices: BTreeSet<_> = planned.scores.keys().map(|scope| scope.rsplit_once('/').unwrap().0).collect();
    wait_until("the pods' slices", || {
        scene.pods().iter().filter(|pod| pod["state"] == "active").count() == slices.len()
    });
    let mut processes = populate(&scene);
    assert_eq!(processes.len(), planned.scores.len());
    planned.wait_until_held().unwrap();

    for (path, files) in &planned.cgroups {
        let unit = path.rsplit('/').next().unwrap();
        let expected: Vec<_> = files.iter().flat_map(|(file, value)| properties(file, value)).collect();
        let names: Vec<_> = expected.iter().map(|(name, _)| *name).collect();
        let values: Vec<_> = expected.iter().map(|(_, value)| *value).collect();
        assert!(!names.is_empty(), "{unit}");
        assert_eq!(held_by_systemd(unit, &names), values, "{unit}: {names:?}");
        assert_eq!(shown(unit, "ControlGroup"), *path);
    }

    // What systemd keeps was never away; what it has reset is put right, however often.
    let mut rounds = Rounds::new(1, 50);
    while rounds.next().is_some() {
        reload();
        assert_eq!(lost(&planned), Vec::<String>::new());
        planned.wait_until_held().unwrap();
        rounds.note(&scene.daemon).unwrap();
    }
    let Scene { daemon, slice, name: _ } = scene;
    daemon.stop().unwrap();
    reload();
    assert_eq!(lost(&planned), Vec::<String>::new(), "systemd alone");
    for (path, process) in &mut processes {
        assert!(process.lives().unwrap(), "the process of {path} has ended");
    }
    drop(slice);
}

#[guest_test(systemd)]
fn a_changed_manifest_changes_units_and_no_processes() {
    const UNITS: [&str; 2] = ["changed-kubepods-burstable-podweb.slice", "enforcer-web-app.scope"];
    let scene = Scene::open("changed", "");
    let plan = |limits: &str| {
        let resources = format!("{{requests: {{cpu: 100m, memory: 16Mi}}, limits: {{{limits}}}}}");
        scene.daemon.manifest("web.yaml", &pod("web", &resources)).unwrap();
    };
    plan("memory: 64Mi, cpu: 200m");
    let slice = scene.slice("burstable-podweb");
    let folders = [slice.clone(), slice.join("enforcer-web-app.scope")];
    let mut process = scene.exec("default/web", &["workload", "hold", "--size", "8Mi"]);
    wait_until_in(&process, &folders[1]);
    let held = |unit| held_by_systemd(unit, &["MemoryMax", "CPUQuotaPerSecUSec"]);
    for (limits, memory_max, cpu_max, properties) in [
        ("memory: 128Mi, cpu: 500m", "134217728", "50000 100000", [128 << 20, 500_000]),
        // In whole hundredths, as systemd has it.
        ("memory: 32Mi, cpu: 105m", "33554432", "11000 100000", [32 << 20, 110_000]),
        // What is planned no longer is as in a new unit.
        ("", "max", "max 100000", [u64::MAX, u64::MAX]),
        ("memory: 64Mi", "67108864", "max 100000", [64 << 20, u64::MAX]),
    ] {
        plan(limits);
        for (unit, folder) in UNITS.iter().zip(&folders) {
            wait_until(&format!("{limits} in {unit}"), || {
                read(&folder.join("memory.max")) == memory_max && read(&folder.join("cpu.max")) == cpu_max
            });
            assert_eq!(held(unit), properties, "{limits}: {unit}");
        }
    }
    // A limit below what is in use is systemd's to write as little as it is ours.
    drop(process);
    wait_until("the scope's end", || !folders[1].exists());
    process = scene.exec("default/web", &["workload", "hold", "--size", "40Mi"]);
    wait_until_in(&process, &folders[1]);
    let current = || read(&folders[1].join("memory.current")).parse::<u64>().unwrap();
    wait_until("use", || current() > 40 << 20);
    let mut stream = scene.daemon.follow().unwrap();
    plan("memory: 24Mi");
    stream
        .wait_for("word of it", TIMEOUT, |event| {
            event["data"]["message"].as_str().is_some_and(|reported| reported.contains("memory.max"))
        })
        .unwrap();
    for unit in UNITS {
        assert_eq!(held_by_systemd(unit, &["MemoryMax"]), [64 << 20], "{unit}");
    }
    assert!(process.lives().unwrap());
    scene.daemon.stop().unwrap();
}

/// What only files hold is put right while the daemon runs, whoever writes it.
#[guest_test(systemd)]
fn a_foreign_write_and_a_foreign_property_are_put_right() {
    let scene = Scene::open("foreign", "");
    scene.daemon.manifest("web.yaml", &pod("web", "{limits: {cpu: 200m, memory: 64Mi}}")).unwrap();
    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    let process = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&process, &scope);
    assert_eq!(read(&scope.join("memory.oom.group")), "1");
    fs::write(scope.join("memory.oom.group"), "0").unwrap();
    wait_until("memory.oom.group", || read(&scope.join("memory.oom.group")) == "1");
    let unit = "enforcer-web-app.scope";
    let set = super::systemctl(&["set-property", "--runtime", unit, "MemoryMax=1G", "CPUWeight=7"]).unwrap();
    assert!(set.status.success(), "{}", text(&set.stderr));
    wait_until("MemoryMax", || held_by_systemd(unit, &["MemoryMax"]) == [64 << 20]);
    wait_until("CPUWeight", || {
        held_by_systemd(unit, &["CPUWeight"])[0].to_string() == read(&scope.join("cpu.weight"))
    });
    assert_eq!(read(&scope.join("memory.max")), (64_u64 << 20).to_string());
    assert_ne!(read(&scope.join("cpu.weight")), "7");
    scene.daemon.stop().unwrap();
}

/// A service that a pod adopts has its values as properties, and has its own back when the pod goes.
#[guest_test(systemd)]
fn an_adopted_service_is_reported_to_systemd_too() {
    let scene = Scene::open("adopts", "");
    let unit = "batch@one.service";
    fs::create_dir_all("/run/systemd/system").unwrap();
    let text_of_unit =
        "[Service]\nExecStart=/usr/local/bin/workload hold --size 8Mi\nMemoryMax=1G\nCPUWeight=200\n";
    fs::write("/run/systemd/system/batch@.service", text_of_unit).unwrap();
    reload();
    let started = super::systemctl(&["start", unit]).unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    let path = shown(unit, "ControlGroup");
    let service = plan::folder(&path);
    let manifest = pod("batch", "{limits: {cpu: 200m, memory: 64Mi}}");
    let annotated = format!("{{name: batch, annotations: {{cgroup.enforcer.dev/app: {path}}},");
    scene.daemon.manifest("batch.yaml", &manifest.replace("{name: batch,", &annotated)).unwrap();
    let memory_max = || read(&service.join("memory.max"));
    wait_until("the pod's limit", || memory_max() == (64 << 20).to_string());
    reload();
    assert_eq!(memory_max(), (64 << 20).to_string());
    assert_eq!(held_by_systemd(unit, &["MemoryMax", "CPUQuotaPerSecUSec"]), [64 << 20, 200_000]);
    wait_until("memory.oom.group", || read(&service.join("memory.oom.group")) == "1");
    scene.daemon.remove_manifest("batch.yaml").unwrap();
    wait_until("its own limit", || memory_max() == (1 << 30).to_string());
    wait_until("its own weight", || read(&service.join("cpu.weight")) == "200");
    let given_back = held_by_systemd(unit, &["MemoryMax", "CPUQuotaPerSecUSec", "CPUWeight"]);
    assert_eq!(given_back, [1 << 30, u64::MAX, 200]);
    assert_eq!(shown(unit, "ActiveState"), "active");
    drop(super::systemctl(&["stop", unit]));
    scene.daemon.stop().unwrap();
}

/// The next daemon finds slices and scopes as they are, and what runs in them runs on.
#[guest_test(systemd)]
fn units_outlive_the_daemon() {
    let scene = Scene::open("outlive", "");
    scene.daemon.manifest("web.yaml", &pod("web", "{limits: {cpu: 200m, memory: 64Mi}}")).unwrap();
    let scope = scene.slice("podweb").join("enforcer-web-app.scope");
    let mut process = scene.exec("default/web", &["sleep", "1000"]);
    wait_until_in(&process, &scope);
    let planned = Planned::of(&scene.daemon).unwrap();
    planned.wait_until_held().unwrap();
    let Scene { name, daemon, slice } = scene;
    // Killed, not asked.
    drop(daemon);
    let daemon = Daemon::start(&folder(name), &settings_of(name, "")).unwrap();
    let scene = Scene { name, daemon, slice };
    wait_until("the scope as known", || {
        let id = scene.pods().first().and_then(|pod| pod["containers"][0]["cgroupId"].as_u64());
        id.is_some_and(|id| std::os::unix::fs::MetadataExt::ino(&fs::metadata(&scope).unwrap()) == id)
    });
    planned.wait_until_held().unwrap();
    assert!(process.lives().unwrap());
    scene.daemon.stop().unwrap();
}

/// A pod's slice stays while something runs in it, and goes with the last process and the manifest.
#[guest_test(systemd)]
fn a_pods_slice_goes_with_its_manifest() {
    let scene = Scene::open("going", "");
    scene.daemon.manifest("idle.yaml", &pod("idle", "{}")).unwrap();
    scene.daemon.manifest("busy.yaml", &pod("busy", "{requests: {cpu: 10m}}")).unwrap();
    let (idle, busy) = (scene.slice("besteffort-podidle"), scene.slice("burstable-podbusy"));
    let process = scene.exec("default/busy", &["sleep", "1000"]);
    wait_until_in(&process, &busy.join("enforcer-busy-app.scope"));
    wait_until("both slices", || idle.is_dir() && busy.is_dir());
    scene.daemon.remove_manifest("idle.yaml").unwrap();
    scene.daemon.remove_manifest("busy.yaml").unwrap();
    wait_until("the end of the idle pod's slice", || !idle.exists());
    wait_until("its unit's end", || {
        shown("going-kubepods-besteffort-podidle.slice", "ActiveState") == "inactive"
    });
    assert!(busy.is_dir(), "what runs is not ended for a manifest that is gone");
    drop(process);
    wait_until("the end of the busy pod's slice", || !busy.exists());
    wait_until("its unit's end", || {
        shown("going-kubepods-burstable-podbusy.slice", "ActiveState") == "inactive"
    });
    wait_until("no pods", || scene.pods().is_empty());
    scene.daemon.stop().unwrap();
}

/// The CPUs that a process may run on.
fn allowed(process: &Process) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().to_owned()
}

/// On two CPUs, of which one is reserved: the others have no request of CPU, or they would not be admitted beside the pod
/// that has the other one.
#[guest_test(systemd)]
fn the_cpus_of_a_container_are_those_of_its_unit() {
    let scene = Scene::open("cpus", "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"");
    let start = |name: &str, resources: &str| {
        scene.daemon.manifest(&format!("{name}.yaml"), &pod(name, resources)).unwrap();
        let process = scene.exec(&format!("default/{name}"), &["sleep", "1000"]);
        let pods = scene.pods();
        let pod = pods.iter().find(|pod| pod["name"] == name).unwrap();
        assert_eq!(pod["state"], "active", "{pod}");
        let scope = plan::folder(pod["containers"][0]["cgroup"].as_str().unwrap());
        wait_until_in(&process, &scope);
        (process, scope)
    };
    let held = |(process, scope): &(Process, PathBuf)| {
        let unit = scope.file_name().unwrap().to_str().unwrap();
        let file = fs::read_to_string(scope.join("cpuset.cpus")).unwrap_or_default();
        [file.trim_end().to_owned(), shown(unit, "AllowedCPUs"), allowed(process)]
    };
    let wait = |what: &str, of: &(Process, PathBuf), cpus: &str| {
        let all = || held(of).iter().all(|held| held == cpus);
        wait_until(&format!("{cpus} in {}, {what}", of.1.display()), all);
    };
    let burstable = start("burstable", "{requests: {memory: 16Mi}}");
    let besteffort = start("besteffort", "{}");
    for shared in [&burstable, &besteffort] {
        wait("before a pod has some of its own", shared, "0-1");
    }
    let amounts = "{cpu: 1, memory: 32Mi}";
    let own = start("own", &format!("{{requests: {amounts}, limits: {amounts}}}"));
    wait("of its own", &own, "1");
    for shared in [&burstable, &besteffort] {
        wait("without the other's", shared, "0");
    }
    // One that comes later.
    let late = start("late", "{}");
    wait("from its start", &late, "0");

    let restored = || {
        let events = scene.daemon.events().unwrap();
        let of_cpus = |event: &&Value| {
            is(event, "limits.restored") && event["data"]["files"].to_string().contains("cpuset.cpus")
        };
        events.iter().filter(of_cpus).count()
    };
    reload();
    for (of, cpus) in [(&burstable, "0"), (&besteffort, "0"), (&late, "0"), (&own, "1")] {
        assert_eq!(held(of), [cpus; 3], "{} after a reload", of.1.display());
    }
    assert_eq!(restored(), 0, "systemd keeps the values");
    let unit = "enforcer-burstable-app.scope";
    let set = super::systemctl(&["set-property", "--runtime", unit, "AllowedCPUs=0-1"]).unwrap();
    assert!(set.status.success(), "{}", text(&set.stderr));
    wait_until("limits.restored", || restored() == 1);
    wait("after another's property", &burstable, "0");

    // The CPU is everybody's once nothing runs in the pod any more.
    scene.daemon.remove_manifest("own.yaml").unwrap();
    wait("while it runs", &own, "1");
    drop(own);
    for shared in [&burstable, &besteffort, &late] {
        wait("after the other's end", shared, "0-1");
    }
    let again = start("again", &format!("{{requests: {amounts}, limits: {amounts}}}"));
    wait("of its own", &again, "1");
    for shared in [&burstable, &besteffort, &late] {
        wait("without the new one's", shared, "0");
    }
    let Scene { daemon, slice, name: _ } = scene;
    daemon.stop().unwrap();
    reload();
    for (of, cpus) in [(&burstable, "0"), (&besteffort, "0"), (&late, "0"), (&again, "1")] {
        assert_eq!(held(of), [cpus; 3], "{} by systemd alone", of.1.display());
    }
    drop((burstable, besteffort, late, again));
    drop(slice);
}
