mod outages;
mod recorded;
mod streams;

use std::thread;

use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    super::{
        client::{Specs, look},
        fake_api::{FakeApi, Refusal, Watching},
        message::{Change, Feed, HttpsFeed},
        pod::ApiPod,
        store::Since,
    },
    *,
};
use crate::network::{Certificates, Endpoint, Security, Trust};

/// Longer than anything takes that answers.
const LONG_MS: u64 = 60_000;

/// As the daemon's own, a hundred times as fast.
const QUICK: Pace = Pace {
    answer: Duration::from_secs(20),
    whole: Duration::from_secs(20),
    whole_bytes: 1 << 30,
    silence: Duration::from_mins(3),
    margin: Duration::from_secs(30),
    lasting: Duration::from_millis(100),
    pauses: Bounds { least: Duration::from_millis(10), most: Duration::from_millis(100) },
    spread: Duration::from_millis(10),
    patience: Duration::from_millis(500),
};

fn pod(uid: &str, name: &str, priority: i32) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": uid, "labels": {"app": "web"}, "managedFields": [{"x": 1}]},
        "spec": {
            "nodeName": "node-1", "priority": priority,
            "containers": [{"name": "app", "image": "i", "resources": {"requests": {"memory": "1Gi"}}}],
        },
        "status": {"phase": "Running", "qosClass": "Burstable"},
    })
}

/// An API server, and how it is asked.
async fn serve() -> (FakeApi, ApiServerFeed) {
    let api = FakeApi::new("secret");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let feed = serve_at(&api, listener);
    (api, feed)
}

fn serve_at(api: &FakeApi, listener: TcpListener) -> ApiServerFeed {
    let signed = rcgen::generate_simple_self_signed([String::from("kubernetes")]).unwrap();
    let (pem, port) = (signed.cert.pem(), listener.local_addr().unwrap().port());
    let server = (pem.clone(), signed.signing_key.serialize_pem());
    tokio::spawn(api.clone().serve(listener, server));
    let endpoint = Endpoint {
        client: String::from("apiServer"),
        tls: true,
        host: String::from("127.0.0.1"),
        port,
        authority: format!("127.0.0.1:{port}"),
        connect_timeout_ms: LONG_MS,
    };
    let trust = Trust::Roots(Certificates { path: "/ca.crt".into(), bytes: pem.into() });
    let security = Security { trust, identity: None, server_name: Some(String::from("kubernetes")) };
    let https = HttpsFeed { endpoint, security, token: Some(String::from("secret")) };
    ApiServerFeed { https, base: String::new(), node: String::from("node-1") }
}

/// A task that reads, and what it has read.
struct Reading {
    shared: Arc<Shared>,
    feeds: watch::Sender<FeedAsk>,
    task: JoinHandle<Failure>,
}

impl Reading {
    fn start(feed: &ApiServerFeed, pace: Pace) -> Self {
        let shared = Arc::new(Shared::default());
        let (feeds, newest) = watch::channel(FeedAsk::ApiServer(Box::new(feed.clone())));
        let (feed, of_task) = (feed.clone(), Arc::clone(&shared));
        let task = tokio::spawn(async move { watch(feed, newest, pace, &of_task).await });
        Self { shared, feeds, task }
    }

    /// One that has listed all pods.
    async fn whole(feed: &ApiServerFeed) -> Self {
        let reading = Self::start(feed, QUICK);
        reading.until("a list", || reading.shared.is_whole()).await;
        reading
    }

    async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30), "no {what}: {:?}", self.shown());
            assert!(!self.task.is_finished(), "it has ended instead of {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The pods' uids and priorities.
    fn shown(&self) -> Vec<(String, i32)> {
        let pods = self.shared.since(None).map_or_else(Vec::new, |since| pods(&since));
        pods.into_iter().map(|pod| (pod.metadata.uid, pod.spec.priority.unwrap_or_default())).collect()
    }

    async fn until_shown(&self, expected: &[(&str, i32)]) {
        let expected: Vec<_> =
            expected.iter().map(|(uid, priority)| ((*uid).to_owned(), *priority)).collect();
        self.until(&format!("{expected:?}"), || self.shown() == expected).await;
    }

    async fn until_failed(self) -> String {
        let failure = timeout(Duration::from_secs(30), self.task).await.unwrap().unwrap();
        crate::chain(&failure)
    }
}

