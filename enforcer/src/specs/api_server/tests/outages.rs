//! What goes wrong between a node and its API server for minutes and hours: at the daemon's own pace, in virtual time.
use std::{net::SocketAddr, path::Path};

use super::*;
use crate::{
    network::fake::{Authority, Validity, Way},
    specs::{
        ClusterAccess, KeptCredentials, KubeletFolders,
        fake_api::{Asked, Streams},
    },
};

/// How often what has arrived is looked at, in virtual time.
const STEP: Duration = Duration::from_secs(5);

/// Lets virtual time pass, and what is on its way arrive.
async fn pass(time: Duration) {
    let mut left = time;
    while !left.is_zero() {
        let step = STEP.min(left);
        tokio::time::advance(step).await;
        settle().await;
        left -= step;
    }
}

/// Lets what is on its way between sockets arrive. Virtual time stands still as long as a thread works.
async fn settle() {
    tokio::task::spawn_blocking(|| thread::sleep(Duration::from_millis(2))).await.unwrap();
}

/// Waits until these pods are shown: what they need has been sent. Virtual time goes on slowly, as a machine that has much to
/// do may begin to wait before the next question only here.
async fn until_arrived(reading: &Reading, expected: &[(&str, i32)]) {
    for round in 1..=2_000 {
        if reading.shown() == shown(expected) {
            return;
        }
        settle().await;
        if round % 100 == 0 {
            tokio::time::advance(STEP).await;
        }
    }
    panic!("{:?} instead of {expected:?}", reading.shown());
}

/// A task that reads at the daemon's own pace, has listed all pods, and watches them.
async fn reading_at_own_pace(api: &FakeApi, feed: &ApiServerFeed) -> Reading {
    let reading = Reading::start(feed, Pace::default());
    for _ in 0..100 {
        if reading.shared.is_whole() && !api.asked_for(true).is_empty() {
            return reading;
        }
        pass(STEP).await;
    }
    panic!("no watch: {:?}", api.asked());
}

fn shown(pods: &[(&str, i32)]) -> Vec<(String, i32)> {
    pods.iter().map(|(uid, priority)| ((*uid).to_owned(), *priority)).collect()
}

