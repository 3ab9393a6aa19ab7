//! Scores that follow the ranking, which a daemon leaves when it is killed: with fakes of the runtime and the Pods API.

use std::fs;

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{load::Load, stream::is, wait::wait_until};

use super::{
    node::Node,
    specs::{fake::FakeKubelet, hold_in, serve_pods_api, spec},
};

/// What a kubelet gives BestEffort pods.
const STATIC: i32 = 1_000;

/// What another process writes after the daemon's end. It is above all that the ranking gives here.
const FOREIGN: i32 = 999;

fn score(load: &Load) -> i32 {
    fs::read_to_string(format!("/proc/{}/oom_score_adj", load.pid())).unwrap().trim().parse().unwrap()
}

fn set_score(load: &Load, score: i32) {
    fs::write(format!("/proc/{}/oom_score_adj", load.pid()), score.to_string()).unwrap();
}

/// Of two BestEffort pods the one of higher priority is spared: that one's score comes down.
#[guest_test(daemon)]
fn scores_that_a_killed_daemon_has_left_are_the_kubelets_again_after_the_next_start() {
    let mut node = Node::new("scores", Systemd);
    node.serve();
    let kubelet = FakeKubelet::new();
    let [high, low] = [("high", 1_000), ("low", 0)].map(|(name, priority)| {
        let placed = node.pod(QosClass::BestEffort, "shop", name, &["app"]);
        kubelet.put(spec(&placed, name, "BestEffort", priority, ""));
        placed
    });
    let _socket = serve_pods_api(&node, &kubelet);
    let spared = hold_in(high.cgroup(1), "200Mi");
    let written_since = hold_in(high.cgroup(1), "4Mi");
    let first = hold_in(low.cgroup(1), "40Mi");
    let all = [&spared, &written_since, &first];
    let reset = || all.iter().for_each(|load| set_score(load, STATIC));
    reset();

    for next in ["mode: dry-run", "mode: observe", "mode: enforce"] {
        let daemon = node.start("mode: enforce\noomScorePolicy: ranked");
        // So much that a process of the other's size does not make up for it.
        wait_until("scores by rank", || score(&spared) < FOREIGN && score(&written_since) < FOREIGN);
        // It is killed, and leaves them.
        drop(daemon);
        assert!(score(&spared) < FOREIGN);
        set_score(&written_since, FOREIGN);

        let daemon = node.start(next);
        wait_until("the kubelet's scores", || score(&spared) == STATIC && score(&first) == STATIC);
        let is_undone = || {
            let events = daemon.events().unwrap();
            events.iter().any(|event| {
                is(event, "limits.restored")
                    && event["data"]["reason"] == "interrupted"
                    && event["data"]["cgroup"] == high.container_path(1)
                    && event["data"]["files"][0]["file"] == "oom_score_adj"
                    && event["data"]["files"][0]["new"] == *STATIC.to_string()
            })
        };
        wait_until("the event", is_undone);
        assert_eq!(score(&written_since), FOREIGN, "another has written it since, {next}");
        daemon.stop().unwrap();
        reset();
    }
}
