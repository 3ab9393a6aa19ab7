use std::{
    io::Write as _,
    os::unix::net::UnixListener as StdListener,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use tokio::net::{UnixListener, UnixStream};

use super::{
    super::{
        fake::{self, Node, Say},
        process,
    },
    *,
};
use crate::recorded::Recorded;

const CREATED: i32 = 0;
const RUNNING: i32 = 1;
const EXITED: i32 = 2;

/// Longer than anything takes that answers.
const LONG_MS: u64 = 60_000;

/// A folder with the sockets of fake runtimes.
struct Sockets(tempfile::TempDir);

impl Sockets {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Serves there as `say` does.
    fn serve(&self, name: &str, say: impl Fn(&str, &[u8]) -> Say + Send + Sync + 'static) -> PathBuf {
        let path = self.0.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(fake::serve(listener, say));
        path
    }

    fn node(&self, name: &str, node: Node) -> PathBuf {
        self.serve(name, move |path, message| node.say(path, message))
    }

    /// Answers everyone by these bytes, and holds the connections open.
    fn raw(&self, name: &str, bytes: &'static [u8]) -> PathBuf {
        let path = self.0.path().join(name);
        let listener = StdListener::bind(&path).unwrap();
        thread::spawn(move || {
            let mut held = Vec::new();
            for mut stream in listener.incoming().flatten() {
                drop(stream.write_all(bytes));
                held.push(stream);
            }
        });
        path
    }
}

/// A client whose process is a thread, and how often that was started.
fn client_with(sockets: &[&PathBuf], timeout_ms: u64) -> (Runtime, Arc<AtomicUsize>) {
    let started = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&started);
    let sockets: Vec<PathBuf> = sockets.iter().map(|path| (*path).clone()).collect();
    let client = Runtime::start_with(
        move || sockets.clone(),
        timeout_ms,
        move |socket, theirs| {
            let runtime = StdStream::from(helper::connect(socket)?);
            theirs.set_nonblocking(true)?;
            count.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                let async_runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                async_runtime.block_on(async {
                    let (daemon, runtime) = (UnixStream::from_std(theirs)?, UnixStream::from_std(runtime)?);
                    process::serve(daemon, runtime).await
                })
            });
            Ok(None)
        },
    );
    (client.unwrap(), started)
}

fn client(sockets: &[&PathBuf]) -> Runtime {
    client_with(sockets, LONG_MS).0
}

/// What is listed if no container is wanted.
async fn list(client: &Runtime) -> Result<Listing, CriError> {
    let listed = client.list(&[]).await?;
    assert!(listed.is_whole);
    Ok(listed.listing)
}

/// What is said about a listing that fails.
async fn refusal(client: &Runtime) -> String {
    crate::chain(&list(client).await.unwrap_err())
}

fn small_node() -> Node {
    let mut node = Node::default();
    let sandbox = node.add_pod("shop", "web-0", "uid-0");
    node.add_container(&sandbox, "server", RUNNING);
    node
}

/// What a real containerd answered: each of its pods is one of the API server's, and so are their containers that run.
#[tokio::test]
async fn a_real_runtimes_answers_name_the_pods_that_the_api_server_has() {
    let sockets = Sockets::new();
    let recorded = Recorded::new();
    let pods = recorded.listed();
    let socket = sockets.serve("s", move |path, message| {
        let method = path.strip_prefix("/runtime.v1.RuntimeService/").unwrap_or_default();
        recorded.runtimes(method, message).map_or(Say::Status(12, "not%20recorded"), Say::Message)
    });
    let Listing { runtime, sandboxes, containers, dropped } = list(&client(&[&socket])).await.unwrap();
    assert!(runtime.starts_with("containerd 1."), "{runtime}");
    assert_eq!((dropped, sandboxes.len()), (0, pods.len()));
    for pod in pods {
        let is_it = |sandbox: &&super::super::Sandbox| pod["metadata"]["uid"] == *sandbox.pod_uid;
        let sandbox = sandboxes.iter().find(is_it).unwrap_or_else(|| panic!("{}", pod["metadata"]));
        assert_eq!(pod["metadata"]["name"], *sandbox.name);
        assert_eq!(pod["metadata"]["namespace"], *sandbox.namespace);
        assert!(sandbox.ready && !sandbox.is_static);
        let statuses = ["initContainerStatuses", "containerStatuses"]
            .map(|name| pod["status"][name].as_array().cloned());
        for status in statuses.into_iter().flatten().flatten() {
            let id = status["containerID"].as_str().unwrap().strip_prefix("containerd://").unwrap();
            let known = containers.iter().find(|container| container.id == id);
            let known = known.map(|of| (&*of.name, &*of.sandbox_id, of.running, u64::from(of.attempt)));
            let attempt = status["restartCount"].as_u64().unwrap();
            let expected = (status["name"].as_str().unwrap(), &*sandbox.id, true, attempt);
            // One that has ended has no cgroup.
            assert_eq!(known, status["state"]["running"].is_object().then_some(expected), "{status}");
        }
    }
}

