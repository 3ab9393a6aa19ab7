//! The first minutes with a configuration: one that is written for this machine, and one that evicts no pod.
use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use serde_json::Value;

use crate::{Printed, Scene, run};

/// Runs it as a shell with that umask does.
fn with_umask(umask: &str, arguments: &[&str]) -> Printed {
    let script = format!("umask {umask}; exec \"$0\" \"$@\"");
    run(Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_enforcer")]).args(arguments))
}

#[test]
fn a_first_configuration_is_written_once_and_passes_the_check() {
    let scene = Scene::new();
    let path = scene.path("etc/config.yaml").display().to_string();
    let written = with_umask("077", &["--config", &path, "config", "init"]);
    assert_eq!((written.status, written.err.as_str()), (0, ""), "{written:?}");
    for part in [format!("written:  {path}"), format!("enforcer config check {path}")] {
        assert!(written.out.contains(&part), "{part} is not in {written:?}");
    }
    let mode = |path: &str| fs::metadata(scene.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("etc/config.yaml"), mode("etc")), (0o644, 0o755));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(scene.raw(&["config", "init", "-"]).out, text, "the same is printed");
    let checked = scene.run(&["config", "check", &path]);
    assert!(checked.status == 0 && checked.out.ends_with("ok\n"), "{checked:?}");

    // Whoever has one, keeps it: also as the file of --config, and through a link that leads nowhere.
    fs::write(&path, "mine").unwrap();
    let link = scene.path("etc/link.yaml");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for again in [
        scene.run(&["config", "init", &path]),
        run(Command::new(env!("CARGO_BIN_EXE_enforcer")).args(["config", "init", "--config", &path])),
        scene.run(&["config", "init", link.to_str().unwrap()]),
    ] {
        assert_eq!((again.status, again.out.as_str()), (64, ""), "{again:?}");
        let said = " exists, and stays as it is: `enforcer config init -` prints";
        assert!(again.err.contains(said), "{again:?}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    let mut names: Vec<_> =
        fs::read_dir(scene.path("etc")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.yaml", "link.yaml"], "nothing else is left");
}

#[test]
fn where_no_file_can_be_made_none_is_written() {
    let scene = Scene::new();
    // Not even root makes files there.
    let refused = scene.run(&["config", "init", "/sys/config.yaml"]);
    assert!(refused.status == 77 && refused.err.contains("cannot write /sys/config.yaml"), "{refused:?}");
    let missing = scene.path("no/such/config.yaml").display().to_string();
    assert_eq!(scene.run(&["config", "init", &missing]).status, 1);
    let none = run(Command::new(env!("CARGO_BIN_EXE_enforcer")).args(["--no-config", "config", "init"]));
    assert!(none.status == 64 && none.err.contains("--no-config leaves no file to write"), "{none:?}");
    let draft = scene.path("draft.yaml").display().to_string();
    let document = scene.raw(&["-o", "json", "config", "init", &draft]).out;
    assert_eq!(serde_json::from_str::<Value>(&document).unwrap()["written"], draft);
}

#[test]
fn a_configuration_that_evicts_no_pod_does_not_pass_the_check() {
    let scene = Scene::new();
    let base = fs::read_to_string(scene.path("config.yaml")).unwrap();
    let check = |mode: &str, more: &str| {
        let text = base.replace("mode: observe", &format!("mode: {mode}"));
        fs::write(scene.path("config.yaml"), text + more).unwrap();
        scene.run(&["config", "check"])
    };
    let soft = "evictionSoft: {memory.available: 1Mi}\nevictionSoftGracePeriod: {memory.available: 1m}\n";
    for (more, reason) in [
        ("", None),
        ("evictionHard: {}\n", Some("config.yaml:8: evictionHard: no threshold is left")),
        ("evictionHard: {memory.available: 0%}\n", Some("config.yaml:8: evictionHard: no threshold is left")),
        (
            "evictionHard: {nodefs.available: 10%}\n",
            Some("config.yaml:8: evictionHard.nodefs.available: disks are not watched"),
        ),
        ("evictionHard: {memory.available: 1Mi}\n", None),
        (&format!("evictionHard: {{}}\n{soft}"), None),
    ] {
        let checked = check("dry-run", more);
        match reason {
            None => assert_eq!(checked.status, 0, "{more}: {checked:?}"),
            Some(reason) => {
                assert_eq!((checked.status, checked.out.as_str()), (64, ""), "{more}: {checked:?}");
                assert!(checked.err.contains(reason) && checked.err.contains("mode: observe"), "{checked:?}");
            }
        }
        assert_eq!(check("observe", more).status, 0, "{more}: it is meant");
    }
    let limits_alone = check("dry-run", "breaker: {maxKills: 0}\n");
    assert!(
        limits_alone.status == 0 && limits_alone.out.contains("note: breaker.maxKills: is 0"),
        "{limits_alone:?}"
    );
}