fn pods(since: &Since) -> Vec<ApiPod> {
    since.pods.iter().map(|pod| serde_json::from_slice(pod).unwrap()).collect()
}

#[tokio::test]
async fn pods_are_listed_in_parts_and_then_watched() {
    let (api, feed) = serve().await;
    for number in 0..1_200 {
        api.put(pod(&format!("{number:04}"), "web", number));
    }
    let elsewhere = json!({"metadata": {"uid": "x"}, "spec": {"nodeName": "node-10"}});
    api.put(elsewhere);
    let reading = Reading::whole(&feed).await;
    let shown = reading.shown();
    assert_eq!((shown.len(), shown.last()), (1_200, Some(&("1199".into(), 1_199))));
    let lists = api.asked_for(false);
    let parameters: Vec<_> = ["limit", "fieldSelector"].map(|name| lists[1].parameter(name).unwrap()).into();
    assert_eq!(parameters, ["500", "spec.nodeName=node-1"]);
    assert_eq!(lists.len(), 3);

    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    let revision = reading.shared.since(None).unwrap().revision;
    api.put(pod("0007", "web", -7));
    api.remove("0008");
    api.put(pod("new", "new", 1));
    reading.until("the new pod", || reading.shown().iter().any(|(uid, _)| uid == "new")).await;
    let since = reading.shared.since(Some(revision)).unwrap();
    let changed: Vec<_> = pods(&since).into_iter().map(|pod| (pod.metadata.uid, pod.spec.priority)).collect();
    assert_eq!(changed, [("0007".into(), Some(-7)), ("new".into(), Some(1))]);
    assert_eq!((since.is_whole, since.removed), (false, vec![String::from("0008")]));
    let watch = &api.asked_for(true)[0];
    assert_eq!(watch.parameter("allowWatchBookmarks").as_deref(), Some("true"));
    let seconds: u64 = watch.parameter("timeoutSeconds").unwrap().parse().unwrap();
    assert!((300..=600).contains(&seconds), "{seconds}");
    let text = String::from_utf8(reading.shared.since(None).unwrap().body()).unwrap();
    assert!(!text.contains("managedFields") && !text.contains("resourceVersion"));
}

/// A watch that ends by itself goes on where it was, also where only a bookmark has said how far that is.
#[tokio::test]
async fn a_watch_that_is_closed_at_once_every_time_loses_nothing() {
    let (api, feed) = serve().await;
    api.put(pod("a", "a", 0));
    api.set_watching(Watching::Ending);
    let reading = Reading::whole(&feed).await;
    for number in 1..=5 {
        api.put(pod("a", "a", number));
        api.put(pod(&format!("b{number}"), "b", number));
        reading.until("the change", || reading.shown().first() == Some(&("a".into(), number))).await;
    }
    api.remove("b3");
    reading.until_shown(&[("a", 5), ("b1", 1), ("b2", 2), ("b4", 4), ("b5", 5)]).await;
    api.bookmark();
    let reached = |version: &str| {
        let asked = api.asked_for(true);
        asked.last().is_some_and(|asked| asked.parameter("resourceVersion").as_deref() == Some(version))
    };
    reading.until("the bookmark's version", || reached("122")).await;
    assert_eq!(api.asked_for(false).len(), 1, "it is listed once");
    // It does not ask without pause.
    let before = api.asked().len();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(api.asked().len() - before < 40, "{}", api.asked().len() - before);
    assert_eq!(reading.shared.trouble(), None);
}

