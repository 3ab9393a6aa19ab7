//! Whether the node is under disk pressure.

use super::*;

const FORBIDDEN: u16 = 403;

fn having(conditions: &Value) -> Value {
    json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}})
}

fn disk(status: &str) -> Value {
    let ready = json!({"type": "Ready", "status": "True"});
    having(
        &json!([ready, {"type": "MemoryPressure", "status": "True"}, {"type": "DiskPressure", "status": status}]),
    )
}

fn said(api: &Api) -> Option<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let call = Call::DiskPressure { node: String::from("n") };
    match runtime.block_on(api.server().ask(Lane::Looks, call)).unwrap() {
        Outcome::DiskPressure(pressed) => pressed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_kubelets_own_condition_is_read_and_what_it_does_not_say_is_unknown() {
    let api = Api::serve();
    for (node, expected) in [
        (disk("True"), Some(true)),
        (disk("False"), Some(false)),
        // The node controller writes this of a node whose kubelet is silent.
        (disk("Unknown"), None),
        (having(&json!([])), None),
        (having(&Value::Null), None),
        (json!({}), None),
    ] {
        api.change(|server| server.node = node.clone());
        assert_eq!(said(&api), expected, "{node}");
    }
}

#[test]
fn another_answer_is_passed_on_and_a_server_that_gives_none_leaves_it_unknown() {
    let api = Api::serve();
    api.change(|server| server.node = disk("True"));
    let mut pressed = DiskPressure::start_every(Duration::from_millis(5), api.server()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut next = || {
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_mins(1), pressed.next()).await.unwrap() })
    };
    assert_eq!(next(), Some(true));
    api.change(|server| server.node = disk("False"));
    assert_eq!(next(), Some(false));
    api.change(|server| server.fails_with = Some(FORBIDDEN));
    assert_eq!(next(), None);
    api.change(|server| server.fails_with = None);
    assert_eq!(next(), Some(false));
}
