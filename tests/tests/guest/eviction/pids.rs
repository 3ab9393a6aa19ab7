//! Process ids run short.

use std::fs;

use enforcer_tests::{stream::is, wait::PATIENCE};

use super::Scene;

const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// Another bound, until this is dropped.
struct Bound(String);

impl Bound {
    fn set(most: u32) -> Self {
        let before = fs::read_to_string(PID_MAX).unwrap();
        fs::write(PID_MAX, most.to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // The guest ends with the scenario.
        drop(fs::write(PID_MAX, &self.0));
    }
}

#[test]
fn a_fork_bomb_of_small_processes_goes_and_not_the_large_pod() {
    let _bound = Bound::set(1_500);
    let settings = "evictionHard: {memory.available: 50Mi, pid.available: \"500\"}";
    let mut scene = Scene::open_with("eviction-pids", settings);
    let mut large = scene.hold("large", 0, "", "", "300Mi");
    let mut few = scene.start("few", &["workload", "fork", "--count", "20"]);
    let mut bomb = scene.start("bomb", &["workload", "fork", "--count", "3000"]);
    let decided = scene.wait("eviction.decided", "bomb");
    let data = &decided["data"];
    assert_eq!(
        (data["signal"].as_str(), data["decidedBy"].as_str()),
        (Some("pid.available"), Some("processCount"))
    );
    assert_eq!(data["thresholdCount"], 500, "{decided}");
    assert!(data["observedCount"].as_u64().unwrap() < 500, "{decided}");
    let most = data["ranking"][0]["processCount"].as_u64().unwrap();
    let next = data["ranking"][1]["processCount"].as_u64().unwrap();
    assert!(most > 400 && next < 100, "{decided}");
    scene.wait("eviction.completed", "bomb");
    bomb.wait_for_end(PATIENCE).unwrap();
    scene.stream.wait_for("the end", PATIENCE, |event| is(event, "pressure.cleared")).unwrap();
    assert_eq!(scene.stream.of("eviction.decided").count(), 1);
    assert!(large.lives().unwrap() && few.lives().unwrap());
    drop((large, few));
    scene.clear(&["large", "few", "bomb"]);
    scene.daemon.stop().unwrap();
}