#[tokio::test]
async fn a_version_that_is_too_old_has_all_pods_listed_again_and_removes_none_meanwhile() {
    for as_event in [false, true] {
        let (api, feed) = serve().await;
        api.put(pod("stays", "a", 1));
        api.put(pod("goes", "b", 1));
        let reading = Reading::whole(&feed).await;
        reading.until("a watch", || !api.asked_for(true).is_empty()).await;
        let revision = reading.shared.since(None).unwrap().revision;
        if as_event {
            api.refuse(&Refusal::ErrorEvent(410), 1);
        }
        // The list fails at first as well: what is known stays.
        if as_event {
            api.refuse(&Refusal::Status(500, None), 3);
            api.close_watches();
        } else {
            api.expire();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(reading.shown().len(), 2);
        api.remove("goes");
        api.put(pod("comes", "c", 1));
        reading.until_shown(&[("comes", 1), ("stays", 1)]).await;
        let since = reading.shared.since(Some(revision)).unwrap();
        assert_eq!((since.removed, since.pods.len(), since.is_whole), (vec!["goes".into()], 1, false));
        let lists = api.asked_for(false);
        assert_eq!(lists[0].parameter("resourceVersion").as_deref(), Some("0"));
        assert_eq!(
            lists.last().unwrap().parameter("resourceVersion"),
            None,
            "an older list would be of no use"
        );
        assert!(lists.len() >= 2);
        reading.until("no trouble", || reading.shared.trouble().is_none()).await;
    }
}

/// Also in the middle of a list, of which the first part has come.
#[tokio::test]
async fn a_list_whose_next_part_is_gone_begins_anew() {
    let (api, feed) = serve().await;
    for number in 0..600 {
        api.put(pod(&format!("{number:03}"), "web", 1));
    }
    api.refuse(&Refusal::None, 1);
    api.refuse(&Refusal::Status(410, None), 1);
    let reading = Reading::whole(&feed).await;
    assert_eq!(reading.shown().len(), 600);
    let marks: Vec<_> = api.asked_for(false).iter().map(|asked| asked.parameter("continue")).collect();
    let mark = Some(String::from("700/+=&500"));
    assert_eq!(marks, [None, mark.clone(), None, mark]);
}

#[tokio::test]
async fn a_server_that_wants_to_be_left_alone_is() {
    let (api, feed) = serve().await;
    api.refuse(&Refusal::Status(429, Some(1)), 2);
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    let lists = api.asked_for(false);
    assert_eq!(lists.len(), 3);
    for pair in lists.windows(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_secs(1));
    }
    api.refuse(&Refusal::Status(429, Some(1)), 1);
    api.close_watches();
    reading.until("the next watches", || api.asked_for(true).len() == 3).await;
    let watches = api.asked_for(true);
    assert!(watches[2].at - watches[1].at >= Duration::from_secs(1));
}

#[tokio::test]
async fn errors_of_the_server_are_waited_out_and_reported_when_they_last() {
    let (api, feed) = serve().await;
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    api.refuse(&Refusal::Status(503, None), 3);
    api.close_watches();
    reading.until("the next watch", || api.asked_for(true).len() == 5).await;
    assert_eq!(reading.shared.trouble(), None, "a short one is none");
    api.refuse(&Refusal::Status(500, None), 20);
    api.close_watches();
    reading.until("trouble", || reading.shared.trouble().is_some()).await;
    let why = reading.shared.trouble().unwrap();
    assert!(why.contains("status 500") && why.contains("`watch` pods") && !why.contains('\u{1b}'), "{why}");
    api.remove("a");
    api.put(pod("b", "b", 1));
    reading.until_shown(&[("b", 1)]).await;
    assert_eq!(reading.shared.trouble(), None);
    // Watches that begin, and fail then.
    api.refuse(&Refusal::ErrorEvent(500), 20);
    api.close_watches();
    reading
        .until("trouble", || reading.shared.trouble().is_some_and(|why| why.contains("watch of pods")))
        .await;
    reading.until("no trouble", || reading.shared.trouble().is_none()).await;
    assert_eq!(reading.shown().len(), 1);
    assert_eq!(api.asked_for(false).len(), 1, "nothing is listed again");
}

