//! What operators order holds, outlives the daemon, ends by itself, and is not for pods to say.

use std::fs;

use enforcer_tests::{
    kernel,
    process::Process,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{MIB, Scene, THRESHOLD_BYTES, to_leave};

impl Scene {
    /// Runs a verb; what it says and its exit status.
    fn order(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.daemon.verb(arguments).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (said, output.status.code())
    }

    fn ordered(&self, arguments: &[&str]) {
        let (said, status) = self.order(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {said}");
    }

    /// Starts what does not heed SIGTERM.
    fn ignoring(&self, name: &str) -> Process {
        let work = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"];
        let process = Process::new(self.daemon.exec(&format!("default/{name}"), &work).unwrap());
        // The fifteenth signal; a list that is no bit set is that of a process which has ended.
        let ignored = || {
            let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
            u64::from_str_radix(mask, 16).unwrap()
        };
        wait_until("its ignoring SIGTERM", || ignored() >> 14 & 1 == 1);
        process
    }

    /// A pod that is given so many seconds to end.
    fn with_grace(&self, name: &str, priority: i32, seconds: u32) {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  priority: {priority}\n  \
             terminationGracePeriodSeconds: {seconds}\n  containers: [{{name: app}}]\n"
        );
        self.daemon.manifest(&format!("{name}.yaml"), &manifest).unwrap();
    }
}

fn decided_about<'a>(scene: &'a Scene, pod: &'a str) -> Vec<&'a Value> {
    scene.stream.of("eviction.decided").filter(|event| event["subject"] == pod).collect()
}

#[guest_test(daemon)]
fn a_protected_pod_is_spared_and_the_next_is_taken_also_after_a_restart() {
    const NAME: &str = "orders-protect";
    let mut scene = Scene::open(NAME);
    let mut hog = scene.hold("hog", 0, "", "", "450Mi");
    scene.ordered(&["protect", "default/hog", "--for", "1h", "--reason", "a migration"]);
    let reported = scene.wait("degraded.entered", "hog");
    assert_eq!(reported["data"]["reason"], "a migration", "{reported}");
    for round in ["first", "second"] {
        let mut next = scene.hold(round, 0, "", "", "150Mi");
        // Whoever fills the node stays within its request.
        let filling = format!("filler-{round}");
        let mut filler = scene.fill_by(&filling, &to_leave(THRESHOLD_BYTES - 80 * MIB));
        let decided = scene.wait("eviction.decided", round);
        scene.wait("eviction.completed", round);
        next.wait_for_end(TIMEOUT).unwrap();
        let excluded = decided["data"]["excluded"].as_array().unwrap();
        assert!(
            excluded.iter().any(|pod| pod["name"] == "hog" && pod["reason"] == "protected"),
            "{round}: {decided}"
        );
        assert!(hog.lives().unwrap() && filler.lives().unwrap());
        assert!(decided_about(&scene, "default/hog").is_empty());
        drop((next, filler));
        scene.clear(&[round, &filling]);
        // The daemon is killed: dropping it is SIGKILL.
        drop(scene);
        scene = Scene::open(NAME);
    }
    let (said, _) = scene.order(&["protect", "--list"]);
    assert!(said.contains("default/hog is not evicted for"), "{said}");
    scene.ordered(&["protect", "default/hog", "--end", "--reason", "it is done"]);
    let next = scene.hold("third", 0, "", "", "150Mi");
    let filler = scene.fill_by("filler-third", &to_leave(THRESHOLD_BYTES - 80 * MIB));
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    drop((next, filler));
    scene.clear(&["third", "filler-third", "hog"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn while_paused_decisions_are_reported_and_carried_out_only_after_it() {
    const NAME: &str = "orders-pause";
    // So high that the node is at ease below it for as long as that is.
    let settings = "evictionHard: {memory.available: 400Mi}";
    let mut scene = Scene::open_with(NAME, settings);
    let killed_by_kernel = kernel::vmstat("oom_kill").unwrap();
    scene.ordered(&["pause", "--for", "1h", "--reason", "an upgrade"]);
    let mut hog = scene.hold("hog", 0, "", "", &to_leave(250 * MIB));
    let paused = scene.wait("eviction.decided", "hog");
    assert_eq!((&paused["data"]["dryRun"], &paused["data"]["paused"]), (&true.into(), &true.into()));
    let (said, status) = scene.order(&["doctor"]);
    assert!(status == Some(1) && said.contains("PAUSED"), "{said}");
    assert!(hog.lives().unwrap());
    // The daemon is killed: dropping it is SIGKILL.
    drop(scene);
    let mut scene = Scene::open_with(NAME, settings);
    let resumed = |event: &Value| is(event, "degraded.entered") && event["data"]["resumed"] == true;
    scene.stream.wait_for("the pause", TIMEOUT, resumed).unwrap();
    let first = paused["data"]["evictionId"].clone();
    let again = |event: &Value| is(event, "eviction.decided") && event["data"]["evictionId"] != first;
    scene.stream.wait_for("a decision after the restart", TIMEOUT, again).unwrap();
    // An order that is given again starts its time again.
    scene.ordered(&["pause", "--for", "1s", "--reason", "it is nearly done"]);
    let expired = |event: &Value| is(event, "degraded.left") && event["data"]["what"] == "pause";
    let expired = scene.stream.wait_for("the end of the pause", TIMEOUT, expired).unwrap();
    assert_eq!(expired["data"]["cause"], "expired", "{expired}");
    scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    let decided = decided_about(&scene, "default/hog");
    let (last, before) = decided.split_last().unwrap();
    assert_eq!(last["data"]["dryRun"], false);
    assert!(before.len() >= 2, "{before:?}");
    assert!(before.iter().all(|event| event["data"]["paused"] == true), "{before:?}");
    assert!(last["sequence"].as_str() > expired["sequence"].as_str(), "{last} was before {expired}");
    // So much is left beside the hog, however long it lives, that the kernel has no reason to.
    assert_eq!(
        kernel::vmstat("oom_kill").unwrap(),
        killed_by_kernel,
        "the kernel's OOM killer killed as well"
    );
    scene.clear(&["hog"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_process_in_a_pod_orders_nothing() {
    let mut scene = Scene::open("orders-pod");
    scene.manifest("web", 0, "", "");
    let config = scene.daemon.folder().join("config.yaml").display().to_string();
    for words in [
        &["pause", "--for", "1h", "--reason", "r"][..],
        &["protect", "default/web", "--for", "1h", "--reason", "r"],
        &["evict", "default/web", "--reason", "r"],
    ] {
        let command = [&["enforcer", "--config", &config], words].concat();
        let output = scene.daemon.exec("default/web", &command).unwrap().wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(77), "{words:?}: {said}");
        assert!(said.contains("a process in a pod"), "{said}");
    }
    // From the node itself the same is an order, and the only one.
    scene.ordered(&["protect", "default/web", "--for", "1h", "--reason", "from the node"]);
    scene.wait("degraded.entered", "web");
    let is_order = |event: &&Value| event["data"]["what"] == "pause" || event["data"]["what"] == "protect";
    let orders: Vec<_> = scene.stream.of("degraded.entered").filter(is_order).collect();
    assert!(matches!(orders[..], [order] if order["data"]["reason"] == "from the node"), "{orders:?}");
    assert_eq!(scene.stream.of("eviction.decided").count(), 0);
    scene.clear(&["web"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn a_pod_is_evicted_by_order_with_its_grace_and_what_is_spared_is_not() {
    let mut scene = Scene::open("orders-evict");
    scene.with_grace("web", 0, 2);
    scene.with_grace("critical", 2_000_000_000, 2);
    let mut web = scene.ignoring("web");
    let mut critical = Process::new(scene.daemon.exec("default/critical", &["sleep", "1000"]).unwrap());
    let evict = ["evict", "default/web", "--reason", "it hangs"];
    let tried = |scene: &Scene| scene.order(&[&evict[..], &["--dry-run"]].concat());
    wait_until("its process", || tried(&scene).1 == Some(0));
    let (said, _) = tried(&scene);
    assert!(said.contains("would be asked to end, and killed after 2 s"), "{said}");
    assert!(web.lives().unwrap() && scene.stream.of("eviction.decided").count() == 0);
    let (said, status) = scene.order(&["evict", "default/critical", "--reason", "r"]);
    assert!(status == Some(77) && said.contains("critical"), "{said}");
    scene.ordered(&["protect", "default/web", "--for", "1h", "--reason", "r"]);
    let (said, status) = scene.order(&evict);
    assert!(status == Some(77) && said.contains("protected"), "{said}");
    scene.ordered(&["protect", "default/web", "--end", "--reason", "r"]);

    scene.ordered(&evict);
    let completed = scene.wait("eviction.completed", "web");
    web.wait_for_end(TIMEOUT).unwrap();
    let decided = scene.wait("eviction.decided", "web");
    assert_eq!(decided["data"]["operator"]["reason"], "it hangs", "{decided}");
    assert_eq!(
        (&decided["data"]["decidedBy"], &decided["data"]["dryRun"]),
        (&"operator".into(), &false.into())
    );
    let sent: Vec<_> =
        scene.stream.of("eviction.signalled").map(|event| event["data"]["sent"].clone()).collect();
    assert_eq!(sent, ["SIGTERM", "SIGKILL"]);
    assert_eq!(completed["data"]["evictionId"], decided["data"]["evictionId"]);
    assert_eq!(completed["data"]["endedBy"], "SIGKILL");
    assert!(critical.lives().unwrap());
    // It stays evicted, also over a restart.
    drop(scene);
    let mut scene = Scene::open("orders-evict");
    let (said, status) = scene.order(&["exec", "default/web", "--", "true"]);
    assert!(status == Some(77) && said.contains("evicted"), "{said}");
    assert_eq!(scene.order(&evict).1, Some(77));
    drop(critical);
    scene.clear(&["web", "critical"]);
    scene.daemon.stop().unwrap();
}

#[guest_test(daemon)]
fn an_eviction_by_order_that_the_daemon_did_not_finish_is_reported_and_can_be_ordered_again() {
    const NAME: &str = "orders-unfinished";
    let scene = Scene::open(NAME);
    // Long enough for the daemon to be killed within it.
    scene.with_grace("web", 0, 5);
    let mut web = scene.ignoring("web");
    let evict = ["evict", "default/web", "--reason", "it hangs"];
    wait_until("its process", || scene.order(&[&evict[..], &["--dry-run"]].concat()).1 == Some(0));
    scene.ordered(&evict);
    // The daemon is killed: dropping it is SIGKILL.
    drop(scene);
    let mut scene = Scene::open(NAME);
    let failed = scene.wait("eviction.failed", "web");
    assert_eq!(failed["data"]["reason"], "interrupted", "{failed}");
    assert!(web.lives().unwrap());
    scene.ordered(&evict);
    web.wait_for_end(TIMEOUT).unwrap();
    scene.wait("eviction.completed", "web");
    scene.clear(&["web"]);
    scene.daemon.stop().unwrap();
}