#[tokio::test]
async fn pods_are_listed_with_what_may_have_a_cgroup() {
    let sockets = Sockets::new();
    let text = |text: &str| text.to_owned();
    let mut node = Node::default();
    let sandbox = node.add_pod("shop", "web-0", "uid-0");
    let dead = node.add_pod("shop", "web-1", "uid-1");
    node.sandboxes[1].state = 1;
    node.sandboxes[1].annotations.insert(text("kubernetes.io/config.source"), text("file"));
    let running = node.add_container(&sandbox, "server", RUNNING);
    let created = node.add_container(&dead, "init", CREATED);
    node.add_container(&sandbox, "before", EXITED);
    let listing = list(&client(&[&sockets.node("s", node)])).await.unwrap();
    let pod = |id: &str, number: usize, ready| super::super::Sandbox {
        id: text(id),
        pod_uid: format!("uid-{number}"),
        namespace: text("shop"),
        name: format!("web-{number}"),
        attempt: 0,
        ready,
        is_static: number == 1,
    };
    let container = |id: &str, sandbox: &str, name: &str, running| super::super::Container {
        id: text(id),
        sandbox_id: text(sandbox),
        name: text(name),
        attempt: 2,
        running,
    };
    let expected = Listing {
        runtime: text("fake 1.2.3"),
        sandboxes: vec![pod(&sandbox, 0, true), pod(&dead, 1, false)],
        containers: vec![
            container(&running, &sandbox, "server", true),
            container(&created, &dead, "init", false),
        ],
        dropped: 0,
    };
    assert_eq!(listing, expected);
}

fn wanted(id: &str) -> ContainerId {
    ContainerId::new(id).unwrap()
}

/// Whether a call asks for a container by its id: by a state it is shorter.
fn is_by_id(path: &str, message: &[u8]) -> bool {
    path.ends_with("/ListContainers") && message.len() > 64
}

/// The names of the containers that are listed.
fn names(listed: &Listed) -> Vec<&str> {
    listed.listing.containers.iter().map(|container| &*container.name).collect()
}

/// Killed at once for a limit that is too small, or in a pod that has ended.
#[tokio::test]
async fn a_container_that_has_exited_is_listed_if_it_is_wanted() {
    let sockets = Sockets::new();
    let mut node = small_node();
    let ended = node.add_pod("shop", "job-0", "uid-1");
    node.sandboxes[1].state = 1;
    let sandbox = node.sandboxes[0].id.clone();
    let brief = node.add_container(&sandbox, "brief", EXITED);
    let last = node.add_container(&ended, "last", EXITED);
    node.add_container(&sandbox, "before", EXITED);
    let server = node.containers[0].id.clone();
    let client = client(&[&sockets.node("s", node)]);
    let all = [&brief, &last, &server, &sandbox, &"f".repeat(64)].map(|id| wanted(id));
    let listed = client.list(&all).await.unwrap();
    assert!(listed.is_whole, "one is not known, which is an answer");
    assert_eq!((names(&listed), listed.listing.dropped), (vec!["server", "brief", "last"], 0));
    let brief = listed.listing.containers.iter().find(|container| container.id == brief).unwrap();
    assert_eq!((&brief.sandbox_id, brief.attempt, brief.running), (&sandbox, 2, false));
    let job = listed.listing.sandboxes.iter().find(|sandbox| sandbox.id == ended).unwrap();
    assert_eq!((&*job.name, job.ready), ("job-0", false));
    assert_eq!(names(&client.list(&[]).await.unwrap()), ["server"]);
}

#[tokio::test]
async fn another_container_than_the_wanted_one_is_not_taken() {
    let sockets = Sockets::new();
    let mut node = small_node();
    let sandbox = node.sandboxes[0].id.clone();
    node.add_container(&sandbox, "other", EXITED);
    let socket = sockets.serve("s", move |path, message| {
        // By no filter at all.
        if is_by_id(path, message) { node.say(path, &[]) } else { node.say(path, message) }
    });
    let listed = client(&[&socket]).list(&[wanted(&"f".repeat(64))]).await.unwrap();
    assert_eq!((names(&listed), listed.is_whole), (vec!["server"], true));
}

