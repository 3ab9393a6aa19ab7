//! Readers that are many, slow, silent or asleep.

use std::time::{Duration, Instant};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

async fn patiently<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, work).await.unwrap()
}

/// Reads until that many events have come.
async fn read_events(stream: &mut UnixStream, count: usize, piece: usize, rest: Duration) {
    let (mut seen, mut chunk, mut tail) = (0, vec![0; piece], Vec::new());
    while seen < count {
        let read = stream.read(&mut chunk).await.unwrap();
        assert_ne!(read, 0, "hung up on after {seen} events");
        tail.extend_from_slice(&chunk[..read]);
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text: Vec<u8> = tail.drain(..whole).collect();
        seen += String::from_utf8(text).unwrap().matches("\"specversion\"").count();
        tokio::time::sleep(rest).await;
    }
}

#[tokio::test]
async fn a_hundred_followers_get_all_and_those_that_never_read_are_hung_up_on() {
    const EVENTS: usize = 2_000;
    // Longer than a busy machine keeps a reader waiting that does read.
    const STALLED: Duration = Duration::from_secs(6);
    let served = serve_within(Limits { stalled: STALLED, ..Limits::default() }).await;
    let mut asleep = Vec::new();
    for _ in 0..10 {
        asleep.push(served.open("/v1/events?follow=true").await);
    }
    let mut readers = tokio::task::JoinSet::new();
    for number in 0..90 {
        let mut stream = served.open("/v1/events?follow=true").await;
        let (piece, rest) =
            if number < 10 { (8_000, Duration::from_millis(5)) } else { (65_536, Duration::ZERO) };
        readers.spawn(async move { read_events(&mut stream, EVENTS, piece, rest).await });
    }
    for n in 0..EVENTS {
        served.append(EventType::PodAdded, &format!("a-pod-with-a-name-of-some-length-{n}"));
        if n % 100 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    patiently(async {
        while let Some(ended) = readers.join_next().await {
            ended.unwrap();
        }
    })
    .await;
    // Each got what its socket held, and then the end.
    tokio::time::sleep(STALLED + Duration::from_secs(1)).await;
    for mut stream in asleep {
        let mut rest = Vec::new();
        patiently(stream.read_to_end(&mut rest)).await.unwrap();
        let lines = String::from_utf8_lossy(&rest).matches("\"specversion\"").count();
        assert!(lines > 100 && lines < EVENTS, "{lines}");
    }
}

#[tokio::test]
async fn a_client_that_is_slow_or_silent_is_disconnected() {
    let served = serve_within(Limits { head: Duration::from_millis(400), ..Limits::default() }).await;
    let path = Observe::path(&served.temp.path().join("run"));
    let begun = Instant::now();
    let mut slow = UnixStream::connect(&path).await.unwrap();
    let mut idle = UnixStream::connect(&path).await.unwrap();
    idle.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    for byte in b"GET /v1/pods HTTP/1.1\r\n" {
        if slow.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Meanwhile others are served.
    assert!(served.get("/v1/pods").await.starts_with("HTTP/1.0 200"));
    let ended = patiently(slow.read_to_end(&mut rest)).await;
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"),
        "{ended:?} {}",
        String::from_utf8_lossy(&rest)
    );
    rest.clear();
    patiently(idle.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 503"), "{}", String::from_utf8_lossy(&rest));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn one_too_many_is_reported_to_come_again() {
    let limits = Limits { places: 4, kept: 1, refusals: 1, ..Limits::default() };
    let served = serve_within(limits).await;
    let mut followers = Vec::new();
    for _ in 0..4 {
        let mut stream = served.open("/v1/events?follow=true").await;
        let mut begun = [0; 12];
        patiently(stream.read_exact(&mut begun)).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.0 200");
        followers.push(stream);
    }
    let refused = patiently(served.get("/livez")).await;
    assert!(refused.starts_with("HTTP/1.0 503") && refused.contains("retry-after: 5"), "{refused}");
    followers.pop();
    let begun = Instant::now();
    while !patiently(served.get("/livez")).await.starts_with("HTTP/1.0 200") {
        assert!(begun.elapsed() < TIMEOUT, "the place is not free again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_does_not_delay_the_stop() {
    let limits = Limits { drain: Duration::from_millis(300), ..Limits::default() };
    let served = serve_within(limits).await;
    let asleep = served.open("/v1/events?follow=true").await;
    let mut awake = served.open("/v1/events?follow=true").await;
    for n in 0..3_000 {
        served.append(EventType::PodAdded, &format!("p{n}"));
    }
    let begun = Instant::now();
    served.stop.send_replace(true);
    let reading = tokio::spawn(async move {
        let mut text = String::new();
        awake.read_to_string(&mut text).await.unwrap();
        text
    });
    patiently(served.task).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(patiently(reading).await.unwrap().contains("default/p2999"), "it did not get the last event");
    drop(asleep);
}
