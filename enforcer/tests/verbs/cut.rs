//! A daemon that does not come to the end of its answer, or to its beginning.
use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use enforcer::journal::Journal;
use serde_json::Value;

use crate::{Scene, journal::eviction};

const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const PLAIN: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";

/// Reads a request's head: what is asked for.
fn asked(reader: &mut BufReader<UnixStream>) -> String {
    let (mut first, mut line) = (String::new(), String::new());
    reader.read_line(&mut first).unwrap();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0);
    }
    first.split(' ').nth(1).unwrap().to_owned()
}

/// A log of which the daemon sends a part at a time.
struct Log {
    scene: Scene,
    lines: Vec<String>,
    /// The cursor behind each of them.
    cursors: Vec<String>,
}

impl Log {
    fn new() -> Self {
        let scene = Scene::new();
        scene.remember(&eviction());
        let lines: Vec<_> = scene.raw(&["-o", "jsonl", "events"]).out.lines().map(str::to_owned).collect();
        assert!(lines.len() > 5, "{lines:?}");
        let (journal, _) = Journal::open("n1", "b1", &scene.path("state"), &scene.path("run")).unwrap();
        let sequence = |line: &String| {
            let event: Value = serde_json::from_str(line).unwrap();
            event["sequence"].as_str().unwrap().parse().unwrap()
        };
        let cursors = lines.iter().map(|line| journal.cursor(sequence(line)).to_string()).collect();
        journal.close();
        Self { scene, lines, cursors }
    }

    /// Server-sent events, those from there to there.
    fn blocks(&self, from: usize, to: usize) -> String {
        let events = self.cursors.iter().zip(&self.lines).skip(from).take(to - from);
        let blocks = events.map(|(cursor, line)| format!("id: {cursor}\nevent: x\ndata: {line}\n\n"));
        format!("retry: 2000\n\n{}", blocks.collect::<String>())
    }

    /// Gives these answers, one after the other: all that is sent of each, after its head if that is one of ours. Then
    /// no daemon listens any more. What was asked for is kept.
    fn answer(&self, answers: Vec<(&'static str, String)>) -> Arc<Mutex<Vec<String>>> {
        let path = self.scene.path("run/observe.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let targets = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&targets);
        thread::spawn(move || {
            let mut left = answers.len();
            for (head, sent) in answers {
                let mut reader = BufReader::new(listener.accept().unwrap().0);
                left -= 1;
                if left == 0 {
                    fs::remove_file(&path).unwrap();
                }
                seen.lock().unwrap().push(asked(&mut reader));
                let mut stream = reader.into_inner();
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent.as_bytes())).unwrap();
            }
        });
        targets
    }

    fn is_whole(&self, out: &str) -> bool {
        out.lines().eq(&self.lines)
    }
}

/// A chunk of a body, and no end of it.
fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn whole(text: &str) -> String {
    chunk(text) + "0\r\n\r\n"
}

/// The answer to a cursor that is no longer kept.
fn gone(lost: u64, oldest: &str) -> (&'static str, String) {
    let body = format!("{{\"error\":\"x\",\"oldest\":\"{oldest}\",\"newest\":\"a:9\",\"lost\":{lost}}}");
    (
        "HTTP/1.1 410 Gone\r\ncontent-type: application/json\r\n",
        format!("content-length: {}\r\n\r\n{body}", body.len()),
    )
}

/// What the daemon is asked for.
fn asking(follow: bool, after: Option<&str>) -> String {
    let after = after.map_or_else(String::new, |cursor| format!("&after={}", cursor.replace(':', "%3A")));
    format!("/v1/events?follow={follow}{after}")
}

/// Follows the log until that many lines came; what was printed then.
fn followed(log: &Log, arguments: &[&str], lines: usize) -> (Vec<String>, String) {
    let mut verb = Command::new(env!("CARGO_BIN_EXE_enforcer"));
    verb.arg("--config")
        .arg(log.scene.path("config.yaml"))
        .args(["-o", "jsonl", "events", "-f"])
        .args(arguments);
    verb.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = verb.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).take(lines).collect();
    child.kill().unwrap();
    let mut reported = String::new();
    child.stderr.take().unwrap().read_to_string(&mut reported).unwrap();
    child.wait().unwrap();
    (out, reported)
}

