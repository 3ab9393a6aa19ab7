//! The node's condition and taint.

use super::{
    super::node::Marks,
    outages::{spawn, until},
    *,
};
use crate::network::fake::Way;

const OTHER: &str =
    r#"{"key": "gpu", "value": "yes", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}"#;
const TAINT: NodeSettings = NodeSettings { condition: false, taint: Some(TaintEffect::NoSchedule) };
const ALL: NodeSettings = NodeSettings { condition: true, ..TAINT };

struct Marking {
    journal: Journal,
    state: tempfile::TempDir,
    api: Api,
}

impl Marking {
    fn new() -> Self {
        let api = Api::serve();
        let other: Value = serde_json::from_str(OTHER).unwrap();
        let node = json!({
            "metadata": {"resourceVersion": "7"}, "spec": {"taints": [other]},
            "status": {"conditions": [{"type": "MemoryPressure", "status": "False"}]},
        });
        api.change(|server| server.node = node);
        Self { journal: Journal::new("n", "b"), state: tempfile::tempdir().unwrap(), api }
    }

    fn start(&self, settings: NodeSettings) -> Option<NodeMarks> {
        NodeMarks::start(&self.journal, self.state.path(), settings, self.api.server()).unwrap()
    }

    /// The same on a machine of that name, whose kubelet does not say what the node is called.
    fn start_by_guess(&self, settings: NodeSettings, host: &str) -> Option<NodeMarks> {
        let named = Named { name: host.to_owned(), is_guess: true };
        let server =
            ApiServer::in_this_process_named(Arc::new(move || named.clone()), self.api.access()).unwrap();
        NodeMarks::start(&self.journal, self.state.path(), settings, server).unwrap()
    }

    /// A daemon that was killed in a shortage has left its taint.
    fn leave_taint(&self) {
        let taint = json!({"key": "enforcer.dev/memory-pressure", "effect": "NoSchedule"});
        self.api.change(|server| server.node["spec"]["taints"].as_array_mut().unwrap().push(taint));
    }

    /// What was asked of the API server.
    fn asked(&self) -> Vec<String> {
        self.api.change(|server| server.asked.clone())
    }

    /// Our taint's effect and our condition's status.
    fn ours(&self) -> (Option<String>, Option<String>) {
        let node = self.api.change(|server| server.node.clone());
        let find = |list: &Value, key: &str, of: &str| -> Option<Value> {
            list.as_array().unwrap().iter().find(|one| one[key] == of).cloned()
        };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        assert!(find(&node["spec"]["taints"], "key", "gpu") == serde_json::from_str(OTHER).unwrap());
        assert!(find(&node["status"]["conditions"], "type", "MemoryPressure").is_some());
        let taint = find(&node["spec"]["taints"], "key", "enforcer.dev/memory-pressure");
        let condition = find(&node["status"]["conditions"], "type", "EnforcerMemoryPressure");
        (taint.map(|taint| text(&taint["effect"])), condition.map(|condition| text(&condition["status"])))
    }

