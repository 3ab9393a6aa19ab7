//! What the verbs do with a configuration that is wrong, and where they look for the daemon.
use std::{fs, process::Command};

use serde_json::json;

use crate::{
    Printed, Scene,
    foreseen::{answers, headroom, ranking},
    journal::eviction,
    run,
};

const HEAD: &str = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";

impl Scene {
    /// With a daemon that answers, and a configuration with two mistakes beside its directories.
    fn mistaken() -> Self {
        let scene = Self::new();
        scene.answer(answers(&ranking(), &headroom(), "enforce", &json!([])));
        let shown = scene.folder.path().display();
        let text = format!("{HEAD}mode: fierce\nstateDir: {shown}/state\nrunDir: {shown}/run\nnonsense: 1\n");
        fs::write(scene.path("config.yaml"), text).unwrap();
        scene
    }

    fn with_socket(&self, socket: &str, verb: &[&str]) -> Printed {
        self.run(&[&["--socket", &self.path(socket).display().to_string()], verb].concat())
    }
}

#[test]
fn a_mistake_in_the_configuration_is_a_warning_to_who_only_asks_the_daemon() {
    let scene = Scene::mistaken();
    for verb in [&["next"][..], &["headroom"], &["protect", "--list"]] {
        let printed = scene.run(verb);
        assert_eq!(printed.status, 0, "{verb:?}: {printed:?}");
        assert!(!printed.out.is_empty());
        assert_eq!(printed.err.lines().count(), 1, "{verb:?}: {printed:?}");
        for part in
            ["warning: FOLDER/config.yaml:3: mode: ", "1 more", "runDir FOLDER/run and stateDir FOLDER/state"]
        {
            assert!(printed.err.contains(part), "{verb:?}: {part} is not in {printed:?}");
        }
    }
}

#[test]
fn a_mistake_in_the_configuration_hides_no_events() {
    let scene = Scene::new();
    scene.remember(&eviction());
    // Ages differ from one call to the next.
    let events = || scene.run(&["events", "--timestamps"]).out;
    let whole = events();
    let text = fs::read_to_string(scene.path("config.yaml")).unwrap() + "nonsense: 1\n";
    fs::write(scene.path("config.yaml"), text).unwrap();
    for verb in [&["events"][..], &["why"]] {
        let printed = scene.run(verb);
        assert_eq!(printed.status, 0, "{printed:?}");
        assert_eq!(printed.err.matches("warning: ").count(), 1, "{printed:?}");
    }
    assert_eq!(events(), whole);
}

#[test]
fn what_follows_from_the_configuration_needs_a_right_one_or_none() {
    let scene = Scene::mistaken();
    let pods = scene.path("pods").display().to_string();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}});
    fs::write(scene.path("pods/web.yaml"), pod.to_string()).unwrap();
    fs::write(scene.path("stats.json"), r#"{"pods": {"default/web": {"workingSetBytes": 1}}}"#).unwrap();
    let stats = scene.path("stats.json").display().to_string();
    let plan = ["plan", "-f", &pods, "--capacity", "cpu=2,memory=2Gi"];
    let rank = ["rank", "-f", &pods, "--stats", &stats];
    for verb in [&plan[..], &rank, &["doctor"], &["config", "effective"], &["config", "check"]] {
        let printed = scene.run(verb);
        assert_eq!(printed.status, 64, "{verb:?}: {printed:?}");
        assert!(printed.err.starts_with("error: FOLDER/config.yaml:3: mode: "), "{printed:?}");
        assert_eq!(printed.err.lines().count(), 2, "both mistakes: {printed:?}");
    }
    let without =
        |verb: &[&str]| run(Command::new(env!("CARGO_BIN_EXE_enforcer")).arg("--no-config").args(verb));
    for verb in [&plan[..], &rank, &["config", "effective"]] {
        let printed = without(verb);
        assert_eq!((printed.status, printed.err.as_str()), (0, ""), "{verb:?}: {printed:?}");
    }
    for verb in [&["run"][..], &["--config", "/nowhere.yaml", "next"], &["next", "--config", "/nowhere.yaml"]]
    {
        let printed = without(verb);
        assert_eq!(printed.status, 64, "{verb:?}: {printed:?}");
    }
}

#[test]
fn the_daemon_is_found_by_its_socket_whatever_the_configuration_says() {
    let scene = Scene::mistaken();
    fs::write(scene.path("config.yaml"), "mode: [\n").unwrap();
    for socket in ["run", "run/observe.sock", "run/admin.sock"] {
        let printed = scene.with_socket(socket, &["next"]);
        assert_eq!(printed.status, 0, "{socket}: {printed:?}");
        assert!(
            printed.err.contains("config.yaml:1: ") && printed.err.contains("/var/lib/enforcer"),
            "{printed:?}"
        );
        let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
        let command = command.arg("--no-config").arg("next").env("ENFORCER_SOCKET", scene.path(socket));
        let printed = run(command);
        assert_eq!((printed.status, printed.err.as_str()), (0, ""), "{socket}: {printed:?}");
    }
    let printed = scene.with_socket("config.yaml", &["next"]);
    assert!(printed.status == 64 && printed.err.contains("name observe.sock"), "{printed:?}");
}

/// Another daemon than the one that is meant must not get the order.
#[test]
fn a_named_configuration_that_cannot_be_read_is_no_reason_to_ask_another_daemon() {
    let scene = Scene::new();
    fs::remove_file(scene.path("config.yaml")).unwrap();
    let printed = scene.run(&["evict", "default/web", "--reason", "r"]);
    assert!(printed.status == 64 && printed.err.contains("cannot read the configuration"), "{printed:?}");
}