#[tokio::test]
async fn who_may_not_list_or_watch_learns_what_is_needed() {
    let (api, mut feed) = serve().await;
    feed.https.token = Some(String::from("weak"));
    let why = Reading::start(&feed, QUICK).until_failed().await;
    assert!(
        why.contains("status 403") && why.contains("`list` and `watch`") && why.contains("`pods`"),
        "{why}"
    );
    feed.https.token = Some(String::from("secret"));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    api.refuse(&Refusal::ErrorEvent(403), 1);
    api.close_watches();
    let why = reading.until_failed().await;
    assert!(why.contains("does not `watch` pods: status 403"), "{why}");
    feed.base = String::from("/other");
    let why = Reading::start(&feed, QUICK).until_failed().await;
    assert!(why.contains("status 404") && why.contains("check `server`"), "{why}");
    feed.https.token = Some(String::from("a\nb"));
    assert!(Reading::start(&feed, QUICK).until_failed().await.contains("HTTP header"));
}

/// A token is replaced before it expires, and the watch that has begun with the former one goes on.
#[tokio::test]
async fn the_next_request_has_the_newest_token() {
    let (api, mut feed) = serve().await;
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    feed.https.token = Some(String::from("newer"));
    api.set_token("newer");
    reading.feeds.send_replace(FeedAsk::ApiServer(Box::new(feed)));
    api.put(pod("a", "a", 2));
    reading.until_shown(&[("a", 2)]).await;
    api.close_watches();
    reading.until("the next watch", || api.asked_for(true).len() == 2).await;
    api.put(pod("a", "a", 3));
    reading.until_shown(&[("a", 3)]).await;
    let tokens: Vec<_> = api.asked_for(true).into_iter().map(|asked| asked.token).collect();
    assert_eq!((tokens, api.asked_for(false).len()), (vec!["secret".into(), "newer".into()], 1));
}

