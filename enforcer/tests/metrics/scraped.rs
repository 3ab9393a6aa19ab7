//! What the real daemon answers.

use std::{
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use crate::{
    daemon::{Daemon, ask, body, free_address, get, wait_for},
    page::Page,
};

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {containers: [{name: app}]}\n";

#[test]
fn the_observe_socket_reports_what_has_happened() {
    let daemon = Daemon::start("");
    let answer = daemon.get("/metrics");
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(
        answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
        "{answer}"
    );
    let before = Page::of(body(&answer));
    assert!(before.find("enforcer_oom_kills_total{").count() > 10);
    assert!(before.find("enforcer_evictions_total{").all(|(_, count)| *count == 0.0));
    assert_eq!(before.find("enforcer_evictions_total{").filter(|(row, _)| row.contains("shop")).count(), 0);
    assert!(before.get("process_resident_memory_bytes") > 1e6);
    assert!(before.get("enforcer_memory_available_bytes") > 1e6);
    assert_eq!(before.get(r#"enforcer_eviction_threshold_bytes{threshold="hard"}"#), 104_857_600.0);
    assert_eq!(before.find("enforcer_config_hash_info{").count(), 1);

    daemon.add_pod("web.yaml", POD);
    daemon.add_pod("bad.yaml", "kind: [");
    let after = wait_for("both manifests to be read", || {
        let page = Page::of(body(&daemon.get("/metrics")));
        let written = |kind: &str| page.get(&format!("enforcer_events_written_total{{type=\"{kind}\"}}"));
        (written("pod.added") == 1.0 && written("pod.rejected") >= 1.0).then_some(page)
    });
    let evictions: Vec<_> = after.find("enforcer_evictions_total{").collect();
    assert!(evictions.iter().any(|(row, _)| row.contains(r#"namespace="shop""#)), "{evictions:?}");
    assert_eq!(after.get(r#"enforcer_source_up{source="static"}"#), 1.0);
    assert!(after.get(r#"enforcer_source_last_sync_timestamp_seconds{source="static"}"#) > 1.7e9);
    assert!(
        after.get("enforcer_loop_duration_seconds_count")
            > before.get("enforcer_loop_duration_seconds_count")
    );
    let looks = r#"enforcer_reflex_looks_total{outcome="ok"}"#;
    wait_for("the eviction thread to look again", || {
        (Page::of(body(&daemon.get("/metrics"))).get(looks) > after.get(looks)).then_some(())
    });
}

#[test]
fn over_tcp_there_are_metrics_and_nothing_else() {
    let address = free_address();
    let daemon = Daemon::start(&format!("metricsListen: {address}\n"));
    let answer = wait_for("the address", || {
        let stream = TcpStream::connect(address).ok()?;
        Some(ask(stream, "GET", "/metrics"))
    });
    assert_eq!(Page::of(body(&answer)).families, Page::of(body(&daemon.get("/metrics"))).families);
    for target in ["/", "/v1/pods", "/v1/events", "/livez"] {
        assert!(get(address, target).starts_with("HTTP/1.0 404"), "{target}");
    }
    assert!(ask(TcpStream::connect(address).unwrap(), "POST", "/metrics").starts_with("HTTP/1.0 405"));

    // Clients that connect and send nothing take a place for two seconds, and no client of the socket waits for them.
    let silent: Vec<_> = (0..12).map(|_| TcpStream::connect(address).unwrap()).collect();
    let begin = Instant::now();
    assert!(daemon.get("/metrics").starts_with("HTTP/1.0 200"));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(get(address, "/metrics").starts_with("HTTP/1.0 200"));
    drop(silent);
}

#[test]
fn an_address_that_is_taken_does_not_prevent_the_start() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let daemon = Daemon::start(&format!("metricsListen: {}\n", listener.local_addr().unwrap()));
    let page = wait_for("the degraded metric", || {
        let page = Page::of(body(&daemon.get("/metrics")));
        let is_reported = page.find(r#"enforcer_degraded{reason="metricsListen"}"#).next().is_some();
        is_reported.then_some(page)
    });
    assert_eq!(page.get(r#"enforcer_degraded{reason="metricsListen"}"#), 1.0);
}

#[test]
fn a_reader_that_does_not_read_holds_up_no_other() {
    let daemon = Daemon::start("");
    let socket = daemon.folder.path().join("run/observe.sock");
    let stuck: Vec<_> = (0..30)
        .map(|_| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            // More answers than the kernel holds for a reader.
            let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(30);
            std::io::Write::write_all(&mut stream, requests.as_bytes()).unwrap();
            stream
        })
        .collect();
    daemon.add_pod("web.yaml", POD);
    let begin = Instant::now();
    wait_for("events to be appended and metrics to be served", || {
        let page = Page::of(body(&daemon.get("/metrics")));
        (page.get(r#"enforcer_events_written_total{type="pod.added"}"#) == 1.0).then_some(())
    });
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    drop(stuck);
}