/// Whether it has hung up, was stopped, or was killed.
#[test]
fn a_stream_that_is_followed_goes_on_when_the_daemon_is_back() {
    let log = Log::new();
    let count = log.lines.len();
    let targets = log.answer(vec![
        (SSE, chunk(&log.blocks(0, 2))),
        // This one has ended the stream as a daemon does that is stopped.
        (SSE, whole(&log.blocks(2, 4))),
        (SSE, chunk(&log.blocks(4, count))),
    ]);
    let (out, reported) = followed(&log, &[], count);
    assert_eq!(out, log.lines);
    let expected =
        [asking(true, None), asking(true, Some(&log.cursors[1])), asking(true, Some(&log.cursors[3]))];
    assert_eq!(*targets.lock().unwrap(), expected);
    let lines: Vec<_> = reported.lines().collect();
    assert_eq!(lines[0], "the daemon hung up: reconnecting", "{reported}");
    assert_eq!(lines[2], "the daemon has ended the stream: reconnecting", "{reported}");
    for line in [lines[1], lines[3]] {
        assert!(line.starts_with("reconnected after ") && line.ends_with(" s, no event lost"), "{reported}");
    }
}

#[test]
fn what_was_lost_while_no_daemon_was_there_is_reported_and_the_stream_goes_on() {
    let log = Log::new();
    let count = log.lines.len();
    let targets = log.answer(vec![
        (SSE, chunk(&log.blocks(0, 2))),
        gone(2, &log.cursors[4]),
        (SSE, chunk(&log.blocks(4, count))),
    ]);
    let (out, reported) = followed(&log, &[], count - 2);
    assert_eq!(out, [&log.lines[..2], &log.lines[4..]].concat());
    let expected = [asking(true, None), asking(true, Some(&log.cursors[1])), asking(true, None)];
    assert_eq!(*targets.lock().unwrap(), expected);
    let again = reported.lines().nth(1).unwrap();
    assert!(again.ends_with(" s, 2 events lost: sequence 3 to 4 are no longer kept"), "{reported}");
}

#[test]
fn of_a_tail_the_newest_are_printed_and_then_what_is_new() {
    let log = Log::new();
    let count = log.lines.len();
    let targets = log
        .answer(vec![(SSE, whole(&log.blocks(0, count - 1))), (SSE, chunk(&log.blocks(count - 1, count)))]);
    let (out, _) = followed(&log, &["--tail", "2"], 3);
    assert_eq!(out, log.lines[count - 3..]);
    assert_eq!(*targets.lock().unwrap(), [asking(false, None), asking(true, Some(&log.cursors[count - 2]))]);
}

/// There is nothing to come back to.
#[test]
fn a_stream_that_never_began_is_not_waited_for() {
    let log = Log::new();
    let printed = log.scene.raw(&["-o", "jsonl", "events", "-f"]);
    assert_eq!((printed.status, printed.out.as_str()), (69, ""), "{printed:?}");
    let document = log.scene.raw(&["-o", "json", "events", "-f"]);
    assert!(document.status == 64 && document.err.contains("use -o jsonl"), "{document:?}");
}

/// It hangs up on whoever pages the log and does not read on for a while.
#[test]
fn a_log_that_is_cut_short_goes_on_where_it_was() {
    for verb in [&["events"][..], &["--live", "events"]] {
        let log = Log::new();
        let targets = log.answer(vec![
            (SSE, chunk(&log.blocks(0, 2))),
            // The third is not there to its end.
            (SSE, chunk(&(log.blocks(2, 4) + &format!("id: {}\ndata: {}\n", log.cursors[4], log.lines[4])))),
            (SSE, whole(&log.blocks(4, log.lines.len()))),
        ]);
        let printed = log.scene.raw(&[&["-o", "jsonl"], verb].concat());
        assert!(log.is_whole(&printed.out), "{verb:?}: {printed:?}");
        assert_eq!((printed.status, printed.err.as_str()), (0, ""), "{verb:?}");
        let expected =
            [asking(false, None), asking(false, Some(&log.cursors[1])), asking(false, Some(&log.cursors[3]))];
        assert_eq!(*targets.lock().unwrap(), expected);
    }
}

#[test]
fn what_a_daemon_that_was_killed_did_not_come_to_is_in_the_state_directory() {
    for (answers, why) in [(1, "the daemon is down"), (2, "the daemon hung up")] {
        let log = Log::new();
        // The second time there is nothing new.
        let sent = [log.blocks(0, 2), log.blocks(0, 0)];
        log.answer(sent.iter().take(answers).map(|sent| (SSE, chunk(sent))).collect());
        let printed = log.scene.raw(&["-o", "jsonl", "events"]);
        assert!(log.is_whole(&printed.out), "{printed:?}");
        assert_eq!(printed.status, 0);
        let reported = format!("{why}: the rest is what {} holds\n", log.scene.path("state").display());
        assert_eq!(printed.err, reported);
    }
    // Nothing was printed: all of it is there.
    let log = Log::new();
    log.answer(vec![(SSE, chunk("retry: 2000\n\n"))]);
    let printed = log.scene.raw(&["-o", "jsonl", "events"]);
    assert!(log.is_whole(&printed.out) && printed.status == 0, "{printed:?}");
    assert!(printed.err.starts_with("the daemon hung up: this is what "), "{}", printed.err);
}