/// The other end is gone without a word: nothing comes, and nothing ends.
#[tokio::test]
async fn a_watch_that_is_silent_for_too_long_begins_anew() {
    let (api, feed) = serve().await;
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    // The beginning of the answer must have come.
    api.put(pod("a", "a", 2));
    reading.until_shown(&[("a", 2)]).await;
    let after = |time: Duration| async move {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    after(Duration::from_secs(178)).await;
    assert_eq!(api.asked_for(true).len(), 1);
    // A sign of life counts.
    api.bookmark();
    tokio::time::sleep(Duration::from_millis(300)).await;
    after(Duration::from_mins(1)).await;
    assert_eq!(api.asked_for(true).len(), 1);
    after(QUICK.silence).await;
    reading.until("another watch", || api.asked_for(true).len() == 2).await;
    let versions: Vec<_> =
        api.asked_for(true).iter().map(|asked| asked.parameter("resourceVersion").unwrap()).collect();
    assert_eq!((versions, api.asked_for(false).len()), (vec!["101".into(), "112".into()], 1));
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_away() {
    let (api, feed) = serve().await;
    api.refuse(&Refusal::Hang, 1);
    let reading = Reading::start(&feed, Pace { answer: Duration::from_millis(200), ..QUICK });
    reading
        .until("trouble", || reading.shared.trouble().is_some_and(|why| why.contains("has not answered")))
        .await;
    reading.until("a list", || reading.shared.is_whole()).await;
    assert_eq!(reading.shared.trouble(), None);
}

#[tokio::test]
async fn a_relist_of_500_pods_changes_what_has_changed_and_removes_none() {
    let (api, feed) = serve().await;
    for number in 0..500 {
        api.put(pod(&format!("{number:03}"), "web", number));
    }
    let reading = Reading::whole(&feed).await;
    let revision = reading.shared.since(None).unwrap().revision;
    for _ in 0..5 {
        api.expire();
        let lists = api.asked_for(false).len();
        reading.until("another list", || api.asked_for(false).len() > lists).await;
    }
    api.put(pod("250", "web", -1));
    reading.until("the change", || reading.shared.since(Some(revision)).is_some()).await;
    let since = reading.shared.since(Some(revision)).unwrap();
    assert_eq!((since.pods.len(), since.removed.len(), since.is_whole), (1, 0, false));
    assert_eq!(reading.shown().len(), 500);
}

#[tokio::test]
async fn a_pod_recreated_under_its_name_is_another() {
    let (api, feed) = serve().await;
    api.put(pod("first", "web-0", 1));
    let reading = Reading::whole(&feed).await;
    let revision = reading.shared.since(None).unwrap().revision;
    api.remove("first");
    api.put(pod("second", "web-0", 2));
    reading.until_shown(&[("second", 2)]).await;
    assert_eq!(reading.shared.since(Some(revision)).unwrap().removed, ["first"]);
    // The same while the watch is away, of which both are seen at once.
    api.expire();
    api.remove("second");
    api.put(pod("third", "web-0", 3));
    reading.until_shown(&[("third", 3)]).await;
}

#[tokio::test]
async fn pods_that_are_too_large_or_unreadable_hide_no_others() {
    let (api, feed) = serve().await;
    let large = |uid: &str| {
        let mut large = pod(uid, "large", 1);
        large["metadata"]["annotations"] = json!({"x": "\u{1}".repeat(3 << 20)});
        large
    };
    let unreadable = |uid: &str| {
        let mut unreadable = pod(uid, "unreadable", 1);
        unreadable["spec"]["priority"] = json!("high");
        unreadable
    };
    api.put(pod("a", "a", 1));
    api.put(large("large"));
    api.put(unreadable("unreadable"));
    api.put(pod("z", "z", 1));
    let reading = Reading::whole(&feed).await;
    assert_eq!(reading.shown(), [("a".into(), 1), ("z".into(), 1)]);
    assert_eq!(reading.shared.dropped(), 2);
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    // Of one that becomes unreadable the former state is not right any more.
    api.put(unreadable("a"));
    api.put(large("larger"));
    api.put(pod("y", "y", 1));
    reading.until_shown(&[("y", 1), ("z", 1)]).await;
    assert_eq!(reading.shared.dropped(), 4);
    api.put(pod("a", "a", 2));
    reading.until_shown(&[("a", 2), ("y", 1), ("z", 1)]).await;
    assert_eq!((api.asked_for(false).len(), api.asked_for(true).len()), (1, 1), "neither ends the watch");
}

#[tokio::test]
async fn what_is_no_event_has_all_pods_listed_again() {
    let (api, feed) = serve().await;
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    for line in ["<html>", r#"{"type":"SYNCED","object":{}}"#, "[]"] {
        let lists = api.asked_for(false).len();
        api.say(line);
        reading.until("another list", || api.asked_for(false).len() > lists).await;
        assert_eq!(reading.shown().len(), 1);
    }
    api.say("");
    api.put(pod("a", "a", 2));
    reading.until_shown(&[("a", 2)]).await;
}

/// What a tenant writes is neither in the way nor of any use.
#[tokio::test]
async fn hostile_labels_and_annotations_change_nothing() {
    let (api, feed) = serve().await;
    let mut hostile = pod("h", "web", 1);
    hostile["metadata"]["labels"] = json!({"items": "[{]}\"\\\n", "a\u{0}": "\u{1b}[31m", "\u{fffd}": "}}]"});
    hostile["metadata"]["annotations"] = json!({
        "kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "h", "enforcer.dev/cgroup": "/system.slice",
        "items": "\"items\":[{", "enforcer.dev/eviction-priority": "2000000000",
    });
    api.put(hostile.clone());
    api.put(pod("plain", "plain", 3));
    let reading = Reading::whole(&feed).await;
    let is_plain = |reading: &Reading| {
        let all = pods(&reading.shared.since(None).unwrap());
        let pod = all.iter().find(|pod| pod.metadata.uid == "h").unwrap();
        assert_eq!((&*pod.metadata.name, all.len(), reading.shared.dropped()), ("web", 2, 0));
        assert_eq!(pod.metadata.annotations, super::super::metadata::Annotations::default());
        assert!(pod.to_pod().unwrap().annotations.is_empty());
    };
    is_plain(&reading);
    reading.until("a watch", || !api.asked_for(true).is_empty()).await;
    hostile["spec"]["priority"] = json!(2);
    api.put(hostile);
    reading.until_shown(&[("h", 2), ("plain", 3)]).await;
    is_plain(&reading);
}

/// A server that answers with a uid twice, or with uids that can be none.
#[tokio::test]
async fn of_duplicate_uids_there_is_one_pod() {
    let (api, feed) = serve().await;
    api.put(pod("a", "first", 1));
    let reading = Reading::whole(&feed).await;
    let mut other = pod("a", "second", 2);
    other["metadata"]["namespace"] = json!("other");
    api.put(other);
    api.put(pod("../etc", "p", 1));
    api.put(pod("", "p", 1));
    reading.until_shown(&[("a", 2)]).await;
    reading.until("two that are left out", || reading.shared.dropped() == 2).await;
}

/// A client whose process is a thread.
fn specs() -> Specs {
    Specs::start_with(|_socket, theirs| {
        theirs.set_nonblocking(true)?;
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                super::super::process::serve(tokio::net::UnixStream::from_std(theirs)?, None).await
            })
        });
        Ok(None)
    })
    .unwrap()
}