#[tokio::test]
async fn a_runtime_that_fails_for_a_wanted_container_lists_the_others_all_the_same() {
    let sockets = Sockets::new();
    let says = [Say::Status(13, "broken"), Say::Close, Say::Message(vec![0xff; 100])];
    for (number, say) in says.into_iter().enumerate() {
        let node = small_node();
        let socket = sockets.serve(&number.to_string(), move |path, message| {
            if is_by_id(path, message) { say.clone() } else { node.say(path, message) }
        });
        let client = client(&[&socket]);
        let listed = client.list(&[wanted(&"f".repeat(64))]).await.unwrap();
        assert_eq!((names(&listed), listed.is_whole), (vec!["server"], false), "{number}");
        assert!(list(&client).await.is_ok(), "{number}");
    }
}

#[tokio::test]
async fn at_most_so_many_are_asked_for_by_their_ids_at_a_time() {
    let sockets = Sockets::new();
    let (node, asked) = (small_node(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    let socket = sockets.serve("s", move |path, message| {
        count.fetch_add(usize::from(is_by_id(path, message)), Ordering::Relaxed);
        node.say(path, message)
    });
    let client = client(&[&socket]);
    let mut all: Vec<_> = (0..=MOST_WANTED).map(|number| wanted(&format!("{number:064x}"))).collect();
    assert!(!client.list(&all).await.unwrap().is_whole);
    assert_eq!(asked.swap(0, Ordering::Relaxed), MOST_WANTED);
    all.pop();
    assert!(client.list(&all).await.unwrap().is_whole);
    assert_eq!(asked.load(Ordering::Relaxed), MOST_WANTED);
}

#[tokio::test]
async fn one_process_and_one_connection_list_again_and_again() {
    let sockets = Sockets::new();
    let (client, started) = client_with(&[&sockets.node("s", Node::with_pods(500))], LONG_MS);
    for _ in 0..3 {
        let listing = list(&client).await.unwrap();
        assert_eq!((listing.sandboxes.len(), listing.containers.len(), listing.dropped), (500, 1_000, 0));
    }
    let two = tokio::join!(list(&client), list(&client));
    assert!(two.0.is_ok() && two.1.is_ok());
    assert_eq!(started.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_name_that_a_tenant_made_up_hides_no_other() {
    let sockets = Sockets::new();
    let mut node = small_node();
    node.add_container("../../escape", "x", RUNNING);
    node.add_container("s", "a\nb", RUNNING);
    node.add_pod("shop", &"x".repeat(100_000), "uid-1");
    let socket = sockets.serve("s", move |path, message| match node.say(path, message) {
        // A further container whose id is no text.
        Say::Message(mut answer) if path.ends_with("/ListContainers") && !answer.is_empty() => {
            answer.extend_from_slice(&[0x0a, 3, 0x0a, 1, 0xff]);
            Say::Message(answer)
        }
        said => said,
    });
    let listing = list(&client(&[&socket])).await.unwrap();
    assert_eq!((listing.sandboxes.len(), listing.containers.len(), listing.dropped), (1, 1, 4));
}

#[tokio::test]
async fn a_runtime_that_is_started_again_is_asked_over_a_new_connection() {
    let sockets = Sockets::new();
    let calls = AtomicUsize::new(0);
    let node = small_node();
    let socket = sockets.serve("s", move |path, message| {
        // The second listing's first call.
        if calls.fetch_add(1, Ordering::Relaxed) == 4 { Say::Close } else { node.say(path, message) }
    });
    let (client, started) = client_with(&[&socket], LONG_MS);
    assert!(list(&client).await.is_ok());
    let why = refusal(&client).await;
    assert!(why.contains("Version failed") && why.contains(socket.to_str().unwrap()), "{why}");
    assert!(list(&client).await.is_ok());
    assert_eq!(started.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_runtime_that_hangs_costs_the_time_that_a_listing_may_take() {
    let sockets = Sockets::new();
    let hangs = sockets.serve("h", |_path, _message| Say::Hang);
    let silent = sockets.raw("r", b"");
    for socket in [&hangs, &silent] {
        let (client, _started) = client_with(&[socket], 50);
        let why = refusal(&client).await;
        assert!(why.contains("does not answer within 50 ms"), "{why}");
    }
}

#[tokio::test]
async fn what_is_no_whole_answer_of_a_runtime_is_an_error_that_says_why() {
    let sockets = Sockets::new();
    let message = || vec![0x12, 3, b'a', b'b', b'c'];
    let zeros = |bytes| Say::Message(vec![0; bytes]);
    let says: [(Say, &str); 7] = [
        (Say::Half(message()), "not one whole message"),
        (Say::NoStatus(message()), "not one whole message"),
        (Say::Status(13, "it%20is%0A broken"), "status 13: it is broken"),
        (Say::Close, "the connection failed"),
        (Say::Message(vec![0x12, 9]), "cannot be read"),
        (zeros((16 << 20) + 1), "at most 16777216 are taken"),
        (Say::Status(0, ""), "not one whole message"),
    ];
    for (number, (say, words)) in says.into_iter().enumerate() {
        let socket = sockets.serve(&number.to_string(), move |_path, _message| say.clone());
        let why = refusal(&client(&[&socket])).await;
        assert!(why.contains(words), "{words}: {why}");
    }
    let garbage = sockets.raw("g", &[0xff; 100]);
    let why = refusal(&client(&[&garbage])).await;
    assert!(why.contains("the connection failed"), "{why}");
    let http = sockets.raw("h", b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
    let why = refusal(&client(&[&http])).await;
    assert!(why.contains("the connection failed"), "{why}");
}

#[tokio::test]
async fn a_list_that_is_no_list_is_an_error() {
    let sockets = Sockets::new();
    let node = small_node();
    let socket = sockets.serve("s", move |path, message| {
        if path.ends_with("/ListPodSandbox") {
            Say::Message(vec![0xff; 100])
        } else {
            node.say(path, message)
        }
    });
    let why = refusal(&client(&[&socket])).await;
    assert!(why.contains("not a valid protobuf message"), "{why}");
}

#[tokio::test]
async fn a_listing_that_was_cancelled_holds_up_no_other() {
    let sockets = Sockets::new();
    let hangs = AtomicUsize::new(0);
    let node = small_node();
    let socket = sockets.serve("s", move |path, message| {
        if hangs.fetch_add(1, Ordering::Relaxed) == 0 { Say::Hang } else { node.say(path, message) }
    });
    let (client, started) = client_with(&[&socket], LONG_MS);
    let cancelled = tokio::time::timeout(std::time::Duration::from_millis(100), list(&client)).await;
    assert!(cancelled.is_err());
    assert!(list(&client).await.is_ok());
    assert_eq!(started.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn of_several_runtimes_the_one_with_pods_counts_and_stays() {
    let sockets = Sockets::new();
    let docker = sockets.serve("d", |_path, _message| Say::Status(12, "unknown%20service"));
    let idle = sockets.node("i", Node::default());
    let used = sockets.node("u", small_node());
    let absent = sockets.0.path().join("absent");
    let (client, started) = client_with(&[&docker, &absent, &idle, &used], LONG_MS);
    for _ in 0..3 {
        assert_eq!(list(&client).await.unwrap().sandboxes.len(), 1);
    }
    assert_eq!(started.load(Ordering::Relaxed), 3, "the next listings begin with the one that has pods");
}

#[tokio::test]
async fn a_node_without_pods_is_one_only_if_no_runtime_is_out_of_reach() {
    let sockets = Sockets::new();
    let docker = sockets.serve("d", |_path, _message| Say::Status(12, "unknown%20service"));
    let idle = sockets.node("i", Node::default());
    let absent = sockets.0.path().join("absent");
    let listing = list(&client(&[&docker, &idle])).await.unwrap();
    assert_eq!(listing, Listing { runtime: String::from("fake 1.2.3"), ..Listing::default() });
    let refused = list(&client(&[&docker, &absent, &idle])).await.unwrap_err();
    assert!(matches!(&refused, CriError::Failed { socket, .. } if *socket == absent), "{refused}");
    let refused = list(&client(&[&docker])).await.unwrap_err();
    let expected = CriError::NoService { socket: docker, words: String::from("unknown service") };
    assert_eq!(refused, expected);
    assert!(refused.to_string().contains("runtime.v1.RuntimeService"), "{refused}");
    assert_eq!(list(&client(&[])).await, Err(CriError::NoSocket));
}

#[test]
fn a_process_that_sends_no_listing_is_not_believed() {
    assert!(Cri::answer(Outcome::Listed, b"{}").is_err());
    let long = Cri::answer(Outcome::Failed("x\n".repeat(100_000)), b"").err();
    assert_eq!(long, Some("x".repeat(500)));
    let listing = br#"{"runtime": "r", "sandboxes": [], "dropped": 0, "containers":
        [{"id": "../x", "sandboxId": "s", "name": "n", "attempt": 0, "running": true}]}"#;
    let Ok(Ok(Listed { listing, is_whole: true })) = Cri::answer(Outcome::Listed, listing) else {
        panic!("it is one")
    };
    assert_eq!((listing.containers.len(), listing.dropped), (0, 1));
}
