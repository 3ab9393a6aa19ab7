//! What the metrics count is what the events tell.

use enforcer_tests::wait::{TIMEOUT, wait_until};

use super::{LEFT_BYTES, MIB, Scene, THRESHOLD_BYTES, to_leave};

#[guest_test(daemon)]
fn an_eviction_moves_its_counters_and_no_others() {
    let threshold = THRESHOLD_BYTES / MIB;
    let settings = format!("metricsPodNames: true\nevictionHard: {{memory.available: {threshold}Mi}}");
    let mut scene = Scene::open_with("eviction-metrics", &settings);
    let filler = scene.fill(&to_leave(THRESHOLD_BYTES + 300 * MIB));
    let next = "enforcer_next_victim_info{rank=\"1\",namespace=\"default\",pod=\"filler\"} 1\n";
    wait_until("the only one there is to be named", || scene.daemon.get("/metrics").unwrap().contains(next));
    let mut hog = scene.ramp("hog", "200Mi", LEFT_BYTES);
    let completed = scene.wait("eviction.completed", "hog");
    hog.wait_for_end(TIMEOUT).unwrap();
    // The gauges show what is so then.
    scene.wait_for_end_of_shortage();
    let answer = scene.daemon.get("/metrics").unwrap();
    let value = |row: &str| {
        let found = answer.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {row} in {answer}")).parse::<f64>().unwrap()
    };
    let labels = r#"signal="memory.available",qos="BestEffort",namespace="default",method="sigkill",outcome="completed""#;
    let near = |seen: f64, expected: f64| (seen - expected).abs() < 0.5;
    assert!(near(value(&format!("enforcer_evictions_total{{{labels}}}")), 1.0), "{answer}");
    let evictions: f64 = answer
        .lines()
        .filter(|line| line.starts_with("enforcer_evictions_total{"))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum();
    assert!(near(evictions, 1.0), "{answer}");
    for kind in ["eviction.decided", "eviction.signalled", "eviction.completed"] {
        let row = format!("enforcer_events_written_total{{type=\"{kind}\"}}");
        assert!(near(value(&row), 1.0), "{row}: {answer}");
    }
    for phase in ["decide", "signal", "exit"] {
        let row = format!("enforcer_eviction_duration_seconds_count{{phase=\"{phase}\"}}");
        assert!(near(value(&row), 1.0), "{row}: {answer}");
    }
    if let Some(freed_bytes) = completed["data"]["freedBytes"].as_u64() {
        let freed_bytes: f64 = freed_bytes.to_string().parse().unwrap();
        assert!(near(value("enforcer_eviction_freed_bytes_total"), freed_bytes), "{answer}");
    }
    // Sensed by eBPF, and none of it lost.
    assert!(value("enforcer_bpf_programs_attached") > 0.0, "{answer}");
    assert!(near(value("enforcer_bpf_ringbuf_lost_total"), 0.0), "{answer}");
    assert!(value(r#"enforcer_memory_headroom_bytes{threshold="hard"}"#) > 0.0, "{answer}");
    let kubepods = r#"enforcer_pressure_waiting_seconds_total{resource="memory",slice="kubepods"}"#;
    assert!(value(kubepods) >= 0.0, "{answer}");
    assert!(value(r#"enforcer_candidates{qos="Burstable"}"#) > 0.5, "the filler: {answer}");
    drop(filler);
    scene.clear(&["hog", "filler"]);
    scene.daemon.stop().unwrap();
}
