//! Pods that are being deleted.

use std::{thread, time::Duration};

use enforcer::{model::QosClass, policy::CgroupDriver::Systemd};
use enforcer_tests::{
    kernel,
    load::Load,
    stream::is,
    wait::{TIMEOUT, wait_until},
};
use serde_json::Value;

use super::{
    MIB,
    node::Node,
    specs::{
        evicting_below,
        fake::{FakeKubelet, FakePod},
        hold_in, pod_of, serve_pods_api, spec,
    },
};

/// The first in the ranking is spared, and so are the others, while its memory falls.
#[guest_test(kernel)]
fn a_pod_that_is_being_deleted_is_awaited_while_its_memory_falls_and_no_longer() {
    let threshold_bytes = kernel::meminfo_bytes("MemAvailable").unwrap().saturating_sub(800 * MIB);
    let mut node = Node::new("terminating", Systemd);
    node.serve();
    let kubelet = FakeKubelet::new();
    let leaving = node.pod(QosClass::Burstable, "shop", "leaving", &["app"]);
    let spec_of_leaving = spec(&leaving, "leaving", "Burstable", -10, "16Mi");
    kubelet.put(spec_of_leaving.clone());
    let growing = node.pod(QosClass::Burstable, "shop", "growing", &["app"]);
    kubelet.put(spec(&growing, "growing", "Burstable", 0, "16Mi"));
    let mut held: Vec<_> = (0..30).map(|_| hold_in(leaving.cgroup(1), "20Mi")).collect();

    let _socket = serve_pods_api(&node, &kubelet);
    let daemon = node.start(&evicting_below(threshold_bytes));
    let mut stream = daemon.follow().unwrap();
    wait_until("the specs", || {
        ["leaving", "growing"].iter().all(|name| !pod_of(&daemon, name)["spec"].is_null())
    });
    kubelet.put(FakePod { is_terminating: true, ..spec_of_leaving });
    let mut growing = Load::start(growing.cgroup(1), &["hold", "--size", "400Mi"]).unwrap();
    // Its processes end one after the other.
    while let Some(last) = held.pop() {
        drop(last);
        thread::sleep(Duration::from_millis(100));
    }
    let is_over =
        |event: &Value| is(event, "pressure.cleared") && event["data"]["crossedToClearedMs"].is_number();
    stream.wait_for("the end of a shortage", TIMEOUT, is_over).unwrap();
    assert_eq!(stream.of("eviction.decided").count(), 0, "{:?}", stream.seen);

    // One that takes more is evicted like any other.
    let more = Load::start(leaving.cgroup(1), &["hold", "--size", "500Mi"]).unwrap();
    let decided = stream.wait_for("a decision", TIMEOUT, |event| is(event, "eviction.decided")).unwrap();
    assert_eq!(decided["subject"], "shop/leaving", "{decided}");
    stream.wait_for_pod("eviction.completed", "shop/leaving", TIMEOUT).unwrap();
    assert!(growing.lives().unwrap());
    drop(more);
    daemon.stop().unwrap();
}
