//! Scores that follow the ranking: the kernel's OOM killer picks the pod that the daemon would.

use std::{fs, path::Path, process::Command, time::Duration};

use enforcer_tests::{
    agreement::{Member, Outcome, Scene},
    daemon::Daemon,
    rounds::Rounds,
    stream::is,
    wait::{TIMEOUT, wait_until},
};

fn scene(name: &str, policy: &str) -> Scene {
    Scene::open(&Path::new("/tmp/agreement").join(name), policy).unwrap()
}

/// A small pod of low priority beside a large one of high: the ranking's first is the kernel's last choice.
fn by_priority() -> [Member; 3] {
    [Member::new("large", 10, 0, 400), Member::new("small", -10, 0, 60), Member::new("within", 0, 500, 300)]
}

/// One that leaks a little beyond what it asked for, beside one that asked for little.
fn by_request() -> [Member; 3] {
    [
        Member::new("modest", 10, 16, 350),
        Member { processes_mib: vec![120; 3], ..Member::new("leaking", 0, 300, 0) },
        Member::new("content", 0, 400, 300),
    ]
}

fn run_out(scene: &mut Scene, members: &[Member]) -> Outcome {
    scene.start(members).unwrap();
    let outcome = scene.run_out().unwrap();
    scene.clear().unwrap();
    outcome
}

/// The daemon is stopped in the middle of it.
#[guest_test(kernel, repeats)]
fn the_kernel_kills_the_rankings_first() {
    let mut scene = scene("ranked", "ranked");
    for round in Rounds::new(2, 200) {
        let (members, first) =
            if round.is_multiple_of(2) { (by_request(), "leaking") } else { (by_priority(), "small") };
        let outcome = run_out(&mut scene, &members);
        let killed = (outcome.first.as_str(), outcome.killed.as_str());
        assert_eq!(killed, (first, first), "round {round}: {outcome:?}");
    }
}

#[guest_test(daemon)]
fn with_static_scores_it_kills_another() {
    let mut scene = scene("static", "static");
    let outcome = run_out(&mut scene, &by_priority());
    assert_eq!((outcome.first.as_str(), outcome.killed.as_str()), ("small", "large"), "{outcome:?}");
    let outcome = run_out(&mut scene, &by_request());
    assert_eq!((outcome.first.as_str(), outcome.killed.as_str()), ("leaking", "modest"), "{outcome:?}");
}

fn static_scores(scene: &Scene) -> bool {
    scene.score("large").unwrap() == 1000
        && scene.score("small").unwrap() == 1000
        && (3..1000).contains(&scene.score("within").unwrap())
}

#[guest_test(daemon)]
fn scores_are_written_once_reported_and_undone() {
    let folder = Path::new("/tmp/agreement/undone");
    let mut scene = scene("undone", "ranked");
    scene.start(&by_priority()).unwrap();
    let scores = scene.settled_scores().unwrap();
    let score = |name: &str| scores.iter().find(|(of, _)| of == name).unwrap().1;
    // The order of the ranking, and no score below what its class may have.
    assert_eq!(score("small"), 1000, "{scores:?}");
    assert!(score("large") < 900 && score("within") < 1000 && score("within") >= 3, "{scores:?}");

    let reported =
        |event: &serde_json::Value| is(event, "limits.applied") && event["data"]["reason"] == "ranked";
    let event = scene
        .stream()
        .wait_for("the new score", TIMEOUT, |event| reported(event) && event["data"]["pod"] == "large")
        .unwrap();
    assert_eq!(event["data"]["files"][0]["file"], "oom_score_adj", "{event}");
    assert_eq!(event["data"]["files"][0]["old"], "1000", "{event}");
    assert_eq!(event["data"]["container"], "app", "{event}");

    // Converged: two looks and more, and nothing is written.
    scene.stream().drain(Duration::from_secs(1));
    scene.stream().seen.retain(|event| is(event, "pod.added"));
    scene.stream().drain(Duration::from_secs(11));
    assert_eq!(scene.stream().seen.iter().filter(|event| reported(event)).count(), 0);

    // What a new process gets is the score in force.
    let score_of_new =
        scene.daemon().verb(&["exec", "default/large/app", "--", "cat", "/proc/self/oom_score_adj"]);
    let output = { score_of_new }.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), score("large").to_string());

    let config = folder.join("config.yaml");
    let written = fs::read_to_string(&config).unwrap();
    let reload = |text: &str, daemon: &Daemon| {
        fs::write(&config, text).unwrap();
        let pid = daemon.pid().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    };
    reload(&written.replace("oomScorePolicy: ranked", "oomScorePolicy: static"), scene.daemon());
    wait_until("static scores", || static_scores(&scene));
    reload(&written, scene.daemon());
    wait_until("ranked scores", || scene.score("large").is_ok_and(|score| score < 900));

    // Killed, it leaves them; its successor with another policy does not.
    let (daemon, _stream, processes) = scene.into_parts();
    drop(daemon);
    let pid = processes[0].id();
    let score_of = |pid: u32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    assert!(score_of(pid).trim().parse::<i32>().unwrap() < 900);
    let daemon = Daemon::start(folder, "mode: enforce\noomScorePolicy: static").unwrap();
    wait_until("static scores after a restart", || score_of(pid).trim() == "1000");
    // Stopped for good, it undoes them.
    let written = fs::read_to_string(&config).unwrap();
    reload(&written.replace("oomScorePolicy: static", "oomScorePolicy: ranked"), &daemon);
    wait_until("ranked scores again", || score_of(pid).trim() != "1000");
    daemon.stop().unwrap();
    assert_eq!(score_of(pid).trim(), "1000");
}
