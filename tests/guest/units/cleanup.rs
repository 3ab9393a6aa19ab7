//! `enforcer cleanup` where systemd keeps values too: properties, drop-ins and slices.

use std::{fs, path::Path, process::Command};

use enforcer_tests::wait::wait_until;

use super::{Scene, folder, pod, read, reload, shown, systemctl, text};

const UNIT: &str = "cleaned.service";

#[guest_test(systemd)]
fn what_a_killed_daemon_has_set_is_unknown_to_systemd_again() {
    let Scene { name, daemon, slice } = Scene::open("cleaned", "");
    fs::create_dir_all("/run/systemd/system").unwrap();
    let text_of_unit = "[Service]\nExecStart=/usr/local/bin/workload hold --size 8Mi\nCPUWeight=200\n";
    fs::write(Path::new("/run/systemd/system").join(UNIT), text_of_unit).unwrap();
    reload();
    let started = systemctl(&["start", UNIT]).unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    let path = shown(UNIT, "ControlGroup");
    let service = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let annotated = format!("{{name: web, annotations: {{enforcer.dev/cgroup: {path}}},");
    let manifest = pod("web", "{limits: {cpu: 200m, memory: 64Mi}}").replace("{name: web,", &annotated);
    daemon.manifest("web.yaml", &manifest).unwrap();
    daemon.manifest("idle.yaml", &pod("idle", "{}")).unwrap();
    let memory_max = || read(&service.join("memory.max"));
    wait_until("the pod's limit", || memory_max() == (64 << 20).to_string());
    let idle = "cleaned-kubepods-besteffort-podidle.slice";
    wait_until("the idle pod's slice", || shown(idle, "ActiveState") == "active");
    let drop_ins = Path::new("/run/systemd/system.control").join(format!("{UNIT}.d"));
    wait_until("the drop-in", || drop_ins.join("50-MemoryMax.conf").exists());

    // SIGKILL.
    drop(daemon);
    let mut cleanup = Command::new("enforcer");
    let cleanup =
        cleanup.arg("--config").arg(folder(name).join("config.yaml")).arg("cleanup").output().unwrap();
    let printed = text(&cleanup.stdout);
    assert!(cleanup.status.success(), "{printed}{}", text(&cleanup.stderr));
    assert!(printed.lines().any(|line| line.starts_with("drop-in ")), "{printed}");
    assert_eq!((shown(UNIT, "MemoryMax"), memory_max()), ("infinity".into(), "max".into()));
    assert_eq!((shown(UNIT, "CPUWeight"), read(&service.join("cpu.weight"))), ("200".into(), "200".into()));
    for gone in ["50-MemoryMax.conf", "50-CPUQuota.conf"] {
        assert!(!drop_ins.join(gone).exists(), "{gone} is still there: {printed}");
    }
    wait_until("the end of the idle pod's slice", || shown(idle, "ActiveState") == "inactive");
    reload();
    assert_eq!((memory_max(), shown(UNIT, "ActiveState")), ("max".into(), "active".into()));

    drop(systemctl(&["stop", UNIT]));
    // That of the weight, which had a value before, stays until the next boot.
    drop(fs::remove_dir_all(drop_ins));
    drop(fs::remove_file(Path::new("/run/systemd/system").join(UNIT)));
    drop(slice);
    reload();
}