    fn wait(&self, taint: Option<&str>, condition: Option<&str>) {
        let end = Instant::now() + Duration::from_secs(20);
        let expected = (taint.map(str::to_owned), condition.map(str::to_owned));
        while self.ours() != expected {
            assert!(Instant::now() < end, "{:?} and not {expected:?}", self.ours());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_shortage_is_shown_and_all_is_removed_at_the_end() {
    let scene = Marking::new();
    let marks = scene.start(ALL).unwrap();
    scene.wait(None, Some("False"));
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    marks.set_short(false);
    scene.wait(None, Some("False"));
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    drop(marks);
    assert_eq!(scene.ours(), (None, None));
    assert!(std::fs::read_dir(scene.state.path()).unwrap().next().is_none(), "nothing is left to remove");
}

#[test]
fn what_a_crash_left_is_removed_by_the_next_start_also_if_it_sets_nothing() {
    let scene = Marking::new();
    let marks = scene.start(ALL).unwrap();
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    // The server is away when the daemon stops.
    scene.api.change(|server| server.fails_with = Some(503));
    drop(marks);
    scene.api.change(|server| server.fails_with = None);
    assert_eq!(scene.ours(), (Some(String::from("NoSchedule")), Some(String::from("True"))));
    let marks = scene.start(NodeSettings::default()).unwrap();
    scene.wait(None, None);
    drop(marks);
    assert!(scene.start(NodeSettings::default()).is_none(), "nothing is set, and nothing was left");
}

#[test]
fn a_server_that_is_away_is_reported_once_and_asked_again() {
    let scene = Marking::new();
    scene.api.change(|server| server.fails_with = Some(403));
    let marks = scene.start(ALL).unwrap();
    let reader = || {
        let kinds = vec![EventType::DegradedEntered, EventType::DegradedLeft];
        scene.journal.reader(Some(0), Filter { kinds, ..Filter::default() })
    };
    let reported = || {
        let mut reader = reader();
        let mut kinds = Vec::new();
        while let Some(Batch::Records(records)) = reader.read() {
            kinds.extend(records.into_iter().map(|record| record.kind));
        }
        kinds
    };
    let wait = |expected: &[EventType]| {
        let end = Instant::now() + Duration::from_secs(20);
        while reported() != expected {
            assert!(Instant::now() < end, "{:?}", reported());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait(&[EventType::DegradedEntered]);
    scene.api.change(|server| server.fails_with = None);
    scene.wait(None, Some("False"));
    wait(&[EventType::DegradedEntered, EventType::DegradedLeft]);
    drop(marks);
}

/// The condition is set, and the taint is refused: the condition is taken back all the same.
#[test]
fn a_change_that_is_half_done_is_undone() {
    let scene = Marking::new();
    let marks = scene.start(ALL).unwrap();
    scene.wait(None, Some("False"));
    scene.api.change(|server| server.node["metadata"]["isTaintRefused"] = true.into());
    marks.set_short(true);
    scene.wait(None, Some("True"));
    marks.set_short(false);
    scene.wait(None, Some("False"));
    drop(marks);
}

/// A condition and a taint may be sent twice.
#[test]
fn a_connection_that_is_half_open_is_replaced_before_anything_is_reported() {
    let mut scene = Marking::new();
    let server = scene.api.1;
    let (way, passing) = Way::to(server).unwrap();
    spawn(move || passing);
    scene.api = Api(Arc::clone(&scene.api.0), way.address());
    let marks = scene.start(ALL).unwrap();
    scene.wait(None, Some("False"));
    // The server has the request; its answer is not to vanish, for which a first request waits as long as it may.
    std::thread::sleep(Duration::from_millis(500));
    way.vanish();
    until("half-open connections", || way.has_vanished());
    way.lead_to(server);
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    drop(marks);
    assert_eq!(scene.ours(), (None, None));
    let filter = Filter { kinds: vec![EventType::DegradedEntered], ..Filter::default() };
    let mut reader = scene.journal.reader(Some(0), filter);
    let mut reported = Vec::new();
    while let Some(Batch::Records(records)) = reader.read() {
        reported.extend(records.into_iter().map(|record| record.line));
    }
    assert!(reported.is_empty(), "{reported:?}");
}

#[test]
fn the_mark_of_a_node_with_another_name_is_removed_there() {
    let scene = Marking::new();
    let marks = Marks { node: String::from("gone"), set: ALL };
    crate::durable::write(&scene.state.path().join("node-marks.json"), &marks).unwrap();
    let marks = scene.start(NodeSettings::default()).unwrap();
    drop(marks);
    assert!(std::fs::read_dir(scene.state.path()).unwrap().next().is_none());
}

/// The daemon was killed in a shortage, and is started again while the kubelet is down: another node may have the host's name.
#[test]
fn while_a_name_is_only_guessed_the_node_on_record_is_changed_and_no_other() {
    let scene = Marking::new();
    let left = Marks { node: String::from("n"), set: ALL };
    crate::durable::write(&scene.state.path().join("node-marks.json"), &left).unwrap();
    scene.leave_taint();
    let marks = scene.start_by_guess(ALL, "host").unwrap();
    scene.wait(None, Some("False"));
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    drop(marks);
    assert_eq!(scene.ours(), (None, None));
    assert!(std::fs::read_dir(scene.state.path()).unwrap().next().is_none(), "nothing is left to remove");
    let asked = scene.asked();
    assert!(asked.iter().all(|asked| !asked.contains("/nodes/host")), "{asked:?}");
}

/// Its image was replaced, or `enforcer cleanup --state` has removed the file.
#[test]
fn a_taint_of_which_there_is_no_record_is_removed_at_the_start() {
    let scene = Marking::new();
    scene.leave_taint();
    let marks = scene.start(TAINT).unwrap();
    scene.wait(None, None);
    drop(marks);
    assert_eq!(scene.asked(), ["GET /api/v1/nodes/n", "PATCH /api/v1/nodes/n"], "it is looked for once");
    let marks = scene.start(TAINT).unwrap();
    until("another look", || scene.asked().len() == 3);
    drop(marks);
    assert_eq!(scene.asked().len(), 3, "{:?}", scene.asked());
}

#[test]
fn while_a_name_is_only_guessed_nothing_is_removed_without_a_record() {
    let scene = Marking::new();
    scene.leave_taint();
    drop(scene.start_by_guess(TAINT, "n").unwrap());
    assert_eq!(scene.ours(), (Some(String::from("NoSchedule")), None));
    assert_eq!(scene.asked(), [""; 0]);
}

#[test]
fn a_node_that_changes_at_the_stop_is_asked_again() {
    let scene = Marking::new();
    let marks = scene.start(ALL).unwrap();
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    scene.api.change(|server| server.node["metadata"]["changes"] = json!(2));
    drop(marks);
    assert_eq!(scene.ours(), (None, None));
    assert!(std::fs::read_dir(scene.state.path()).unwrap().next().is_none(), "nothing is left to remove");
}

#[test]
fn a_condition_that_cannot_be_removed_keeps_no_taint_there() {
    let scene = Marking::new();
    let marks = scene.start(ALL).unwrap();
    marks.set_short(true);
    scene.wait(Some("NoSchedule"), Some("True"));
    scene.api.change(|server| server.node["metadata"]["isConditionRefused"] = true.into());
    let begin = Instant::now();
    drop(marks);
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(scene.ours(), (None, Some(String::from("True"))));
    // The next start finds what is left.
    assert!(scene.state.path().join("node-marks.json").exists());
}

#[test]
fn a_record_that_somebody_has_removed_keeps_nothing_from_being_set() {
    let scene = Marking::new();
    let name = Arc::new(Mutex::new("gone"));
    let shown = Arc::clone(&name);
    let node: NodeName =
        Arc::new(move || Named { name: (*shown.lock().unwrap()).to_owned(), is_guess: false });
    let server = ApiServer::in_this_process_named(node, scene.api.access()).unwrap();
    let marks = NodeMarks::start(&scene.journal, scene.state.path(), ALL, server).unwrap();
    let record = scene.state.path().join("node-marks.json");
    until("the record", || record.exists());
    std::fs::remove_file(&record).unwrap();
    *name.lock().unwrap() = "n";
    scene.wait(None, Some("False"));
    drop(marks);
    assert_eq!(scene.ours(), (None, None));
}

#[test]
fn a_taint_that_is_there_is_not_set_again() {
    let api = Api::serve();
    let before = json!({"metadata": {"resourceVersion": "1"}, "spec": {}});
    api.change(|server| server.node = before);
    let server = api.server();
    let call = Call::Taint { node: String::from("n"), effect: Some(TaintEffect::PreferNoSchedule) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |call: Call| runtime.block_on(server.ask(Lane::Events, call)).unwrap();
    assert!(matches!(ask(call.clone()), Outcome::Done { .. }));
    assert!(matches!(ask(call), Outcome::Done { .. }));
    let taints = api.change(|server| (server.node["spec"]["taints"].clone(), server.asked.len()));
    assert_eq!(taints.0, json!([{"key": "enforcer.dev/memory-pressure", "effect": "PreferNoSchedule"}]));
    assert_eq!(taints.1, 3, "what is as it should be is not written again");
    let nonsense = Call::Condition { node: String::from("../x"), status: None };
    assert!(runtime.block_on(server.ask(Lane::Events, nonsense)).is_err());
}
