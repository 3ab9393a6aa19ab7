//! Lists in watches: from servers that give them, and from those that do not.
use super::{
    super::super::fake_api::{Asked, Streams},
    *,
};

/// A server that gives lists in watches.
async fn serve_streams() -> (FakeApi, ApiServerFeed) {
    let (api, feed) = serve().await;
    api.set_streams(Streams::Given);
    (api, feed)
}

#[tokio::test]
async fn one_request_gives_all_pods_and_then_what_changes() {
    let (api, feed) = serve_streams().await;
    for number in 0..600 {
        api.put(pod(&format!("{number:03}"), "web", number));
    }
    api.put(json!({"metadata": {"uid": "x"}, "spec": {"nodeName": "node-10"}}));
    let reading = Reading::whole(&feed).await;
    assert_eq!((reading.shown().len(), reading.shown().last()), (600, Some(&("599".into(), 599))));
    let revision = reading.shared.since(None).unwrap().revision;
    api.put(pod("007", "web", -7));
    api.remove("008");
    api.put(pod("new", "new", 1));
    reading.until("the new pod", || reading.shown().iter().any(|(uid, _)| uid == "new")).await;
    let since = reading.shared.since(Some(revision)).unwrap();
    assert_eq!((since.pods.len(), since.removed, since.is_whole), (2, vec![String::from("008")], false));
    let asked = api.asked();
    let parameter = |name: &str| asked[0].parameter(name);
    assert_eq!(parameter("resourceVersionMatch").as_deref(), Some("NotOlderThan"));
    assert_eq!(parameter("allowWatchBookmarks").as_deref(), Some("true"));
    assert_eq!(parameter("resourceVersion").as_deref(), Some("0"), "the first may be old");
    assert_eq!(asked.len(), 1, "{asked:?}");
    // The next watch goes on where this one was.
    api.close_watches();
    reading.until("the next watch", || api.asked().len() == 2).await;
    let next = &api.asked()[1];
    // 100 at the beginning, 601 pods, and three changes.
    assert_eq!((next.is_stream(), next.parameter("resourceVersion").as_deref()), (false, Some("704")));
    api.put(pod("new", "new", 2));
    reading.until("the change", || reading.shown().iter().any(|(_, priority)| *priority == 2)).await;
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_for_a_list_and_never_again_for_a_stream() {
    for streams in [Streams::Forbidden, Streams::Bad] {
        let (api, feed) = serve().await;
        api.set_streams(streams);
        api.put(pod("a", "a", 1));
        let reading = Reading::whole(&feed).await;
        for lists in 2..4 {
            api.expire();
            reading.until("another list", || api.asked_for(false).len() >= lists).await;
        }
        assert_eq!((api.unstreamed(), reading.shown().len()), (1, 1), "{streams:?}");
        assert_eq!(reading.shared.trouble(), None);
    }
}

/// Old servers ignore parameters that they do not know: such a watch sends all pods, and does not say when it has.
#[tokio::test]
async fn a_server_without_the_mark_of_the_end_is_asked_for_a_list() {
    let (api, feed) = serve().await;
    api.set_streams(Streams::Ignored);
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    reading.until("a watch", || api.asked_for(true).len() == 2).await;
    assert_eq!(api.asked_for(false).len(), 1);
    api.expire();
    reading.until("another list", || api.asked_for(false).len() == 2).await;
    let streams = api.asked().iter().filter(|asked| asked.is_stream()).count();
    assert_eq!(streams, 1, "it is remembered");
}

/// As a server of 1.36.2 with etcd 3.4.23 does, in each such watch.
#[tokio::test]
async fn a_server_that_fails_twice_before_all_pods_have_come_is_asked_for_a_list() {
    let (api, feed) = serve().await;
    api.set_streams(Streams::Failing);
    api.put(pod("a", "a", 1));
    let reading = Reading::whole(&feed).await;
    reading.until_shown(&[("a", 1)]).await;
    assert_eq!(api.asked_for(false).len(), 1);
    api.expire();
    reading.until("another list", || api.asked_for(false).len() == 2).await;
    let streams = api.asked().iter().filter(|asked| asked.is_stream()).count();
    assert_eq!(streams, 2, "it is remembered");
    assert_eq!(reading.shared.trouble(), None);
}

/// Before the mark nothing is said about the pods that have not come.
#[tokio::test]
async fn a_stream_that_is_too_old_or_cut_in_the_middle_removes_no_pod() {
    for half in
        [Refusal::Half(Some(410)), Refusal::Half(None), Refusal::Half(Some(500)), Refusal::Status(410, None)]
    {
        let (api, feed) = serve_streams().await;
        for uid in ["a", "b", "c", "goes"] {
            api.put(pod(uid, uid, 1));
        }
        let reading = Reading::whole(&feed).await;
        let revision = reading.shared.since(None).unwrap().revision;
        api.refuse(&Refusal::Status(410, None), 1);
        api.refuse(&half, 1);
        // As long as the next one hangs, there is what there was.
        api.refuse(&Refusal::Hang, 1);
        let before = api.asked().len();
        api.close_watches();
        reading.until("the third request", || api.asked().len() == before + 3).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(reading.shared.since(Some(revision)), None, "{half:?}");
        assert_eq!(reading.shown().len(), 4, "{half:?}");
        reading.task.abort();

        let reading = Reading::whole(&feed).await;
        let revision = reading.shared.since(None).unwrap().revision;
        api.refuse(&Refusal::Status(410, None), 1);
        api.refuse(&half, 1);
        let before = api.asked().len();
        api.close_watches();
        reading.until("a request", || api.asked().len() > before).await;
        api.remove("goes");
        api.put(pod("comes", "comes", 2));
        reading.until_shown(&[("a", 1), ("b", 1), ("c", 1), ("comes", 2)]).await;
        let since = reading.shared.since(Some(revision)).unwrap();
        assert_eq!((since.removed, since.is_whole), (vec![String::from("goes")], false), "{half:?}");
        let last = api.asked().into_iter().rfind(Asked::is_stream).unwrap();
        assert_eq!(last.parameter("resourceVersion"), None, "an older one would be of no use");
        assert_eq!(api.asked_for(false).len(), 0, "{half:?}");
        reading.until("no trouble", || reading.shared.trouble().is_none()).await;
    }
}

#[tokio::test]
async fn streams_that_never_come_to_their_end_are_given_up_for_lists() {
    let (api, feed) = serve_streams().await;
    for uid in ["a", "b", "c"] {
        api.put(pod(uid, uid, 1));
    }
    api.refuse(&Refusal::Half(None), 2);
    let reading = Reading::whole(&feed).await;
    assert_eq!((reading.shown().len(), api.asked_for(false).len()), (3, 1));
}

/// Though something comes all the time.
#[tokio::test]
async fn a_stream_that_does_not_end_in_time_or_bytes_is_given_up_for_a_list() {
    for pace in [
        Pace { whole: Duration::from_millis(100), ..QUICK },
        Pace { whole: Duration::from_hours(1), whole_bytes: 10_000, ..QUICK },
    ] {
        let (api, feed) = serve().await;
        api.set_streams(Streams::Endless);
        api.put(pod("a", "a", 1));
        let reading = Reading::start(&feed, pace);
        reading.until_shown(&[("a", 1)]).await;
        assert_eq!(api.asked_for(false).len(), 1, "{pace:?}");
        assert_eq!(reading.shared.trouble(), None);
        let streams = api.asked().iter().filter(|asked| asked.is_stream()).count();
        assert_eq!(streams, 1, "it is remembered");
    }
}

/// Also the change of a pod that had come already, and its end.
#[tokio::test]
async fn what_changes_before_the_mark_counts() {
    let (api, feed) = serve_streams().await;
    api.put(pod("a", "a", 1));
    let mut initial = Listed::default();
    let read =
        |kind: &str, pod: &Value| Event::read(json!({"type": kind, "object": pod}).to_string().as_bytes());
    let (feeds, newest) = watch::channel(FeedAsk::ApiServer(Box::new(feed.clone())));
    let shared = Arc::new(Shared::default());
    let mut reader = Reader {
        feed,
        feeds: newest,
        pace: QUICK,
        shared: &shared,
        https: Https::default(),
        version: None,
        has_expired: false,
        gives_streams: true,
        unended: 0,
        initial: None,
        trouble: None,
    };
    let unreadable = json!({"metadata": {"uid": "c"}, "spec": {"priority": "high"}});
    for (kind, object) in [
        ("ADDED", pod("a", "a", 1)),
        ("ADDED", pod("b", "b", 1)),
        ("ADDED", pod("c", "c", 1)),
        ("MODIFIED", pod("a", "a", 2)),
        ("DELETED", pod("b", "b", 1)),
        ("MODIFIED", unreadable),
    ] {
        let (event, version) = read(kind, &object).unwrap();
        assert!(reader.take_initial(initial, event, version).is_ok());
        initial = reader.initial.take().unwrap();
        assert!(!shared.is_whole());
    }
    let mark =
        json!({"metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}});
    let (event, version) = read("BOOKMARK", &mark).unwrap();
    assert!(reader.take_initial(initial, event, version).is_ok());
    let shown: Vec<_> = pods(&shared.since(None).unwrap())
        .into_iter()
        .map(|pod| (pod.metadata.uid, pod.spec.priority))
        .collect();
    assert_eq!((shown, shared.dropped()), (vec![(String::from("a"), Some(2))], 1));
    assert_eq!((reader.version.as_deref(), reader.initial.is_none()), (Some("9"), true));
    drop(feeds);
}
