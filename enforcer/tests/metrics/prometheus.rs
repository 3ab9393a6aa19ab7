//! The rules and the dashboard, by a real Prometheus that scrapes the real daemon.

use std::{
    collections::BTreeSet,
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    daemon::{Daemon, Running, ask, body, free_address, get, wait_for},
    page::Page,
};

/// The folder of `prometheus` and `promtool`; without it they are looked for on the path.
const FOLDER: &str = "ENFORCER_PROMETHEUS";

/// Says that there is no Prometheus, and that these tests are to be passed over.
const WITHOUT: &str = "ENFORCER_WITHOUT_PROMETHEUS";

const RULES: [&str; 2] =
    ["packaging/prometheus/enforcer.rules.yaml", "packaging/prometheus/enforcer-fleet.rules.yaml"];
const RULES_TESTS: [&str; 2] =
    ["packaging/prometheus/enforcer.test.yaml", "packaging/prometheus/enforcer-fleet.test.yaml"];
const DASHBOARDS: [&str; 2] =
    ["packaging/grafana/enforcer-node.json", "packaging/grafana/enforcer-fleet.json"];

/// Queries about these need not have data here: no sink is set, no pod runs, and a host may lack nothing.
const MAY_BE_EMPTY: &[&str] =
    &["enforcer_event_sink_", "enforcer_next_victim_info", "enforcer_degraded", "enforcer_nodes_degraded"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The program, or none if whoever runs the tests says that there is none.
fn program(name: &str) -> Option<PathBuf> {
    if env::var_os(WITHOUT).is_some_and(|value| value == "1") {
        return None;
    }
    let folders = match env::var_os(FOLDER) {
        Some(folder) => vec![PathBuf::from(folder)],
        None => env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect(),
    };
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    let found = found.unwrap_or_else(|| {
        panic!(
            "{name} is not there: `cargo xtask test` brings it; or `apt-get install --no-install-recommends prometheus`, \
             and {FOLDER} names its folder if that is not on the path; {WITHOUT}=1 passes these tests over"
        )
    });
    Some(found)
}

fn promtool(arguments: &[&str]) {
    let Some(promtool) = program("promtool") else { return };
    let output = Command::new(promtool).args(arguments).current_dir(root()).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {reported}");
}

#[test]
fn the_rules_are_rules() {
    for rules in RULES {
        promtool(&["check", "rules", "--lint=all", "--lint-fatal", rules]);
    }
}

#[test]
fn every_alert_fires_and_resolves() {
    for test in RULES_TESTS {
        promtool(&["test", "rules", test]);
    }
    let tested = RULES_TESTS.map(|test| fs::read_to_string(root().join(test)).unwrap()).concat();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let looks = tested.split("alertname: ").filter(|rest| rest.lines().next() == Some(name));
        let fires: Vec<_> = looks.map(|rest| !rest.lines().nth(1).unwrap().contains("[]")).collect();
        assert!(fires.windows(3).any(|three| three == [false, true, false]), "{name}: {fires:?}");
    }
}

#[test]
fn every_alert_says_what_to_do() {
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let text = |of: &str, key: &str| alert[of][key].as_str().unwrap_or_default().to_owned();
        assert!(["info", "warning", "critical"].contains(&text("labels", "severity").as_str()), "{name}");
        assert!(
            !text("annotations", "summary").is_empty() && !text("annotations", "description").is_empty(),
            "{name}"
        );
        let page = text("annotations", "runbook_url");
        assert!(page.ends_with(&format!("/docs/runbooks/{name}.md")), "{page}");
        let runbook = fs::read_to_string(root().join(format!("docs/runbooks/{name}.md"))).unwrap();
        assert!(runbook.contains("## Look\n") && runbook.contains("## Do\n"), "{name}");
    }
}

/// All rules of all files.
fn rules() -> Vec<Value> {
    let files = RULES.map(|rules| fs::read_to_string(root().join(rules)).unwrap());
    let files = files.map(|text| serde_saphyr::from_str::<Value>(&text).unwrap());
    let groups = files.iter().flat_map(|rules| rules["groups"].as_array().unwrap());
    groups.flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

/// All alerts, as the rules have them.
fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| !rule["alert"].is_null()).collect()
}

/// The names of recorded series.
fn recorded() -> BTreeSet<String> {
    rules().iter().filter_map(|rule| rule["record"].as_str()).map(str::to_owned).collect()
}

/// Every query of the dashboards, as Grafana sends it.
fn queries() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(entries) => {
                found.extend(entries.get("expr").and_then(Value::as_str).map(str::to_owned));
                entries.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for dashboard in DASHBOARDS {
        let text = fs::read_to_string(root().join(dashboard)).unwrap();
        collect(&serde_json::from_str(&text).unwrap(), &mut found);
    }
    found.iter().map(|query| query.replace("$instance", ".+").replace("$__rate_interval", "30s")).collect()
}

