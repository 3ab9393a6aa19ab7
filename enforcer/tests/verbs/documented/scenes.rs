//! What the commands of a page find: files, a daemon with set answers, or a real one. The pages are about one node, on
//! which `default/hog` grows until it is evicted.
use std::{
    env, fs,
    ops::Deref,
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use enforcer::{
    journal::EventType,
    sense::{Facts, HostFacts, MarkArgument, Resolved, choose, ladder},
};
use enforcer_common::offsets::Offsets;
use serde_json::{Value, json};

use crate::{
    Scene,
    daemon::Answers,
    foreseen::{answers, headroom, ranking},
    ids,
    journal::{Recorded, crossed, decided, eviction, oom, with},
    moments,
    terminal::{TIMEOUT, Terminal},
};

const MIB: u64 = 1 << 20;

/// A scene whose daemon ends with it.
pub(super) struct Staged {
    scene: Scene,
    daemon: Option<Child>,
}

impl Deref for Staged {
    type Target = Scene;

    fn deref(&self) -> &Scene {
        &self.scene
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            // It may have ended already.
            drop(daemon.kill());
            drop(daemon.wait());
        }
    }
}

/// The scene of a page.
pub(super) fn of(page: &str) -> Option<Staged> {
    let scene = Scene::new();
    match page {
        "docs/planning.md" => plan(&scene),
        "docs/why.md" => {
            let mut daemon = node("enforce");
            daemon.insert("/v1/events", events(&[eviction(), oom()].concat()));
            scene.answer(daemon);
        }
        "docs/top.md" => {
            let mut daemon = node("dry-run");
            let lost =
                choose(&without_fentry()).lost.into_iter().find(|lost| lost.what == "limitOwner").unwrap();
            let degraded = json!({"what": lost.what, "message": lost.message()});
            let decision = with(decided(), &json!({"dryRun": true}));
            let events = events(&[
                (EventType::DegradedEntered, None, degraded),
                crossed(),
                (EventType::EvictionDecided, Some("default/hog"), decision),
            ]);
            daemon.insert("/v1/events", events);
            scene.answer(daemon);
        }
        "docs/doctor.md" => {
            let (facts, mut daemon) = (without_fentry(), node("enforce"));
            let facilities = ladder(&facts, &HostFacts::default(), &choose(&facts));
            let doctor = json!({"facilities": facilities,
                "programs": {"error": null, "attached": ["mark_victim_task"], "failed": []}});
            daemon.insert("/v1/doctor", doctor.to_string().into_bytes());
            scene.answer(daemon);
        }
        "docs/events.md" => return Some(running()),
        _ => return None,
    }
    Some(Staged { scene, daemon: None })
}

/// A real daemon, over the journal of an earlier one.
pub(super) fn running() -> Staged {
    let scene = Scene::new();
    scene.remember(&[eviction(), oom()].concat());
    // Whatever the umask of who runs this lets through.
    fs::set_permissions(scene.path("run"), fs::Permissions::from_mode(0o750)).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    run.arg("--config").arg(scene.path("config.yaml")).arg("run");
    let daemon = run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let staged = Staged { scene, daemon: Some(daemon) };
    let start = Instant::now();
    while staged.raw(&["--live", "status"]).status != 0 {
        assert!(start.elapsed() < TIMEOUT, "{:?}", staged.raw(&["--live", "status"]));
        thread::sleep(Duration::from_millis(50));
    }
    staged
}

impl Scene {
    /// What a command of a page prints on a terminal. One that does not end is looked at until its screen is the expected
    /// one, or for long enough.
    pub(super) fn printed(&self, command: &str, is_expected: impl Fn(&str) -> bool) -> String {
        let goes_on = ["enforcer top", "curl "].iter().any(|begin| command.starts_with(begin));
        // Ended by a prompt, as in a shell.
        let script = if goes_on { format!("exec {command}") } else { format!("{command}; printf '$ '") };
        let script = script.replace("/run/enforcer/", &format!("{}/", self.path("run").display()));
        self.install();
        let path = format!("{}:{}", self.path("bin").display(), env::var("PATH").unwrap());
        let size = if command == "enforcer top" { (104, 30) } else { (80, 200) };
        let mut terminal = Terminal::start("sh", size, |sh| {
            sh.args(["-c", &script])
                .current_dir(self.path(""))
                .env("PATH", path)
                .env_remove("ENFORCER_SOCKET");
        });
        if !goes_on {
            terminal.until("it has ended", |screen| text(screen).lines().last() == Some("$"));
            return text(&terminal.screen()).trim_end_matches('$').trim_end().to_owned();
        }
        if command == "enforcer top" {
            terminal.until_shown("+ default/cache");
            // The fourth row is that pod; its containers too.
            terminal.press("jjj\r");
        }
        terminal.shows(|screen| is_expected(&text(screen)));
        text(&terminal.screen())
    }

