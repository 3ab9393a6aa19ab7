//! The event stream and its sockets, over the real binary, by clients as anybody has them; needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

#[expect(dead_code, reason = "other tests use more of it")]
mod scene;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    process::{Child, Command, Output, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::body::Body;
use enforcer::journal::{EventType, Journal, RawEvent, Subject};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use sse_stream::SseStream;

use self::scene::Scene;

const TIMEOUT: Duration = Duration::from_secs(30);
const SEED: &str = "ENFORCER_TEST_SEED";
/// Set by `cargo xtask soak`.
const SOAK: &str = "ENFORCER_SOAK";

impl Scene {
    fn new(more: &str) -> Self {
        Self::with("enforcer", more)
    }

    fn pod(&self, name: &str) {
        self.manifest("pods", name, "");
    }

    /// Starts it, and waits until it knows that pod.
    fn start(&mut self, pod: &str) {
        self.run();
        self.await_pod(pod);
    }

    /// One that follows the stream by server-sent events, behind the event of that id.
    fn follower(&self, last: Option<&str>) -> Child {
        let mut curl = Command::new("curl");
        curl.arg("--unix-socket").arg(self.file("run/observe.sock")).args(SSE);
        if let Some(last) = last {
            curl.args(["-H", &format!("Last-Event-ID: {last}")]);
        }
        curl.arg("http://x/v1/events").stdout(Stdio::piped()).spawn().unwrap()
    }

    /// `enforcer events` as JSON lines, with these arguments.
    fn lines(&self, arguments: &[&str]) -> Command {
        let mut events = self.command(&["-o", "jsonl", "events"]);
        events.args(arguments);
        events
    }

    /// The sequence numbers of all events behind a cursor.
    fn sequences_after(&self, cursor: &str) -> Vec<u64> {
        let Output { status, stdout, stderr } = self.lines(&["--after", cursor]).output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap().lines().map(|line| sequence(&parsed(line))).collect()
    }

    /// Has the daemon find a log there that is larger than what pipes and sockets hold.
    fn remember_much(&self) {
        // Whatever the umask of who runs this lets through.
        fs::DirBuilder::new().mode(0o750).create(self.file("run")).unwrap();
        let (journal, _) = Journal::open("n1", "b1", &self.file("state"), &self.file("run")).unwrap();
        for _ in 0..4_000 {
            // The journal gives events up when the disk is too far behind.
            while journal.load().unwritten_records > 500 {
                thread::sleep(Duration::from_millis(1));
            }
            let data = json!({"pad": "x".repeat(1_000)});
            journal.append_raw(RawEvent { kind: EventType::ConfigLoaded, subject: Subject::Node, data });
        }
        journal.close();
    }

    fn await_pod(&self, pod: &str) {
        let begun = Instant::now();
        let target = format!("/v1/events?type=pod.added&pod=default/{pod}");
        while !self.curl(&target, &["--silent"]).0.contains(pod) {
            assert!(begun.elapsed() < TIMEOUT, "the daemon does not know {pod}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// What curl prints, and its exit status.
    fn curl(&self, target: &str, more: &[&str]) -> (String, Option<i32>) {
        let mut curl = Command::new("curl");
        curl.arg("--unix-socket").arg(self.file("run/observe.sock")).args(more);
        let Output { status, stdout, .. } = curl.arg(format!("http://x{target}")).output().unwrap();
        (String::from_utf8(stdout).unwrap(), status.code())
    }
}

const SSE: [&str; 4] = ["--silent", "--no-buffer", "-H", "Accept: text/event-stream"];

/// The ids and the events of a stream, in order, as a client library reads them.
fn blocks(text: &str) -> Vec<(String, Value)> {
    let body = Body::from(text.to_owned()).into_data_stream();
    let events = SseStream::from_bytes_stream(body).map(Result::unwrap).collect::<Vec<_>>();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let event = |event: sse_stream::Sse| Some((event.id?, serde_json::from_str(&event.data?).unwrap()));
    runtime.block_on(events).into_iter().filter_map(event).collect()
}

fn sequence(event: &Value) -> u64 {
    event["sequence"].as_str().unwrap().parse().unwrap()
}

fn sequences(blocks: &[(String, Value)]) -> Vec<u64> {
    blocks.iter().map(|(_, event)| sequence(event)).collect()
}

fn parsed(line: &str) -> Value {
    serde_json::from_str(line).unwrap()
}

/// A reader that follows the stream; it ends with the test.
struct Follower {
    child: Child,
    events: Receiver<Value>,
}

impl Follower {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, events) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(parsed(&line))));
        Self { child, events }
    }