fn changed(since: &Since) -> Vec<String> {
    pods(since).into_iter().map(|pod| pod.metadata.uid).collect()
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_closed_every_30_s_loses_nothing() {
    const ROUNDS: i32 = 60;
    let (api, feed) = serve().await;
    api.put(pod("stays", "stays", 0));
    api.put(pod("z", "z", 0));
    api.put(pod("new-00", "web", 0));
    let reading = reading_at_own_pace(&api, &feed).await;
    let mut revision = reading.shared.since(None).unwrap().revision;
    for round in 1..=ROUNDS {
        let (new, old) = (format!("new-{round:02}"), format!("new-{:02}", round - 1));
        // Every other time the server does not take the next watch at first, and the pods change meanwhile.
        if round % 2 == 0 {
            api.refuse(&Refusal::Status(503, None), 1);
        }
        api.close_watches();
        settle().await;
        api.put(pod("stays", "stays", round));
        api.put(pod(&new, "web", round));
        api.remove(&old);
        pass(Duration::from_secs(10)).await;
        until_arrived(&reading, &[(&new, round), ("stays", round), ("z", 0)]).await;
        let since = reading.shared.since(Some(revision)).unwrap();
        assert_eq!((since.is_whole, &since.removed), (false, &vec![old]));
        assert_eq!(changed(&since), [new, String::from("stays")]);
        revision = since.revision;
        assert_eq!(reading.shared.trouble(), None);
        pass(Duration::from_secs(20)).await;
        assert_eq!(reading.shared.since(Some(revision)), None, "nothing has happened since");
    }
    assert_eq!(api.asked_for(false).len(), 1, "it is listed once");
    let watches = i32::try_from(api.asked_for(true).len()).unwrap();
    assert!((ROUNDS..=ROUNDS * 3 / 2 + 1).contains(&watches), "{watches}");
}

/// Watches end after the time that was asked for, as a real server ends them, and bookmarks come each minute.
#[tokio::test(start_paused = true)]
async fn one_client_makes_few_requests_in_a_quiet_hour() {
    for streams in [Streams::Given, Streams::Forbidden] {
        let (api, feed) = serve().await;
        api.set_streams(streams);
        api.set_watching(Watching::Timed);
        api.put(pod("a", "a", 1));
        let reading = reading_at_own_pace(&api, &feed).await;
        let began = api.asked().len() + api.unstreamed();
        for _ in 0..60 {
            pass(Duration::from_mins(1)).await;
            api.bookmark();
        }
        let asked = api.asked();
        let requests = asked.len() + api.unstreamed() - began;
        println!("{streams:?}: {began} requests to begin, {requests} in the hour after that");
        // Watches of 5 to 10 minutes.
        assert!((5..=12).contains(&requests), "{requests}");
        assert!(asked[began - api.unstreamed()..].iter().all(Asked::is_watch), "nothing is listed again");
        assert_eq!((reading.shown(), reading.shared.trouble()), (shown(&[("a", 1)]), None));
    }
}

/// An API server that refuses everything. Of the pods that were known, `goes` is gone since, `stays` is there, and `comes` is new.
struct Storm {
    api: FakeApi,
    reading: Reading,
    /// That of the pods as they were known.
    revision: u64,
    /// How many requests there were before it.
    before: usize,
}

impl Storm {
    async fn begin(refusal: &Refusal) -> Self {
        let (api, feed) = serve().await;
        api.put(pod("goes", "goes", 1));
        api.put(pod("stays", "stays", 1));
        let reading = reading_at_own_pace(&api, &feed).await;
        let revision = reading.shared.since(None).unwrap().revision;
        let before = api.asked().len();
        api.refuse(refusal, 10_000);
        api.close_watches();
        while api.asked().len() == before {
            pass(STEP).await;
        }
        api.remove("goes");
        api.put(pod("comes", "comes", 1));
        Self { api, reading, revision, before }
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_429_and_500_for_an_hour_removes_no_pod() {
    for refusal in [
        Refusal::Status(429, Some(7)),
        Refusal::Status(500, None),
        Refusal::ErrorEvent(429),
        Refusal::ErrorEvent(500),
    ] {
        let Storm { api, reading, revision, before } = Storm::begin(&refusal).await;
        for minute in 0..60 {
            pass(Duration::from_mins(1)).await;
            assert_eq!(reading.shared.since(Some(revision)), None, "{refusal:?}");
            assert_eq!(reading.shown(), shown(&[("goes", 1), ("stays", 1)]), "{refusal:?}");
            assert!(!reading.task.is_finished(), "{refusal:?}");
            let trouble = reading.shared.trouble().unwrap_or_default();
            assert!(
                minute < 2 || trouble.contains("429") || trouble.contains("500"),
                "{refusal:?}: {trouble}"
            );
        }
        let asked = api.asked().len() - before;
        assert!((60..=250).contains(&asked), "{refusal:?}: {asked} requests in an hour");
        api.serve_again();
        pass(Duration::from_mins(1)).await;
        until_arrived(&reading, &[("comes", 1), ("stays", 1)]).await;
        let since = reading.shared.since(Some(revision)).unwrap();
        assert_eq!((since.is_whole, since.removed), (false, vec![String::from("goes")]), "{refusal:?}");
        assert_eq!(reading.shared.trouble(), None, "{refusal:?}");
        assert_eq!(api.asked_for(false).len(), 1, "{refusal:?}: nothing is listed again");
    }
}

/// Each says that what is known is too old to go on from, so that all is to be listed again, which is refused alike.
#[tokio::test(start_paused = true)]
async fn a_storm_of_410_for_an_hour_removes_no_pod_and_is_asked_no_faster_for_it() {
    for refusal in [Refusal::Status(410, None), Refusal::ErrorEvent(410)] {
        let Storm { api, reading, revision: _, before } = Storm::begin(&refusal).await;
        for _ in 0..60 {
            pass(Duration::from_mins(1)).await;
            assert_eq!(reading.shown(), shown(&[("goes", 1), ("stays", 1)]), "{refusal:?}");
            assert!(!reading.task.is_finished(), "{refusal:?}");
        }
        let asked = api.asked().len() - before;
        println!("{refusal:?}: {asked} requests in an hour");
        assert!((60..=250).contains(&asked), "{refusal:?}: {asked} requests in an hour");
        api.serve_again();
        pass(Duration::from_mins(1)).await;
        until_arrived(&reading, &[("comes", 1), ("stays", 1)]).await;
        assert_eq!(reading.shared.trouble(), None, "{refusal:?}");
    }
}

/// A node that starts into a storm knows no pods, which is not the same as that there are none.
#[tokio::test(start_paused = true)]
async fn a_storm_of_429_and_500_at_the_start_is_no_empty_list() {
    for status in [429, 500] {
        let (api, feed) = serve().await;
        api.put(pod("a", "a", 1));
        api.refuse(&Refusal::Status(status, None), 10_000);
        let reading = Reading::start(&feed, Pace::default());
        for _ in 0..20 {
            pass(Duration::from_mins(1)).await;
            assert!(!reading.shared.is_whole() && reading.shared.since(None).is_none(), "{status}");
        }
        let trouble = reading.shared.trouble().unwrap();
        assert!(trouble.contains(&status.to_string()), "{trouble}");
        api.serve_again();
        pass(Duration::from_mins(1)).await;
        until_arrived(&reading, &[("a", 1)]).await;
        assert_eq!(reading.shared.trouble(), None);
    }
}

/// The other end's packets vanish: no end of the connection comes, and the next one is accepted and says nothing.
#[tokio::test(start_paused = true)]
async fn a_half_open_connection_removes_no_pod_and_is_replaced() {
    let (api, mut feed) = serve().await;
    let server = SocketAddr::from(([127, 0, 0, 1], feed.https.endpoint.port));
    let (way, passing) = Way::to(server).unwrap();
    tokio::spawn(passing);
    feed.https.endpoint.port = way.address().port();
    feed.https.endpoint.connect_timeout_ms = 5_000;
    api.put(pod("goes", "goes", 1));
    api.put(pod("stays", "stays", 1));
    let reading = reading_at_own_pace(&api, &feed).await;
    let revision = reading.shared.since(None).unwrap().revision;
    way.vanish();
    settle().await;
    api.remove("goes");
    api.put(pod("comes", "comes", 1));
    for minute in 0..20 {
        pass(Duration::from_mins(1)).await;
        assert_eq!(reading.shared.since(Some(revision)), None);
        assert_eq!(reading.shown(), shown(&[("goes", 1), ("stays", 1)]));
        // Silent for three minutes, and away for one.
        let trouble = reading.shared.trouble().unwrap_or_default();
        assert!(minute < 6 || trouble.contains("no connection to 127.0.0.1"), "{minute}: {trouble}");
    }
    assert_eq!(api.asked_for(true).len(), 1, "nothing arrives");
    way.lead_to(server);
    pass(Duration::from_mins(1)).await;
    until_arrived(&reading, &[("comes", 1), ("stays", 1)]).await;
    assert_eq!(reading.shared.since(Some(revision)).unwrap().removed, ["goes"]);
    assert_eq!((reading.shared.trouble(), api.asked_for(false).len()), (None, 1));
}

/// A listener that accepts and never reads, for a node that knows nothing yet.
#[tokio::test(start_paused = true)]
async fn a_half_open_connection_at_the_start_is_no_empty_list() {
    let (api, mut feed) = serve().await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = std::mem::replace(&mut feed.https.endpoint.port, silent.local_addr().unwrap().port());
    feed.https.endpoint.connect_timeout_ms = 5_000;
    api.put(pod("a", "a", 1));
    let reading = Reading::start(&feed, Pace::default());
    pass(Duration::from_mins(5)).await;
    assert!(!reading.shared.is_whole() && reading.shared.since(None).is_none());
    assert!(reading.shared.trouble().unwrap().contains("no connection to"));
    feed.https.endpoint.port = port;
    reading.feeds.send_replace(FeedAsk::ApiServer(Box::new(feed)));
    pass(Duration::from_mins(1)).await;
    until_arrived(&reading, &[("a", 1)]).await;
    assert_eq!(reading.shared.trouble(), None);
}

/// A pod that has so many bytes in JSON, with a version of three digits.
fn sized(uid: &str, bytes: usize) -> Value {
    let mut pod = pod(uid, uid, 1);
    pod["metadata"]["resourceVersion"] = json!("000");
    pod["metadata"]["managedFields"] = json!("");
    let padding = "x".repeat(bytes - pod.to_string().len());
    pod["metadata"]["managedFields"] = json!(padding);
    pod
}

#[tokio::test]
async fn of_messages_of_16_mib_the_largest_is_taken_and_one_byte_more_is_refused() {
    let (api, feed) = serve().await;
    let line = |uid: &str, bytes: usize| sized(uid, bytes - r#"{"type":"ADDED","object":}"#.len());
    api.put(sized("a", 16 << 20));
    api.put(sized("b", (16 << 20) + 1));
    api.put(pod("z", "z", 1));
    let reading = Reading::whole(&feed).await;
    assert_eq!((reading.shown(), reading.shared.dropped()), (shown(&[("a", 1), ("z", 1)]), 1));
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    api.put(line("c", 16 << 20));
    api.put(line("d", (16 << 20) + 1));
    api.put(pod("y", "y", 1));
    reading.until_shown(&[("a", 1), ("c", 1), ("y", 1), ("z", 1)]).await;
    assert_eq!(reading.shared.dropped(), 2);
    assert_eq!((api.asked_for(false).len(), api.asked_for(true).len()), (1, 1), "it ends no watch");
    assert_eq!(reading.shared.trouble(), None);
}

/// Serves that API server with that certificate, and says where.
async fn serve_as(api: &FakeApi, certificate: (String, String)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(api.clone().serve(listener, certificate));
    address
}

#[tokio::test]
async fn an_expired_certificate_of_the_server_removes_no_pod_and_sees_no_token() {
    let authority = Authority::new().unwrap();
    let api = FakeApi::new("secret");
    let certificate = |validity| authority.sign("kubernetes", validity).unwrap();
    let valid = serve_as(&api, certificate(Validity::Valid)).await;
    let expired = serve_as(&api, certificate(Validity::Expired)).await;
    let (way, passing) = Way::to(valid).unwrap();
    tokio::spawn(passing);
    let (_, mut feed) = serve().await;
    let file = Certificates { path: "/ca.crt".into(), bytes: authority.pem().into() };
    feed.https.security.trust = Trust::Roots(file);
    feed.https.endpoint.port = way.address().port();
    api.put(pod("goes", "goes", 1));
    api.put(pod("stays", "stays", 1));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    let revision = reading.shared.since(None).unwrap().revision;
    let asked = api.asked().len();
    way.lead_to(expired);
    api.remove("goes");
    api.put(pod("comes", "comes", 1));
    reading.until("trouble", || reading.shared.trouble().is_some_and(|why| why.contains("expired"))).await;
    assert_eq!((reading.shown(), api.asked().len()), (shown(&[("goes", 1), ("stays", 1)]), asked));
    assert_eq!(reading.shared.since(Some(revision)), None);
    // It is renewed.
    way.lead_to(serve_as(&api, certificate(Validity::Valid)).await);
    reading.until_shown(&[("comes", 1), ("stays", 1)]).await;
    reading.until("no trouble", || reading.shared.trouble().is_none()).await;
    assert_eq!(reading.shared.since(Some(revision)).unwrap().removed, ["goes"]);
    assert_eq!(api.asked_for(false).len(), 1, "nothing is listed again");
}

/// Writes a client's certificate and its key to the disk.
fn rotate(folder: &Path, (certificate, key): (String, String)) {
    std::fs::write(folder.join("client.key"), key).unwrap();
    std::fs::write(folder.join("client.crt"), certificate).unwrap();
}

#[tokio::test]
async fn an_expired_client_certificate_removes_no_pod_and_is_replaced_from_the_disk() {
    let authority = Authority::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Who has no token shows the empty one.
    let api = FakeApi::new("");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let (certificate, pem) = (authority.sign("127.0.0.1", Validity::Valid).unwrap(), authority.pem());
    let serving = api.clone();
    tokio::spawn(async move { serving.serve_to(listener, certificate, &pem).await });
    let (way, passing) = Way::to(server).unwrap();
    tokio::spawn(passing);
    std::fs::write(folder.path().join("ca.crt"), authority.pem()).unwrap();
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'https://{}', certificate-authority: ca.crt}}}}]\n\
         users: [{{name: u, user: {{client-certificate: client.crt, client-key: client.key}}}}]\n",
        way.address()
    );
    std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
    let place = ClusterAccess {
        kubelet: KubeletFolders::below(&folder.path().join("none")),
        kubelet_port: 1,
        kubeconfig: Some(folder.path().join("kubeconfig")),
        service_account: folder.path().join("none"),
        in_cluster: None,
    };
    let client = |validity| authority.sign("enforcer", validity).unwrap();
    rotate(folder.path(), client(Validity::Valid));
    api.put(pod("goes", "goes", 1));
    api.put(pod("stays", "stays", 1));
    let reading = Reading::whole(&place.api_server("node-1", &mut KeptCredentials::default()).unwrap()).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    // The beginning of the answer must have come: a request under way is made again as it was.
    api.put(pod("stays", "stays", 2));
    reading.until_shown(&[("goes", 1), ("stays", 2)]).await;
    let revision = reading.shared.since(None).unwrap().revision;
    let asked = api.asked().len();
    // As the daemon does before each question.
    let ask = || {
        reading.feeds.send_replace(FeedAsk::ApiServer(Box::new(
            place.api_server("node-1", &mut KeptCredentials::default()).unwrap(),
        )))
    };
    rotate(folder.path(), client(Validity::Expired));
    ask();
    // Another connection is needed.
    way.lead_to(server);
    api.remove("goes");
    api.put(pod("comes", "comes", 1));
    reading.until("trouble", || reading.shared.trouble().is_some()).await;
    assert_eq!((reading.shown(), api.asked().len()), (shown(&[("goes", 1), ("stays", 2)]), asked));
    assert_eq!(reading.shared.since(Some(revision)), None);
    rotate(folder.path(), client(Validity::Valid));
    ask();
    reading.until_shown(&[("comes", 1), ("stays", 2)]).await;
    reading.until("no trouble", || reading.shared.trouble().is_none()).await;
    assert_eq!(reading.shared.since(Some(revision)).unwrap().removed, ["goes"]);
    assert_eq!(api.asked_for(false).len(), 1, "nothing is listed again");
}
