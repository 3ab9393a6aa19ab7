use std::{path::Path, thread, time::Duration};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::{
    super::{
        fake::{FakeKubelet, FakePod},
        message::{Change, HttpsFeed},
        pod::ApiPod,
        process,
    },
    *,
};
use crate::{
    network::{Certificates, Endpoint, Identity, Security, Trust},
    recorded::{self, Recorded},
};

/// Longer than anything takes that answers.
const LONG_MS: u64 = 60_000;

/// To be read at once, if another look was asked for before.
pub(in crate::specs) fn look(state: u64) -> Look {
    Look { state, is_of_concern: false }
}

/// A client whose process is a thread.
fn specs() -> Specs {
    Specs::start_with(|socket, theirs| {
        let kubelet = socket.map(|socket| helper::connect(&socket).map(StdStream::from)).transpose()?;
        theirs.set_nonblocking(true)?;
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let kubelet = kubelet.map(UnixStream::from_std).transpose()?;
                process::serve(UnixStream::from_std(theirs)?, kubelet).await
            })
        });
        Ok(None)
    })
    .unwrap()
}

fn pod(uid: &str, priority: i32) -> FakePod {
    FakePod {
        uid: uid.into(),
        namespace: "shop".into(),
        name: uid.into(),
        class: "Burstable".into(),
        priority,
        phase: "Running".into(),
        is_terminating: false,
        annotations: [(String::from("enforcer.dev/cgroup"), String::from("/system.slice"))].into(),
        labels: [(String::from("app"), String::from(uid))].into(),
        controller: String::from("ReplicaSet"),
        is_static: false,
        containers: vec![("app".into(), "1Gi".into(), String::new())],
    }
}

/// Each with its labels and its controller.
fn shown(pods: &[ApiPod]) -> Vec<(String, Option<i32>)> {
    for api in pods {
        let pod = api.to_pod().unwrap();
        assert_eq!(pod.labels.iter().collect::<Vec<_>>(), [("app", pod.uid.as_str())]);
        assert_eq!(
            pod.controller().map(|of| (&*of.kind, &*of.name, &*of.uid)),
            Some(("ReplicaSet", "o", "u-o"))
        );
    }
    pods.iter().map(|pod| (pod.metadata.uid.clone(), pod.spec.priority)).collect()
}

/// The revision, and the pods of a whole answer.
fn whole(update: Update) -> (u64, Vec<(String, Option<i32>)>) {
    match update.change {
        Some((revision, Change::Whole(pods))) => (revision, shown(&pods)),
        other => panic!("{other:?}"),
    }
}

fn serve_pods_api(folder: &Path) -> (FakeKubelet, Feed) {
    let socket = folder.join("pods.sock");
    let kubelet = FakeKubelet::new();
    tokio::spawn(kubelet.clone().serve_pods_api(UnixListener::bind(&socket).unwrap()));
    (kubelet, Feed::PodsApi(socket))
}

#[tokio::test]
async fn the_pods_api_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    let (kubelet, feed) = serve_pods_api(folder.path());
    kubelet.put(pod("a", 1));
    kubelet.put(pod("b", 2));
    let specs = specs();
    let (revision, pods) = whole(specs.next(feed.clone(), None, look(0), LONG_MS).await.unwrap());
    assert_eq!(pods, [("a".into(), Some(1)), ("b".into(), Some(2))]);
    let nothing = specs.next(feed.clone(), Some(revision), look(0), 50).await.unwrap();
    assert_eq!(nothing.change, None);

    let waiting = specs.next(feed.clone(), Some(revision), look(0), LONG_MS);
    let change = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        kubelet.put(pod("b", 3));
    };
    let (update, ()) = tokio::join!(waiting, change);
    let Some((revision, Change::Some { changed, removed })) = update.unwrap().change else { panic!() };
    assert_eq!((shown(&changed), removed), (vec![("b".into(), Some(3))], vec![]));
    assert_eq!(changed[0].to_pod().unwrap().containers[0].name, "app");

    kubelet.remove("a");
    let update = specs.next(feed, Some(revision), look(0), LONG_MS).await.unwrap();
    let Some((_, Change::Some { changed, removed })) = update.change else { panic!() };
    assert_eq!((shown(&changed), removed), (vec![], vec!["a".into()]));
}