    /// All that it reads, up to the event with that sequence number.
    fn read_until(&self, newest: u64) -> Vec<Value> {
        let mut read = Vec::new();
        while read.last().is_none_or(|event| sequence(event) < newest) {
            read.push(self.events.recv_timeout(TIMEOUT).unwrap());
        }
        read
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Readers do not disturb each other, each sees everything in one order, and a cursor goes on where it stands, also after
/// the daemon was killed.
#[test]
fn two_readers_see_the_same_and_a_cursor_goes_on_where_it_stands() {
    let mut scene = Scene::new("");
    scene.pod("first");
    scene.start("first");
    let readers = [(); 2].map(|()| Follower::start(scene.lines(&["-f"])));
    for number in 0..20 {
        scene.pod(&format!("p{number}"));
    }
    for number in 0..20 {
        scene.await_pod(&format!("p{number}"));
    }
    // All that is there by now; more may come at any time.
    let (whole, _) = scene.curl("/v1/events?follow=false", &SSE);
    let whole = blocks(&whole);
    let newest = sequences(&whole).into_iter().max().unwrap();
    let [first, second] = readers.each_ref().map(|reader| reader.read_until(newest));
    assert_eq!(first, second);
    assert_eq!(first, whole.iter().map(|(_, event)| event.clone()).collect::<Vec<_>>());
    let seen: Vec<u64> = first.iter().map(sequence).collect();
    assert!(seen.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seen:?}");

    // The id of an event of the stream is its cursor.
    let (cursor, middle) = &whole[seen.len() / 2];
    let middle = sequence(middle);
    let rest: Vec<u64> = seen.iter().copied().filter(|sequence| *sequence > middle).collect();
    assert!(!rest.is_empty());
    assert_eq!(scene.sequences_after(cursor)[..rest.len()], rest[..]);
    let following = Follower::start(scene.lines(&["-f", "--after", cursor]));
    assert_eq!(following.read_until(newest).iter().map(sequence).collect::<Vec<_>>(), rest);
    // So does the epoch that a refused cursor is answered with.
    let (refused, _) = scene.curl(
        "/v1/events?after=01J8Z3NDEKTSV4RRFFQ69G5FAV:1",
        &["--silent", "--write-out", "\n%{http_code}"],
    );
    let (answer, status) = refused.rsplit_once('\n').unwrap();
    assert_eq!(status, "410", "{refused}");
    let oldest = parsed(answer)["oldest"].as_str().unwrap().to_owned();
    let (epoch, _) = oldest.split_once(':').unwrap();
    assert_eq!(scene.sequences_after(&format!("{epoch}:{middle}"))[..rest.len()], rest[..]);
    drop((readers, following));

    scene.kill();
    scene.pod("last");
    scene.start("last");
    let later = scene.sequences_after(cursor);
    assert_eq!(later[..rest.len()], rest[..], "what was read before the kill is still there");
    assert!(later.windows(2).all(|pair| pair[1] == pair[0] + 1), "{later:?}");
}

#[test]
fn curl_goes_on_where_it_was_after_the_daemon_was_killed() {
    let mut scene = Scene::new("");
    for name in ["a", "b", "c"] {
        scene.pod(name);
    }
    scene.start("c");
    // One that is still there when the daemon is not.
    let follower = scene.follower(None);
    let (whole, status) = scene.curl("/v1/events?follow=false", &SSE);
    assert_eq!(status, Some(0));
    assert!(whole.starts_with("retry: 2000\n\n"), "{whole}");
    scene.pod("d");
    scene.await_pod("d");
    thread::sleep(Duration::from_millis(200));
    scene.kill();
    let Output { stdout, status, .. } = follower.wait_with_output().unwrap();
    assert!(!status.success(), "a stream that was cut off is no whole answer");
    let before = blocks(&String::from_utf8(stdout).unwrap());
    let seen = sequences(&before);
    assert_eq!(seen, (1..=u64::try_from(seen.len()).unwrap()).collect::<Vec<_>>());
    assert!(before.iter().any(|(_, event)| event["subject"] == "default/d"), "{before:?}");

    scene.pod("e");
    scene.start("e");
    let last = format!("Last-Event-ID: {}", before.last().unwrap().0);
    let (rest, status) = scene.curl(
        "/v1/events?follow=false&after=01J8Z3NDEKTSV4RRFFQ69G5FAV:1",
        &[&SSE[..], &["-H", &last]].concat(),
    );
    assert_eq!(status, Some(0));
    let rest = blocks(&rest);
    let first = seen.last().unwrap() + 1;
    let behind = sequences(&rest);
    assert_eq!(behind, (first..first + u64::try_from(behind.len()).unwrap()).collect::<Vec<_>>());
    assert!(rest.iter().any(|(_, event)| event["subject"] == "default/e"), "{rest:?}");
    // The same by NDJSON and the address alone.
    let (lines, _) = scene.curl(&format!("/v1/events?after={}", before.last().unwrap().0), &["--silent"]);
    let lines: Vec<Value> = lines.lines().map(parsed).collect();
    assert_eq!(lines[..rest.len()], rest.iter().map(|(_, event)| event.clone()).collect::<Vec<_>>());

    let gone = [&SSE[..], &["-i", "-H", "Last-Event-ID: 01J8Z3NDEKTSV4RRFFQ69G5FAV:1"]].concat();
    let (gone, _) = scene.curl("/v1/events", &gone);
    assert!(gone.starts_with("HTTP/1.1 410") && gone.contains("\"oldest\""), "{gone}");
    assert!(scene.curl("/livez", &["--silent"]).0 == "ok\n");
}

/// A number below that, the same for the same seed.
fn chance(seed: u64, round: u64, below: u64) -> u64 {
    let mut mixed = seed ^ (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)) % below
}

/// A client that comes back with its last id each time: it gets everything once, in order, and all of it is there in the end.
#[test]
fn a_follower_misses_nothing_while_the_daemon_is_killed_again_and_again() {
    // A soak repeats what a test does only as often as it takes to kill each kind of follower.
    let rounds = if env::var_os(SOAK).is_some() { 200 } else { 12 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seed = env::var(SEED).map_or(now, |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let mut scene = Scene::new("");
    let pods = scene.file("pods");
    let over = AtomicBool::new(false);
    let (mut last, mut arrived) = (None, BTreeMap::new());
    thread::scope(|scope| {
        // Pods come and go all the time, also while no daemon is there.
        scope.spawn(|| {
            for number in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let name = format!("p{}", number % 40);
                let (file, other) = (pods.join(format!("{name}.yaml")), pods.join(format!("p{}.yaml", (number + 20) % 40)));
                let manifest = format!(
                    "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: app}}]}}\n"
                );
                fs::write(file, manifest).unwrap();
                // The first round has none of them yet.
                drop(fs::remove_file(other));
                thread::sleep(Duration::from_millis(2));
            }
        });
        for round in 0..rounds {
            scene.run();
            if chance(seed, round, 10) == 0 {
                thread::sleep(Duration::from_millis(chance(seed, round, 200)));
                scene.kill();
                continue;
            }
            let mut until = None;
            let begun = Instant::now();
            while scene.daemon.is_some() {
                assert!(begun.elapsed() < TIMEOUT, "round {round}: no event arrives");
                let mut follower = scene.follower(last.as_deref());
                let mut block = String::new();
                for line in BufReader::new(follower.stdout.take().unwrap()).lines() {
                    let line = line.unwrap();
                    if !line.is_empty() {
                        block.push_str(&line);
                        block.push('\n');
                        continue;
                    }
                    block.push('\n');
                    // A block that the kill cut short has no end, and is none.
                    for (id, event) in blocks(&std::mem::take(&mut block)) {
                        let sequence = sequence(&event);
                        let expected = arrived.keys().next_back().map_or(1, |newest| newest + 1);
                        assert_eq!(sequence, expected, "round {round}, seed {seed}: {event}");
                        arrived.insert(sequence, event["id"].as_str().unwrap().to_owned());
                        last = Some(id);
                        until.get_or_insert_with(|| {
                            Instant::now() + Duration::from_micros(chance(seed, round, 150_000))
                        });
                    }
                    if until.is_some_and(|until| Instant::now() >= until) {
                        scene.kill();
                    }
                }
                follower.wait().unwrap();
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    scene.pod("last");
    scene.start("last");
    let (whole, status) = scene.curl("/v1/events?follow=false", &SSE);
    assert_eq!(status, Some(0));
    let kept = blocks(&whole);
    assert_eq!(sequences(&kept), (1..=u64::try_from(kept.len()).unwrap()).collect::<Vec<_>>());
    let ids: BTreeSet<_> = kept.iter().map(|(_, event)| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), kept.len(), "an event is there twice");
    for ((sequence, id), (_, event)) in arrived.iter().zip(&kept) {
        assert_eq!(event["id"], id.as_str(), "another event took the place of {sequence}, which was seen");
    }
    assert!(arrived.len() > 100, "{} events are no load", arrived.len());
    println!("{} events arrived, {} are there", arrived.len(), kept.len());
}

/// Less than a pipe holds of those lines: it has 64 KiB, and of each page less than a line is left over.
const FULL_PIPE_BYTES: u64 = 40 << 10;

/// As with a pager that is not scrolled for a while.
#[test]
fn a_slow_reader_of_all_events_has_each_once_whatever_becomes_of_the_daemon() {
    for comes_back in [true, false] {
        let mut scene = Scene::new("");
        scene.remember_much();
        scene.pod("a");
        scene.start("a");
        let mut events = scene.lines(&[]);
        let mut events = events.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = events.stdout.take().unwrap();
        // While its output is not read it sends no request, so that it meets no daemon that is just ending or starting.
        let (begun, mut before) = (Instant::now(), 0);
        loop {
            thread::sleep(Duration::from_millis(200));
            let bytes = rustix::io::ioctl_fionread(&stdout).unwrap();
            if bytes >= FULL_PIPE_BYTES && bytes == before {
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "it does not print more than {bytes} bytes");
            before = bytes;
        }
        let lines = BufReader::new(stdout).lines().map(Result::unwrap);
        scene.kill();
        if comes_back {
            scene.start("a");
        }
        let seen: Vec<u64> = lines.map(|line| sequence(&parsed(&line))).collect();
        let Output { status, stderr, .. } = events.wait_with_output().unwrap();
        let reported = String::from_utf8(stderr).unwrap();
        assert_eq!(seen, (1..=u64::try_from(seen.len()).unwrap()).collect::<Vec<_>>(), "{reported}");
        assert!(status.success() && seen.len() > 4_000, "{} {reported}", seen.len());
        let rest = format!("the daemon is down: the rest is what {} holds\n", scene.file("state").display());
        assert_eq!(reported, if comes_back { String::new() } else { rest });
    }
}

#[test]
fn sockets_belong_to_whom_the_configuration_says() {
    let mut scene = Scene::new(
        "observeSocketGroup: 4321\nadminSocketGroup: 4322\nobserveSocketOwner: 4323\nadminSocketOwner: 4324\n",
    );
    if !rustix::process::geteuid().is_root() {
        // Only root gives files away.
        return;
    }
    fs::set_permissions(scene.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    scene.pod("a");
    scene.start("a");
    for (name, uid, gid, mode) in [("observe", 4_323, 4_321, 0o660), ("admin", 4_324, 4_322, 0o660)] {
        let socket = fs::metadata(scene.file(&format!("run/{name}.sock"))).unwrap();
        assert_eq!((socket.uid(), socket.gid(), socket.mode() & 0o777), (uid, gid, mode), "{name}");
    }
    // curl as a user in these groups, and as one in none.
    let as_user = |groups: &str, arguments: &[&str]| {
        let mut curl = Command::new("setpriv");
        curl.args(["--reuid=65534", "--regid=65534", groups, "curl", "--silent", "--unix-socket"]);
        let Output { stdout, .. } = curl.args(arguments).output().unwrap();
        String::from_utf8(stdout).unwrap()
    };
    let observe = scene.file("run/observe.sock").display().to_string();
    let admin = scene.file("run/admin.sock").display().to_string();
    let read = [observe.as_str(), "http://x/livez"];
    assert_eq!(as_user("--groups=4321", &read), "ok\n");
    assert_eq!(as_user("--clear-groups", &read), "");
    let body = r#"{"do":"give","what":{"order":"pause"},"reason":"by a group","forMs":60000}"#;
    let order = [admin.as_str(), "-d", body, "http://x/v1/orders"];
    assert!(as_user("--groups=4321,4322", &order).contains("\"order\":\"pause\""));
    assert_eq!(as_user("--groups=4321", &order), "");
    let (reported, _) = scene.curl("/v1/orders", &["--silent"]);
    assert!(reported.contains("\"uid\":65534") && reported.contains("by a group"), "{reported}");
}