fn asked(feed: &ApiServerFeed) -> Feed {
    Feed::ApiServer(Box::new(feed.clone()))
}

#[tokio::test]
async fn a_question_after_one_that_was_refused_has_another_token() {
    let (api, mut feed) = serve().await;
    api.put(pod("a", "a", 1));
    let specs = specs();
    feed.https.token = Some(String::from("expired"));
    let why = crate::chain(&specs.next(asked(&feed), None, look(0), LONG_MS).await.unwrap_err());
    assert!(why.contains("status 401") && why.contains("expired") && why.contains("credentials"), "{why}");
    feed.https.token = Some(String::from("secret"));
    let (revision, change) = specs.next(asked(&feed), None, look(0), LONG_MS).await.unwrap().change.unwrap();
    assert!(matches!(change, Change::Whole(pods) if pods.len() == 1));
    // Another token neither ends the watch nor forgets what is known.
    feed.https.token = Some(String::from("newer"));
    let nothing = specs.next(asked(&feed), Some(revision), look(0), 50).await.unwrap();
    assert_eq!(nothing.change, None);
    api.put(pod("b", "b", 1));
    let (_, change) =
        specs.next(asked(&feed), Some(revision), look(0), LONG_MS).await.unwrap().change.unwrap();
    assert!(matches!(change, Change::Some { changed, removed } if changed.len() == 1 && removed.is_empty()));
    assert_eq!(api.asked_for(false).len(), 2, "the first one was refused");
}

/// The process stays, and has the pods when the server is there.
#[tokio::test]
async fn a_server_that_is_not_there_is_reported_at_once_and_found_later() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = FakeApi::new("secret");
    api.put(pod("a", "a", 1));
    // Only the certificate of this one is used.
    let feed = serve_at(&api, listener);
    let mut away = feed.clone();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    away.https.endpoint.port = free.local_addr().unwrap().port();
    drop(free);
    let specs = specs();
    for _ in 0..2 {
        let why = crate::chain(&specs.next(asked(&away), None, look(0), LONG_MS).await.unwrap_err());
        assert!(why.contains(&format!("cannot connect to {address}")), "{why}");
    }
    // Another place is another list.
    let (_, change) = specs.next(asked(&feed), None, look(0), LONG_MS).await.unwrap().change.unwrap();
    assert!(matches!(change, Change::Whole(pods) if pods.len() == 1));
    let why = specs.next(asked(&away), None, look(0), LONG_MS).await.unwrap_err();
    assert!(crate::chain(&why).contains("cannot connect"), "what it had is not that server's: {why}");
}

#[test]
fn what_may_work_later_is_not_final() {
    let kind = |status: u16| match refused("list", StatusCode::from_u16(status).unwrap(), String::new(), None)
    {
        Interruption::Final(_) => "final",
        Interruption::Expired(_) => "expired",
        Interruption::Later { .. } => "later",
        Interruption::Unstreamed => "unstreamed",
    };
    for status in [408, 409, 429, 500, 502, 503, 504] {
        assert_eq!(kind(status), "later", "{status}");
    }
    for status in [204, 301, 400, 401, 403, 404, 405, 422] {
        assert_eq!(kind(status), "final", "{status}");
    }
    assert_eq!(kind(410), "expired");
}

#[test]
fn a_selector_is_one_part_of_a_query() {
    assert_eq!(encoded("spec.nodeName=a-b.c"), "spec.nodeName%3Da-b.c");
    assert_eq!(encoded("a+/=&é %"), "a%2B%2F%3D%26%C3%A9%20%25");
}