/// It may have been resized: its former requests are no longer right.
#[tokio::test]
async fn a_pod_whose_change_cannot_be_read_has_no_spec_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let (kubelet, feed) = serve_pods_api(folder.path());
    kubelet.put(pod("a", 1));
    kubelet.put(pod("b", 2));
    let specs = specs();
    let (revision, pods) = whole(specs.next(feed.clone(), None, look(0), LONG_MS).await.unwrap());
    assert_eq!(pods.len(), 2);
    kubelet.garble(&pod("a", 1));
    let update = specs.next(feed.clone(), Some(revision), look(0), LONG_MS).await.unwrap();
    assert_eq!((update.left_out, update.dropped), (vec![String::from("a")], Some(1)));
    let Some((revision, Change::Some { changed, removed })) = update.change else { panic!() };
    assert_eq!((shown(&changed), removed), (vec![], vec!["a".into()]));
    kubelet.put(pod("a", 3));
    let update = specs.next(feed, Some(revision), look(0), LONG_MS).await.unwrap();
    assert_eq!((update.left_out, update.dropped), (vec![], Some(0)));
    let Some((_, Change::Some { changed, removed })) = update.change else { panic!() };
    assert_eq!((shown(&changed), removed), (vec![("a".into(), Some(3))], vec![]));
}

#[tokio::test]
async fn a_stream_that_ends_is_an_error_and_the_next_question_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (kubelet, feed) = serve_pods_api(folder.path());
    kubelet.put(pod("a", 1));
    let specs = specs();
    // 0 ends it; 9 is an unknown kind.
    for (kind, why) in [(0, "ended"), (9, "unknown kind 9")] {
        let (revision, pods) = whole(specs.next(feed.clone(), None, look(0), LONG_MS).await.unwrap());
        assert_eq!(pods.len(), 1);
        kubelet.send(kind);
        let error = specs.next(feed.clone(), Some(revision), look(0), LONG_MS).await.unwrap_err();
        assert!(crate::chain(&error).contains(why), "{error}");
    }
}

/// While it is away the question fails, which says nothing of the pods; then all of them come.
#[tokio::test]
async fn a_kubelet_that_is_stopped_and_started_again_has_not_removed_its_pods() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pods.sock");
    let kubelet = FakeKubelet::new();
    let serving = tokio::spawn(kubelet.clone().serve_pods_api(UnixListener::bind(&socket).unwrap()));
    kubelet.put(pod("a", 1));
    kubelet.put(pod("b", 2));
    let (specs, feed) = (specs(), Feed::PodsApi(socket.clone()));
    let (revision, before) = whole(specs.next(feed.clone(), None, look(0), LONG_MS).await.unwrap());
    serving.abort();
    kubelet.send(0);
    std::fs::remove_file(&socket).unwrap();
    for _ in 0..20 {
        let answer = specs.next(feed.clone(), Some(revision), look(0), LONG_MS).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    tokio::spawn(kubelet.serve_pods_api(UnixListener::bind(&socket).unwrap()));
    let (again, after) = whole(specs.next(feed, Some(revision), look(0), LONG_MS).await.unwrap());
    assert_eq!(after, before);
    assert_ne!(again, revision, "a revision of a former process is none of this one");
}

#[tokio::test]
async fn where_no_kubelet_listens_the_error_names_the_socket() {
    let error =
        specs().next(Feed::PodsApi("/nonexistent/s".into()), None, look(0), LONG_MS).await.unwrap_err();
    assert!(crate::chain(&error).contains("/nonexistent/s"), "{error}");
}

#[tokio::test]
async fn a_kubelet_that_accepts_and_says_nothing_does_not_work() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let error = specs().next(Feed::PodsApi(socket), None, look(0), 50).await.unwrap_err();
    assert!(crate::chain(&error).contains("has not listed its pods within 50 ms"), "{error}");
}

