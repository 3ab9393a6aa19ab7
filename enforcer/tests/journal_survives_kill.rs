//! Whatever a reader saw is in the log after the process was killed, once, and the sequence goes on without a gap.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use enforcer::journal::{Batch, Event, EventType, Filter, Journal, Subject};
use serde_json::{Value, json};

const DIR: &str = "ENFORCER_TEST_JOURNAL_DIR";
const ROUNDS: u32 = 15;

fn open(dir: &Path) -> anyhow::Result<Journal> {
    Ok(Journal::open("n1", "b1", &dir.join("state"), dir)?.0)
}

/// Not a test of its own: the process that is killed. It prints what a reader sees, as soon as it sees it.
#[test]
fn appender() {
    let Some(dir) = env::var_os(DIR) else { return };
    let journal = open(Path::new(&dir)).unwrap();
    let mut reader = journal.reader(Some(journal.range().newest), Filter::default());
    let mut out = std::io::stdout().lock();
    for n in 0_u64.. {
        let pad = "x".repeat(usize::try_from(n * 7919 % 3_000).unwrap());
        journal.append(Event {
            kind: EventType::PodAdded,
            subject: Subject::Node,
            data: json!({"n": n, "pad": pad}),
        });
        while let Some(Batch::Records(records)) = reader.read() {
            for record in records {
                let event: Value = serde_json::from_slice(&record.line).unwrap();
                writeln!(out, "seen {} {}", record.sequence, event["data"]["n"]).unwrap();
            }
        }
        out.flush().unwrap();
    }
}

#[test]
fn every_event_that_was_seen_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "appender", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Some time after its first event, at another moment each round.
        let mut until = None;
        let mut killed = false;
        while let Some(Ok(line)) = lines.next() {
            let Some((_, numbers)) = line.split_once("seen ") else { continue };
            // The line that the kill cut short says nothing.
            let mut numbers = numbers.split(' ').map(str::parse::<u64>);
            if let (Some(Ok(sequence)), Some(Ok(n))) = (numbers.next(), numbers.next())
                && !killed
            {
                seen.insert(sequence, n);
            }
            let until = *until
                .get_or_insert_with(|| Instant::now() + Duration::from_millis(u64::from(round * 37 % 101)));
            if Instant::now() >= until && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        assert!(killed, "the appender ended by itself");

        let journal = open(dir.path()).unwrap();
        let mut reader = journal.reader(None, Filter::default());
        let mut next = journal.range().oldest;
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { panic!("{batch:?}") };
            for record in records {
                assert_eq!(record.sequence, next, "the sequence has a hole");
                let event: Value = serde_json::from_slice(&record.line).unwrap();
                if let Some(n) = seen.get(&next) {
                    assert_eq!(event["data"]["n"], *n, "another event took the place of one that was seen");
                }
                next += 1;
            }
        }
        let newest = seen.keys().next_back().copied().unwrap();
        assert!(next > newest, "{newest} was seen, and the log ends before {next}");
        journal.close();
    }
}
