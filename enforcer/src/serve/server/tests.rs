mod limits;
mod requests;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};

use super::*;
use crate::{
    journal::{EventType, RawEvent, Subject},
    model::PodName,
    policy::{Settings, admission::Amounts},
    sample,
    serve::{Headrooms, Ranker, RankingView},
};

struct Served {
    temp: tempfile::TempDir,
    journal: Journal,
    stop: watch::Sender<bool>,
    _ready: watch::Sender<bool>,
    _view: watch::Sender<View>,
    task: tokio::task::JoinHandle<Result<(), Error>>,
    /// Whether the eviction thread is.
    is_stuck: Arc<AtomicBool>,
}

async fn serve() -> Served {
    serve_within(Limits::default()).await
}

async fn serve_within(limits: Limits) -> Served {
    let temp = tempfile::tempdir().unwrap();
    let is_stuck = Arc::new(AtomicBool::new(false));
    let journal = Journal::new("n1", "b1");
    let (view, views) = watch::channel(View { mode: "observe".into(), ..View::default() });
    let (ready, readies) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let observe = Observe::bind(&temp.path().join("run"), &Sockets::default()).await.unwrap();
    let requested = Requested {
        node: sample::node(),
        settings: Settings::default(),
        pods: Amounts::default(),
        reservations: Vec::new(),
    };
    let sources = Sources {
        journal: journal.clone(),
        doctor: Doctor::default(),
        recorder: None,
        usages: Usages::by(Vec::new),
        foresight: Foresight {
            ranker: Ranker::by(|signal| RankingView {
                signal: signal.as_str().to_owned(),
                ..RankingView::default()
            }),
            headrooms: Headrooms::by(|| None),
        },
        config: watch::channel(Arc::new(ConfigView { config_hash: "h1".into(), ..ConfigView::default() })).1,
        view: views,
        orders: watch::channel(Vec::new()).1,
        requested: watch::channel(requested).1,
        metrics: Scrape::by(|_format| Ok(String::from("# EOF\n"))),
        evictor: Vital::by({
            let is_stuck = Arc::clone(&is_stuck);
            move || !is_stuck.load(Ordering::Relaxed)
        }),
    };
    let task = tokio::spawn(observe.serve_within(limits, sources, readies, stopping));
    Served { temp, journal, stop, is_stuck, _ready: ready, _view: view, task }
}

impl Served {
    async fn open(&self, target: &str) -> UnixStream {
        let mut stream = UnixStream::connect(Observe::path(&self.temp.path().join("run"))).await.unwrap();
        stream.write_all(format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    async fn get(&self, target: &str) -> String {
        let mut answer = String::new();
        self.open(target).await.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn append(&self, kind: EventType, pod: &str) -> u64 {
        let pod = PodName { namespace: "default".into(), name: pod.into() };
        self.journal.append_raw(RawEvent { kind, subject: Subject::Pod(pod), data: json!({}) })
    }
}

#[tokio::test]
async fn events_come_filtered_and_from_a_cursor() {
    let served = serve().await;
    let first = served.append(EventType::PodAdded, "a");
    served.append(EventType::LimitsApplied, "a");
    served.append(EventType::PodAdded, "b");
    let all = served.get("/v1/events").await;
    assert!(all.starts_with("HTTP/1.0 200"), "{all}");
    assert_eq!(all.matches("specversion").count(), 3);
    let after =
        served.get(&format!("/v1/events?type=pod.added&after={}", served.journal.cursor(first))).await;
    assert_eq!(after.matches("specversion").count(), 1);
    assert!(after.contains("default/b"));
    assert!(served.get("/v1/events?type=nonsense").await.starts_with("HTTP/1.0 400"));
    let elsewhere = served.get("/v1/events?after=01J8Z3NDEKTSV4RRFFQ69G5FAV:2").await;
    assert!(elsewhere.starts_with("HTTP/1.0 410"), "{elsewhere}");
    assert!(elsewhere.contains("\"oldest\"") && elsewhere.contains("\"newest\""), "{elsewhere}");
}

#[tokio::test]
async fn a_follower_gets_what_comes_and_ends_with_the_daemon() {
    let served = serve().await;
    let mut stream = served.open("/v1/events?follow=true").await;
    served.append(EventType::PodAdded, "late");
    let mut answer = String::new();
    while !answer.contains("default/late") {
        let mut chunk = [0; 1024];
        let count = stream.read(&mut chunk).await.unwrap();
        assert_ne!(count, 0, "the stream ended: {answer}");
        answer.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
    }
    served.append(EventType::PodRemoved, "last");
    served.stop.send_replace(true);
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("default/last"), "{answer}");
    served.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_socket_is_for_owner_and_group_and_one_daemon() {
    let served = serve().await;
    let run_dir = served.temp.path().join("run");
    let mode = fs::metadata(Observe::path(&run_dir)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let taken = Observe::bind(&run_dir, &Sockets::default()).await;
    let own = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(taken, Err(Error::Taken { path: _, pid: Some(pid) }) if pid == own));
    served.stop.send_replace(true);
    served.task.await.unwrap().unwrap();
    Observe::bind(&run_dir, &Sockets::default()).await.unwrap();
}

#[tokio::test]
async fn health_and_pods_are_reported() {
    let served = serve().await;
    assert!(served.get("/livez").await.starts_with("HTTP/1.0 200"));
    served.is_stuck.store(true, Ordering::Relaxed);
    let stuck = served.get("/livez").await;
    assert!(
        stuck.starts_with("HTTP/1.0 503") && stuck.ends_with("the eviction thread is stuck\n"),
        "{stuck}"
    );
    served.is_stuck.store(false, Ordering::Relaxed);
    assert!(served.get("/readyz").await.starts_with("HTTP/1.0 503"));
    assert!(
        served
            .get("/v1/doctor")
            .await
            .ends_with(r#"{"facilities":[],"programs":{"error":null,"attached":[],"failed":[]}}"#)
    );
    assert!(served.get("/v1/pods").await.ends_with(r#"{"mode":"observe","memoryPressure":false,"pods":[]}"#));
}

#[tokio::test]
async fn what_may_come_is_reported_and_what_is_not_known_is_not_made_up() {
    let served = serve().await;
    let ranking = served.get("/v1/ranking?signal=pid.available").await;
    assert!(ranking.ends_with(r#"{"signal":"pid.available","order":[],"excluded":[]}"#), "{ranking}");
    let wrong = served.get("/v1/ranking?signal=pid.availabel").await;
    assert!(wrong.starts_with("HTTP/1.0 400") && wrong.contains("did you mean pid.available?"), "{wrong}");
    let headroom = served.get("/v1/headroom").await;
    assert!(headroom.starts_with("HTTP/1.0 503") && headroom.contains("enforcer doctor"), "{headroom}");
}
