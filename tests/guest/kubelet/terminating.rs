//! Pods that are being deleted.

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    kernel,
    load::Load,
    stream::is,
    wait::{TIMEOUT, wait_until},
};

use super::{
    MIB,
    node::Node,
    specs::{
        evicting_below,
        fake::{FakeKubelet, FakePod},
        hold_in, pod_of, serve_pods_api, spec,
    },
};

/// A long grace period does not spare a pod that was deleted: its memory does not fall.
#[guest_test(daemon)]
fn a_pod_that_was_deleted_and_does_not_end_is_evicted_like_any_other() {
    let threshold_bytes = kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(500 * MIB);
    let mut node = Node::new("terminating", Systemd);
    node.serve();
    let kubelet = FakeKubelet::new();
    let leaving = node.pod(QosClass::Burstable, "shop", "leaving", &["app"]);
    kubelet.put(FakePod { is_terminating: true, ..spec(&leaving, "leaving", "Burstable", -10, "16Mi") });
    let growing = node.pod(QosClass::Burstable, "shop", "growing", &["app"]);
    kubelet.put(spec(&growing, "growing", "Burstable", 0, "16Mi"));
    let _held = hold_in(leaving.cgroup(1), "300Mi");

    let _socket = serve_pods_api(&node, &kubelet);
    let daemon = node.start(&evicting_below(threshold_bytes));
    let mut stream = daemon.follow().unwrap();
    wait_until("the specs", || {
        ["leaving", "growing"].iter().all(|name| !pod_of(&daemon, name)["spec"].is_null())
    });
    let ramp = ["ramp", "--huge", "--no-catch-up", "--rate", "100Mi", "--to", "300Mi"];
    let mut growing = Load::start(growing.cgroup(1), &ramp).unwrap();
    let decided = stream.wait_for("a decision", TIMEOUT, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], "shop/leaving", "{decided}");
    let signalled = stream.wait_for_pod("eviction.signalled", "shop/leaving", TIMEOUT).unwrap();
    assert_eq!(signalled["data"]["terminating"], true, "{signalled}");
    stream.wait_for_pod("eviction.completed", "shop/leaving", TIMEOUT).unwrap();
    assert!(growing.lives().unwrap());
    daemon.stop().unwrap();
}
