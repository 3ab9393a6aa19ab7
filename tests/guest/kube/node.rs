//! The condition and the taint by which the scheduler learns that memory is short here.

use enforcer_tests::{
    expect::assert_holds,
    kernel,
    kube::{NODE, documented_roles, wait_for},
};
use serde_json::{Value, json};

use super::{MIB, Scene};

const CONDITION: &str = "EnforcerMemoryPressure";
const TAINT: &str = "enforcer.dev/memory-pressure";

/// What a daemon may set on its node.
pub(super) const SETTINGS: &str = "nodeCondition: true\nnodeTaint: PreferNoSchedule";

#[guest_test(kube_by_hand)]
fn the_node_says_that_memory_is_short_until_the_daemon_stops() {
    let scene = Scene::open("node", &documented_roles());
    let before = node(&scene);
    assert_eq!(shown(&before), [None, None], "{before}");

    // Met at once, and for longer than the test takes: memory is short, and no pod is evicted.
    let available_bytes = kernel::meminfo_bytes("MemAvailable").unwrap();
    let daemon = scene.start(&format!(
        "mode: enforce\n{SETTINGS}\nevictionHard: {{memory.available: 200Mi}}\n\
         evictionSoft: {{memory.available: {}}}\nevictionSoftGracePeriod: {{memory.available: 1h}}",
        available_bytes + 400 * MIB
    ));
    let short = wait_for("condition and taint", || {
        let node = node(&scene);
        Ok((!shown(&node).contains(&None)).then_some(node))
    });
    let [condition, taint] = shown(&short.unwrap());
    assert_holds(&condition.unwrap(), &json!({"status": "True"}));
    assert_holds(&taint.unwrap(), &json!({"effect": "PreferNoSchedule"}));
    let kubelets = of(&node(&scene)["status"]["conditions"], "type", "MemoryPressure");
    assert_holds(&kubelets.unwrap(), &json!({"status": "False"}));

    daemon.stop().unwrap();
    let after = node(&scene);
    assert_eq!(shown(&after), [None, None], "{after}");
}

/// The node as the API server has it.
pub(super) fn node(scene: &Scene) -> Value {
    scene.cluster.get(&format!("/api/v1/nodes/{NODE}")).unwrap().unwrap()
}

/// What the daemon has set on a node: the condition and the taint.
fn shown(node: &Value) -> [Option<Value>; 2] {
    [of(&node["status"]["conditions"], "type", CONDITION), of(&node["spec"]["taints"], "key", TAINT)]
}

/// The entry of a list whose `key` has a value.
pub(super) fn of(list: &Value, key: &str, value: &str) -> Option<Value> {
    list.as_array()?.iter().find(|entry| entry[key] == value).cloned()
}

/// Asserts that a daemon has set nothing on the node.
pub(super) fn assert_unmarked(scene: &Scene) {
    let node = node(scene);
    assert_eq!(shown(&node), [None, None], "{node}");
}
