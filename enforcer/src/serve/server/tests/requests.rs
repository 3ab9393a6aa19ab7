//! What is answered to requests of every kind.

use futures_util::StreamExt as _;
use http_body_util::BodyDataStream;
use sse_stream::SseStream;

use super::*;

impl Served {
    /// What is answered to a whole request.
    async fn ask(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(Observe::path(&self.temp.path().join("run"))).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn get_with(&self, target: &str, headers: &str) -> String {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")).await
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_reported_with_what_would_be_right() {
    let served = serve().await;
    let long = "x".repeat(5_000);
    let endless = "x".repeat(100_000);
    let many = "x: y\r\n".repeat(200);
    for (target, headers, status, reported) in [
        ("/v1/evnets", "", "404", "did you mean /v1/events?"),
        ("/", "", "404", r#""paths":["/v1/events","/v1/pods","#),
        (&format!("/v1/events?pod={long}"), "", "414", "request line"),
        (&format!("/v1/events?pod={endless}"), "", "414", "request line"),
        ("/v1/pods", &format!("x: {endless}\r\n"), "431", ""),
        ("/v1/pods", &many, "431", ""),
        (
            "/v1/pods?namespace=a",
            "",
            "400",
            r#""error":"\"namespace\" is not a parameter of /v1/pods: it takes none""#,
        ),
        ("/v1/orders?&x", "", "400", r#""parameters":[]"#),
        ("/v1/ranking?n=3", "", "400", "there is only signal"),
        ("/v1/events?limit=3", "", "400", "There are after, follow, type, namespace, pod, since"),
        ("/v1/doctor?", "", "200", "facilities"),
        ("/livez?verbose", "", "200", "ok"),
        ("/v1/pods", "Content-Length: 20000\r\n", "413", "16384 bytes"),
        ("/v1/events?type=pod.aded", "", "400", "did you mean pod.added?"),
        ("/v1/events?after=12", "", "400", r#""newest":""#),
        ("/v1/events?pod=a&pod=b", "", "400", "given twice"),
        ("/v1/events?pod=%ff", "", "400", "pod: "),
        ("/v1/events", "Last-Event-ID: 12\r\n", "400", "Last-Event-ID: \\\"12\\\" is not a cursor"),
        ("/v1/events", "Last-Event-ID: a\r\nLast-Event-ID: b\r\n", "400", "given twice"),
        ("/v1/events", "Last-Event-ID: \u{e9}\r\n", "400", "is not a cursor"),
        ("/v1/events", "Accept: text/html\r\n", "406", "text/event-stream"),
        ("/v1/events", "Accept: text/event-stream;q=7\r\n", "400", "not a media range"),
    ] {
        let answer = served.get_with(target, headers).await;
        let shown = &answer[..answer.len().min(500)];
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{target:.60} {headers:.60}: {shown}");
        assert!(answer.contains(reported), "{target:.60} {headers:.60}: {shown}");
    }
    let answer = served.ask("DELETE /v1/pods HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: GET"), "{answer}");
    assert!(answer.contains("/v1/pods does not take DELETE"), "{answer}");
    let answer = served.ask("nonsense\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
}

#[tokio::test]
async fn the_running_configuration_is_served() {
    let answer = serve().await.get_with("/v1/config", "").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""configHash":"h1""#), "{answer}");
}

#[tokio::test]
async fn a_cursor_from_the_future_is_answered_with_the_newest() {
    let served = serve().await;
    let newest = served.append(EventType::PodAdded, "p");
    let cursor = |sequence| served.journal.cursor(sequence);
    let answer = served.get_with(&format!("/v1/events?after={}", cursor(newest + 5)), "").await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(
        answer.contains("is in the future: the newest event has")
            && answer.contains(&cursor(newest).to_string()),
        "{answer}"
    );
    let other = format!("/v1/events?after=01J8Z3NDEKTSV4RRFFQ69G5FAV:{:020}", newest + 5);
    let answer = served.get_with(&other, "").await;
    assert!(answer.starts_with("HTTP/1.1 410") && answer.contains("of another log"), "{answer}");
}

#[tokio::test]
async fn the_schema_of_events_is_served() {
    let answer = serve().await.get_with("/v1/schema", "").await;
    assert!(answer.contains("content-type: application/schema+json"), "{answer:.300}");
    assert!(answer.ends_with(enforcer_events::SCHEMA));
}

#[tokio::test]
async fn a_body_that_comes_is_not_taken() {
    let served = serve().await;
    let body = "x".repeat(150_000);
    let answer = served
        .ask(&format!("GET /v1/pods HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        .await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

/// By a client library: what it reads, and where it goes on.
async fn events_of(answer: String) -> Vec<sse_stream::Sse> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
    let body = axum::body::Body::from(body.to_owned());
    let events = SseStream::from_bytes_stream(BodyDataStream::new(body)).map(Result::unwrap);
    events.collect().await
}

#[tokio::test]
async fn server_sent_events_are_resumed_by_their_ids() {
    let served = serve().await;
    for n in 0..20 {
        served.append(EventType::PodAdded, &format!("p{n}"));
        served.append(EventType::PodRemoved, &format!("p{n}"));
    }
    let get = async |target: &str, last: &str| {
        let headers = format!("Accept: text/event-stream\r\n{last}");
        // In one piece: HTTP/1.0 has no chunks.
        served.ask(&format!("GET {target} HTTP/1.0\r\n{headers}\r\n")).await
    };
    let all = events_of(get("/v1/events?follow=false&type=pod.added", "").await).await;
    assert_eq!(all[0].retry, Some(2_000));
    let all: Vec<_> = all.into_iter().filter(|event| event.data.is_some()).collect();
    assert_eq!(all.len(), 20);
    for (n, event) in all.iter().enumerate() {
        assert_eq!(event.event.as_deref(), Some("dev.enforcer.pod.added"));
        let sequence = u64::try_from(2 * n + 1).unwrap();
        assert_eq!(event.id, Some(served.journal.cursor(sequence).to_string()));
        let line: serde_json::Value = serde_json::from_str(event.data.as_deref().unwrap()).unwrap();
        assert_eq!(line["sequence"], format!("{sequence:020}"));
    }
    // The header counts, not the address that it had at first.
    let last = format!("Last-Event-ID: {}\r\n", all[11].id.as_deref().unwrap());
    let target = format!("/v1/events?follow=0&type=pod.added&after={}", served.journal.cursor(3));
    let rest: Vec<_> = events_of(get(&target, &last).await)
        .await
        .into_iter()
        .filter(|event| event.data.is_some())
        .map(|event| event.id)
        .collect();
    assert_eq!(rest, all[12..].iter().map(|event| event.id.clone()).collect::<Vec<_>>());
    let empty = get(&target, "Last-Event-ID:\r\n").await;
    assert_eq!(empty.matches("event: ").count(), 18);
    let gone = get(&target, "Last-Event-ID: 01J8Z3NDEKTSV4RRFFQ69G5FAV:2\r\n").await;
    assert!(gone.starts_with("HTTP/1.0 410") && gone.contains("\"lost\""), "{gone}");
}

#[tokio::test]
async fn an_answer_says_what_is_kept() {
    let served = serve().await;
    served.append(EventType::PodAdded, "a");
    served.append(EventType::PodAdded, "b");
    let answer = served.get("/v1/events").await;
    let [oldest, newest] = [1, 2].map(|sequence| served.journal.cursor(sequence));
    assert!(answer.contains(&format!("enforcer-oldest: {oldest}\r\n")), "{answer}");
    assert!(answer.contains(&format!("enforcer-newest: {newest}\r\n")), "{answer}");
    assert!(answer.contains("content-type: application/x-ndjson\r\n") && answer.contains("vary: accept\r\n"));
}