#[test]
fn what_cannot_go_on_is_printed_once_and_fails() {
    let cases = |log: &Log| {
        let first = (SSE, chunk(&log.blocks(0, 2)));
        let elsewhere = log.blocks(0, 2).replace(&log.cursors[1], "01J8Z3NDEKTSV4RRFFQ69G5FAV:2");
        [
            (&["--live", "events"][..], first, "observe.sock"),
            (&["events"], (SSE, chunk(&elsewhere)), "does not go on behind 01J8Z3NDEKTSV4RRFFQ69G5FAV:2"),
            // Plain lines do not show where they end.
            (&["events"], (PLAIN, chunk(&(log.lines[..2].join("\n") + "\n"))), "the daemon hung up"),
        ]
    };
    for number in 0..3 {
        let log = Log::new();
        let [(verb, answer, reported)] = &cases(&log)[number..=number] else { panic!() };
        log.answer(vec![answer.clone()]);
        let printed = log.scene.raw(&[&["-o", "jsonl"], *verb].concat());
        assert_eq!(printed.out.lines().collect::<Vec<_>>(), log.lines[..2], "{verb:?}");
        assert_eq!(printed.status, 69, "{verb:?}: {printed:?}");
        assert!(printed.err.contains(reported) && printed.err.lines().count() == 1, "{}", printed.err);
    }
}

/// With the daemon as without it.
#[test]
fn an_old_cursor_is_reported_what_is_lost_and_what_to_do() {
    let log = Log::new();
    let gone = |lost: u64| gone(lost, "a:1");
    let remedy = "without --after all that is kept is printed";
    log.answer(vec![gone(41), (SSE, chunk(&log.blocks(0, 2))), gone(7)]);
    let old = ["events", "--after", "01J8Z3NDEKTSV4RRFFQ69G5FAV:2"];
    let printed = log.scene.raw(&old);
    assert_eq!(printed.status, 1, "{printed:?}");
    assert!(
        printed.err.starts_with("error: --after: ") && printed.err.contains("41 events are lost"),
        "{printed:?}"
    );
    assert!(printed.err.contains(remedy), "{printed:?}");
    // Meanwhile what came behind the last that was printed is gone.
    let printed = log.scene.raw(&["events"]);
    assert_eq!((printed.status, printed.out.lines().count()), (1, 2), "{printed:?}");
    assert!(
        printed.err.contains(&log.cursors[1]) && printed.err.contains("7 events are lost"),
        "{printed:?}"
    );
    let printed = log.scene.raw(&old);
    assert!(printed.err.contains("0 events are lost") && printed.err.contains(remedy), "{printed:?}");
}

/// As one that is stopped, or frozen.
#[test]
fn a_daemon_that_listens_and_says_nothing_is_not_waited_for() {
    let log = Log::new();
    let scene = &log.scene;
    let listener = UnixListener::bind(scene.path("run/observe.sock")).unwrap();
    let kept = thread::spawn(move || {
        let streams: Vec<_> = (0..4).map(|_| listener.accept().unwrap()).collect();
        thread::sleep(Duration::from_mins(1));
        drop(streams);
    });
    thread::scope(|scope| {
        let start = |verb: &'static [&'static str]| scope.spawn(move || scene.raw(verb));
        let [events, why] = [start(&["-o", "jsonl", "events"]), start(&["why"])];
        let [next, exec] = [start(&["next"]), start(&["exec", "default/web", "--", "true"])];
        for (shown, lines) in [(events, log.lines.len()), (why, 5)] {
            let shown = shown.join().unwrap();
            assert!(shown.status == 0 && shown.out.lines().count() >= lines, "{shown:?}");
            assert!(shown.err.starts_with("the daemon does not answer: this is what "), "{}", shown.err);
        }
        for refused in [next, exec] {
            let refused = refused.join().unwrap();
            assert_eq!(refused.status, 69, "{refused:?}");
            assert!(refused.err.contains("has not answered for 10 s"), "{}", refused.err);
        }
    });
    drop(kept);
}

/// Whoever has read enough is no failure, and a full disk is one.
#[test]
fn a_reader_that_goes_away_is_reported_nothing() {
    let log = Log::new();
    let verb = || {
        let mut verb = Command::new(env!("CARGO_BIN_EXE_enforcer"));
        verb.arg("--config").arg(log.scene.path("config.yaml")).args(["-o", "jsonl", "why"]);
        verb
    };
    let mut piped =
        verb().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(piped.stdout.take());
    let output = piped.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("error"), "{output:?}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = verb().stdin(Stdio::null()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot print"), "{output:?}");
}