/// The names of metrics and of recorded series in a query.
fn metrics_in(query: &str) -> BTreeSet<String> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || ['_', ':'].contains(&character);
    let words = query.split(|character: char| !is_name(character));
    words
        .filter(|word| {
            word.starts_with("enforcer_") || word.starts_with("process_") || word.contains(":enforcer_")
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn queries_name_only_metrics_that_there_are() {
    let daemon = Daemon::start("");
    let names = Page::of(body(&daemon.get("/metrics"))).names();
    let (alerts, recorded) = (alerts(), recorded());
    let of_rules: Vec<_> = rules().iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    let mut asked = BTreeSet::new();
    for query in queries().into_iter().chain(of_rules) {
        let metrics = metrics_in(&query);
        assert!(!metrics.is_empty() || query.contains("up{"), "{query}");
        for metric in metrics {
            assert!(names.contains(&metric) || recorded.contains(&metric), "{metric} in {query}");
            asked.insert(metric);
        }
    }
    assert!(asked.len() > 35, "{asked:?}");
    let page = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    for alert in &alerts {
        assert!(page.contains(alert["alert"].as_str().unwrap()), "docs/metrics.md lacks {}", alert["alert"]);
    }
    for series in &recorded {
        assert!(page.contains(&format!("`{series}`")), "docs/metrics.md lacks {series}");
        assert!(asked.contains(series), "no panel shows {series}");
    }
}

/// A Prometheus that scrapes one daemon.
struct Prometheus {
    address: SocketAddr,
    _process: Running,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(program: &Path, target: SocketAddr) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), free_address());
        let rules = RULES.map(|rules| root().join(rules));
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 1s}}\n\
             rule_files: {rules:?}\n\
             scrape_configs:\n  - job_name: enforcer\n    static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        fs::write(folder.path().join("prometheus.yaml"), config).unwrap();
        let process = Command::new(program)
            .arg(format!("--config.file={}", folder.path().join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut process = Running(process);
        wait_for("Prometheus", || {
            assert!(process.0.try_wait().unwrap().is_none(), "Prometheus ended");
            let stream = std::net::TcpStream::connect(address).ok()?;
            ask(stream, "GET", "/-/ready").starts_with("HTTP/1.0 200").then_some(())
        });
        Self { address, _process: process, _folder: folder }
    }

    fn ask(&self, target: &str) -> Value {
        serde_json::from_str(body(&get(self.address, target))).unwrap()
    }

    /// The rows that a query has; an error of it fails the test.
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded = query.bytes().fold(String::new(), |so_far, byte| format!("{so_far}%{byte:02X}"));
        let answer = self.ask(&format!("/api/v1/query?query={encoded}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        assert!(answer["warnings"].is_null(), "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }
}

#[test]
fn prometheus_scrapes_it_and_answers_every_query() {
    let Some(program) = program("prometheus") else { return };
    let target = free_address();
    let daemon = Daemon::start(&format!(
        "metricsListen: {target}\nmetricsPodNames: true\nevictionHard: {{memory.available: 100Mi}}\n\
         evictionSoft: {{memory.available: 200Mi}}\nevictionSoftGracePeriod: {{memory.available: 1m}}\n"
    ));
    daemon.add_pod(
        "web.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {containers: [{name: app}]}\n",
    );
    let prometheus = Prometheus::start(&program, target);
    // Rates need two scrapes, and a rate over a moment some more.
    wait_for("some scrapes", || {
        let rows = prometheus.query("count_over_time(up{job=\"enforcer\"}[1m]) > 5 and up == 1");
        (rows.len() == 1).then_some(())
    });
    wait_for("the pod's namespace", || {
        let rows = prometheus.query("enforcer_oom_kills_total{namespace=\"shop\"} offset 2s");
        (!rows.is_empty()).then_some(())
    });
    wait_for("what is recorded last", || {
        let rows = prometheus.query("phase_le:enforcer_eviction_duration_seconds_bucket:rate1h");
        (!rows.is_empty()).then_some(())
    });
    let targets = prometheus.ask("/api/v1/targets");
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&Value::from("up"), &Value::from("")), "{target}");

    let has_pressure = Path::new("/proc/pressure/memory").exists();
    let queries = queries();
    assert!(queries.len() > 50, "{}", queries.len());
    for query in &queries {
        let rows = prometheus.query(query);
        let may_be_empty = MAY_BE_EMPTY.iter().any(|part| query.contains(part))
            || (query.contains("enforcer_pressure_") && !has_pressure)
            // A comparison leaves rows out: nothing happens here, and the node is one of a fleet without trouble.
            || [" > 0", " < 3600", " == 0"].iter().any(|part| query.contains(part));
        assert!(may_be_empty || !rows.is_empty(), "{query} has no data");
    }
    for alert in alerts() {
        prometheus.query(alert["expr"].as_str().unwrap());
    }
    let rules = wait_for("every rule to be evaluated", || {
        let rules = prometheus.ask("/api/v1/rules");
        let groups = rules["data"]["groups"].as_array().unwrap().clone();
        let all: Vec<_> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect();
        let evaluated = all.iter().all(|rule| rule["health"] != "unknown");
        (!all.is_empty() && evaluated).then_some(all)
    });
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        // Nothing has happened here; the alerts about what a host lacks fire after an hour.
        assert_ne!(rule["state"], "firing", "{rule}");
    }
    // Nothing but what the page has came in, with its types.
    let metadata = prometheus.ask("/api/v1/metadata?metric=enforcer_evictions");
    assert_eq!(metadata["data"]["enforcer_evictions"][0]["type"], "counter", "{metadata}");
    drop(daemon);
    wait_for("its end to be seen", || {
        (prometheus.query("up{job=\"enforcer\"} == 0").len() == 1).then_some(())
    });
}
