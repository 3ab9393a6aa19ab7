//! Without the system bus, and after it came back.

use std::{fs, process::Command};

use enforcer_tests::wait::wait_until;

use super::{Scene, folder, pod, read, settings_of, systemctl, text};

fn bus(verb: &str) {
    // systemctl itself asks systemd directly.
    let output = systemctl(&[verb, "dbus.socket"]).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

fn end_the_bus() {
    bus("stop");
    drop(systemctl(&["kill", "--signal=KILL", "dbus.service"]).unwrap());
    wait_until("the bus's end", || super::shown("dbus.service", "ActiveState") != "active");
    drop(systemctl(&["reset-failed", "dbus.service"]).unwrap());
}

/// The bus comes back whatever happens: other scenarios need it.
struct BackAgain;

impl Drop for BackAgain {
    fn drop(&mut self) {
        drop(systemctl(&["start", "dbus.socket"]));
    }
}

#[guest_test(systemd)]
fn without_a_bus_enforcing_is_refused() {
    let _back = BackAgain;
    let place = folder("refused");
    fs::create_dir_all(place.join("pods")).unwrap();
    let shown = place.display();
    let config = place.join("config.yaml");
    let settings = settings_of("refused", "");
    fs::write(
        &config,
        format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nownership: enforcer\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n{settings}\n"
        ),
    )
    .unwrap();
    let enforcer = |verb: &[&str]| {
        let output = Command::new("enforcer").arg("--config").arg(&config).args(verb).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    assert_eq!(enforcer(&["config", "check"]), (Some(0), String::new()));
    end_the_bus();
    for verb in [&["run"][..], &["config", "check"]] {
        let (status, reported) = enforcer(verb);
        assert_eq!(status, Some(64), "{reported}");
        assert!(reported.contains("cgroupDriver: systemd needs systemd"), "{reported}");
        assert!(reported.contains("the system bus does not answer"), "{reported}");
    }
    bus("start");
    assert_eq!(enforcer(&["config", "check"]), (Some(0), String::new()));
}

/// A daemon that has lost the bus says so, and goes on when there is one again.
#[guest_test(systemd)]
fn a_daemon_outlives_the_bus() {
    let _back = BackAgain;
    let scene = Scene::open("outlives", "");
    scene.daemon.manifest("one.yaml", &pod("one", "{limits: {cpu: 200m, memory: 64Mi}}")).unwrap();
    let one = scene.slice("podone");
    wait_until("the first slice", || {
        one.join("memory.max").exists() && read(&one.join("memory.max")) == "67108864"
    });
    end_the_bus();
    let mut stream = scene.daemon.follow().unwrap();
    scene.daemon.manifest("two.yaml", &pod("two", "{limits: {cpu: 200m, memory: 64Mi}}")).unwrap();
    stream
        .wait_for("word of it", enforcer_tests::wait::TIMEOUT, |event| {
            event["data"]["message"]
                .as_str()
                .is_some_and(|reported| reported.contains("cannot reach systemd on the system bus"))
        })
        .unwrap();
    let two = scene.slice("podtwo");
    assert!(!two.exists());
    bus("start");
    wait_until("the second slice", || {
        two.join("memory.max").exists() && read(&two.join("memory.max")) == "67108864"
    });
    scene.daemon.stop().unwrap();
}