    /// Has a shell find `enforcer`, with the configuration of the scene.
    fn install(&self) {
        let (program, config) = (env!("CARGO_BIN_EXE_enforcer"), self.path("config.yaml"));
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *--config*) exec {program} \"$@\";; esac\nexec {program} --config {} \"$@\"\n",
            config.display()
        );
        fs::create_dir_all(self.path("bin")).unwrap();
        let path = self.path("bin/enforcer");
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// What a screen shows. Times, and ids that were drawn, become the pages'.
fn text(screen: &vt100::Screen) -> String {
    let contents = ids(&moments(&screen.contents()));
    let contents = contents.replace("01DRAWNDRAWNDRAWNDRAWNDRAW", "01J8Z3NDEKTSV4RRFFQ69G5FAV");
    let lines: Vec<_> = contents.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

/// The files of the commands that need no daemon.
fn plan(scene: &Scene) {
    let pods = "apiVersion: v1
kind: Pod
metadata: {name: shop}
spec:
  initContainers:
  - name: proxy
    restartPolicy: Always
    resources: {requests: {cpu: 50m, memory: 32Mi}}
  containers:
  - name: app
    resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 1, memory: 2Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: bank}
spec: {containers: [{name: app, resources: {limits: {cpu: 2, memory: 4Gi}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: batch}
spec: {containers: [{name: app}]}
---
apiVersion: v1
kind: Pod
metadata: {name: warehouse}
spec: {containers: [{name: app, resources: {requests: {memory: 4Gi}}}]}
";
    let web = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    resources:\n      \
               request: {memory: 1Gi}\n";
    let auto = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nkubeReservedPolicy: auto\n";
    let stats = r#"{"pods": {
  "default/shop":  {"workingSetBytes": 1288490188, "processCount": 12},
  "default/bank":  {"workingSetBytes": 3221225472, "processCount": 40},
  "default/batch": {"workingSetBytes": 524288000, "processCount": 3}
}}
"#;
    for (name, text) in
        [("pods/all.yaml", pods), ("web.yaml", web), ("auto.yaml", auto), ("stats.json", stats)]
    {
        fs::write(scene.path(name), text).unwrap();
    }
}

/// Events that were reported fourteen hours ago, as the daemon answers them.
fn events(reported: &[Recorded]) -> Vec<u8> {
    let scene = Scene::new();
    scene.remember(reported);
    let time = jiff::Timestamp::now() - Duration::from_mins(14 * 60 + 30);
    let time = time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    let lines = scene.raw(&["-o", "jsonl", "events"]).out;
    let earlier = |line: &str| {
        let mut event: Value = serde_json::from_str(line).unwrap();
        event["time"] = json!(time);
        format!("{event}\n")
    };
    lines.lines().map(earlier).collect::<String>().into_bytes()
}

/// A kernel that offers all but attaching to the entries of functions.
fn without_fentry() -> Facts {
    let offsets = Offsets { oom_control_memcg: 16, ..Offsets::NONE };
    Facts {
        btf: Some(true),
        mark_argument: Some(MarkArgument::Task),
        out_of_memory: Some(true),
        fentry: Some(false),
        resolved: Some(Resolved { offsets, absent: Vec::new() }),
        ..Facts::default()
    }
}

/// What a daemon in that mode says of the node.
fn node(mode: &str) -> Answers {
    let ranking = ranked();
    let mut pods: Vec<_> = ranking["order"].as_array().unwrap().iter().map(pod).collect();
    for (namespace, name, mib, limit_mib, critical) in
        [("default", "billing", 3_700, 4_096, false), ("kube-system", "dns", 31, 70, true)]
    {
        pods.push(pod(&json!({
            "namespace": namespace, "name": name, "uid": name, "qosClass": "Guaranteed", "priority": 0, "critical": critical,
            "requestBytes": limit_mib * MIB, "limitBytes": limit_mib * MIB, "currentBytes": mib * MIB,
            "anonBytes": (mib - 4) * MIB, "fileBytes": 4 * MIB, "shmemBytes": 0,
        })));
    }
    let protect = json!({"order": "protect", "namespace": "default", "name": "billing", "reason": "a migration", "uid": 0,
        "given": "2026-01-31T12:00:00Z", "until": "2026-01-31T13:00:00Z", "leftMs": 3_599_000});
    let orders = if mode == "enforce" { json!([]) } else { json!([protect]) };
    let mut headroom = headroom();
    headroom["slices"] = json!([
        slice(
            "/kubepods",
            6_891,
            &json!({"limitBytes": 8_000 * MIB, "someAvg10Percent": 12.5, "fullAvg10Percent": 3.25})
        ),
        slice("/kubepods/burstable", 1_910, &json!({"someAvg10Percent": 0.3, "fullAvg10Percent": 0.0})),
        slice("/kubepods/besteffort", 1_250, &json!({})),
    ]);
    let mut daemon = answers(&ranking, &headroom, mode, &orders);
    let memories = json!({"nodeStall": {"someAvg10Percent": 12.5, "fullAvg10Percent": 3.25}, "omitted": 0,
        "pods": pods.iter().map(|(_, memory)| memory).collect::<Vec<_>>()});
    let view = json!({"mode": mode, "memoryPressure": true,
        "pods": pods.iter().map(|(pod, _)| pod).collect::<Vec<_>>()});
    daemon.insert("/v1/pods", view.to_string().into_bytes());
    daemon.insert("/v1/containers", memories.to_string().into_bytes());
    daemon
}

fn slice(cgroup: &str, mib: u64, more: &Value) -> Value {
    let name = cgroup.rsplit('/').next().unwrap();
    with(json!({"name": name, "cgroup": cgroup, "currentBytes": mib * MIB}), more)
}

/// The ranking, with the one that grows.
fn ranked() -> Value {
    let mut ranking = ranking();
    for row in ranking["order"].as_array_mut().unwrap() {
        let (is_hog, usage) = (row["name"] == "hog", row["usageBytes"].as_u64().unwrap());
        let file = if is_hog { 9 * MIB } else { usage / 8 };
        let more = json!({
            "uid": row["name"], "qosClass": if is_hog { "BestEffort" } else { "Burstable" }, "fileBytes": file,
            "anonBytes": usage - file, "growthBytesPerSecond": if is_hog { 100 * MIB } else { 0 },
        });
        *row = with(row.take(), &more);
    }
    ranking
}

/// A pod as `/v1/pods` and as `/v1/containers` has it, by its row; the cache has a sidecar.
fn pod(row: &Value) -> (Value, Value) {
    let memory = |current: u64| {
        let share = |key: &str| {
            row[key].as_u64().unwrap() * (current / MIB) / (row["currentBytes"].as_u64().unwrap() / MIB)
        };
        json!({"currentBytes": current, "anonBytes": share("anonBytes"), "fileBytes": share("fileBytes"),
            "shmemBytes": share("shmemBytes"), "limitBytes": row["limitBytes"],
            "stall": {"someAvg10Percent": if row["name"] == "hog" { 4.2 } else { 0.0 }, "fullAvg10Percent": 0.0}})
    };
    let whole = row["currentBytes"].as_u64().unwrap();
    let containers = match row["name"].as_str() {
        Some("cache") => vec![("app", "app", whole - 40 * MIB), ("proxy", "sidecar", 40 * MIB)],
        _ => vec![("app", "app", whole)],
    };
    let of_pod = |(name, kind, _): &(&str, &str, u64)| json!({"name": name, "kind": kind, "oomScoreAdj": 0, "cgroup": "/x", "cgroupId": 1});
    let view = json!({
        "namespace": row["namespace"], "name": row["name"], "uid": row["uid"], "qosClass": row["qosClass"],
        "priority": row["priority"], "critical": row["critical"] == true, "requestBytes": row["requestBytes"],
        "limitBytes": row["limitBytes"], "state": "active", "reason": null, "startsUnderMemoryPressure": true,
        "cgroup": "/x", "containers": containers.iter().map(of_pod).collect::<Vec<_>>(),
    });
    let of_memory = |(name, _, bytes): &(&str, &str, u64)| with(memory(*bytes), &json!({"name": name}));
    let memories: Vec<_> = containers.iter().map(of_memory).collect();
    (view, with(memory(whole), &json!({"uid": row["uid"], "containers": memories})))
}