/// A kubelet that serves HTTPS with a certificate of its own, and the certificate.
pub(in crate::specs) async fn serve_https() -> (FakeKubelet, u16, String) {
    let signed = rcgen::generate_simple_self_signed([String::from("node-1")]).unwrap();
    let certificate = signed.cert.pem();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubelet = FakeKubelet::new();
    let pem = (certificate.clone(), signed.signing_key.serialize_pem());
    tokio::spawn(kubelet.clone().serve_https(listener, pem, "secret"));
    (kubelet, port, certificate)
}

fn https(port: u16, trust: Trust, server_name: Option<&str>, token: &str) -> Feed {
    let endpoint = Endpoint {
        client: String::from("kubelet"),
        tls: true,
        host: String::from("127.0.0.1"),
        port,
        authority: format!("127.0.0.1:{port}"),
        connect_timeout_ms: LONG_MS,
    };
    let security = Security { trust, identity: None, server_name: server_name.map(str::to_owned) };
    Feed::Kubelet(Box::new(HttpsFeed { endpoint, security, token: Some(token.to_owned()) }))
}

/// The fake kubelet's HTTPS server, for who has that token.
pub(in crate::specs) fn https_feed(port: u16, certificate: &str, token: &str) -> Box<HttpsFeed> {
    match https(port, pinned(certificate), None, token) {
        Feed::Kubelet(feed) => feed,
        Feed::PodsApi(_) | Feed::ApiServer(_) => unreachable!("it is the kubelet's"),
    }
}

fn file(pem: &str) -> Certificates {
    Certificates { path: "/kubelet.crt".into(), bytes: pem.to_owned().into() }
}

#[tokio::test]
async fn a_client_certificate_is_shown_to_a_kubelet_that_asks_for_one() {
    let signed = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (server, client, other) = (signed("node-1"), signed("enforcer"), signed("other"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubelet = FakeKubelet::new();
    kubelet.put(pod("a", 1));
    let (certificate, authority) = (server.cert.pem(), client.cert.pem());
    let pem = (certificate.clone(), server.signing_key.serialize_pem());
    tokio::spawn(async move { kubelet.serve_https_to(listener, pem, &authority).await });
    let as_client = |who: Option<&rcgen::CertifiedKey<rcgen::KeyPair>>| {
        let Feed::Kubelet(mut feed) = https(port, pinned(&certificate), None, "") else { panic!() };
        feed.token = None;
        feed.security.identity = who.map(|who| Identity {
            certificates: file(&who.cert.pem()),
            key: file(&who.signing_key.serialize_pem()),
        });
        Feed::Kubelet(feed)
    };
    assert_eq!(
        whole(specs().next(as_client(Some(&client)), None, look(0), LONG_MS).await.unwrap()).1.len(),
        1
    );
    for who in [None, Some(&other)] {
        assert!(specs().next(as_client(who), None, look(0), LONG_MS).await.is_err());
    }
}

fn pinned(pem: &str) -> Trust {
    Trust::Pinned { certificates: file(pem), authority: None }
}

#[tokio::test]
async fn the_kubelets_list_is_read_anew_when_something_has_changed() {
    let (kubelet, port, certificate) = serve_https().await;
    for number in 0..300 {
        kubelet.put(pod(&format!("{number:03}"), number));
    }
    let specs = specs();
    let feed = https(port, pinned(&certificate), None, "secret");
    let (revision, pods) = whole(specs.next(feed.clone(), None, look(1), LONG_MS).await.unwrap());
    assert_eq!((pods.len(), &pods[299]), (300, &("299".into(), Some(299))));
    kubelet.remove("007");
    kubelet.put(pod("008", -8));
    let nothing = specs.next(feed.clone(), Some(revision), look(1), 50).await.unwrap();
    assert_eq!((nothing.change, kubelet.lists()), (None, 1), "it is not read again so soon");
    let update = specs.next(feed, Some(revision), look(2), LONG_MS).await.unwrap();
    let Some((_, Change::Some { changed, removed })) = update.change else { panic!() };
    assert_eq!((shown(&changed), removed), (vec![("008".into(), Some(-8))], vec!["007".into()]));
    // The list that has the change was asked for after the one that had nothing new.
    assert!(nothing.read_ago_ms >= 50, "{}", nothing.read_ago_ms);
}

#[tokio::test]
async fn the_kubelets_list_is_read_anew_when_a_pod_may_be_evicted_and_when_none_may_any_longer() {
    let (kubelet, port, certificate) = serve_https().await;
    let (specs, feed) = (specs(), https(port, pinned(&certificate), None, "secret"));
    let (mut revision, _) = whole(specs.next(feed.clone(), None, look(1), LONG_MS).await.unwrap());
    for is_of_concern in [true, false] {
        let number = i32::from(is_of_concern);
        kubelet.put(pod("a", number));
        let look = Look { is_of_concern, ..look(1) };
        let update = specs.next(feed.clone(), Some(revision), look, LONG_MS).await.unwrap();
        let Some((next, Change::Some { changed, .. })) = update.change else { panic!() };
        assert_eq!(shown(&changed), [("a".into(), Some(number))]);
        revision = next;
    }
}

#[tokio::test]
async fn a_server_with_another_certificate_gets_no_request() {
    let (kubelet, port, certificate) = serve_https().await;
    let other = rcgen::generate_simple_self_signed([String::from("node-1")]).unwrap().cert.pem();
    for (trust, name) in [
        (pinned(&other), None),
        (Trust::Roots(file(&other)), Some("node-1")),
        (Trust::Roots(file(&certificate)), Some("node-2")),
        (Trust::Roots(file(&certificate)), None),
    ] {
        let feed = https(port, trust.clone(), name, "secret");
        let error = specs().next(feed, None, look(0), LONG_MS).await.unwrap_err();
        assert!(crate::chain(&error).contains("TLS"), "{trust:?}: {error}");
    }
    assert_eq!(kubelet.lists(), 0);
    let either = Trust::Pinned { certificates: file(&other), authority: Some(file(&certificate)) };
    for trust in [Trust::Roots(file(&certificate)), either] {
        let feed = https(port, trust, Some("node-1"), "secret");
        assert_eq!(whole(specs().next(feed, None, look(0), LONG_MS).await.unwrap()).1, []);
    }
}

#[tokio::test]
async fn a_refusal_says_what_is_missing() {
    let (_kubelet, port, certificate) = serve_https().await;
    for (token, why) in [("other", "does not accept"), ("weak", "nodes/pods"), ("a\nb", "HTTP header")] {
        let feed = https(port, pinned(&certificate), None, token);
        let error = specs().next(feed, None, look(0), LONG_MS).await.unwrap_err();
        assert!(crate::chain(&error).contains(why), "{error}");
    }
}

/// What a real kubelet answered about the same pods at both of its interfaces.
#[tokio::test]
async fn a_real_kubelets_answers_are_read_alike_from_its_pods_api_and_its_list() {
    let folder = tempfile::tempdir().unwrap();
    let (recorded, mut answers) = (Recorded::new(), Vec::new());
    let (kubelet, feed) = serve_pods_api(folder.path());
    kubelet.repeat(recorded.text("kubeletPods"), recorded.watched());
    answers.push(specs().next(feed, None, look(0), LONG_MS).await.unwrap());
    let (kubelet, port, certificate) = serve_https().await;
    kubelet.repeat(recorded.text("kubeletPods"), recorded.watched());
    let feed = Feed::Kubelet(https_feed(port, &certificate, "secret"));
    answers.push(specs().next(feed, None, look(0), LONG_MS).await.unwrap());
    for Update { change, dropped, .. } in answers {
        let Some((_, Change::Whole(pods))) = change else { panic!("{change:?}") };
        assert_eq!((recorded::shown(&pods), dropped), (recorded::SHOWN.map(String::from).into(), Some(0)));
    }
}
