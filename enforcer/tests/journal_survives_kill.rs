//! Whatever a reader saw is in the log after the process was killed, once, and the sequence goes on without a gap; a
//! reader that comes back with its cursor misses nothing and gets nothing twice.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use enforcer::journal::{Batch, Cursor, EventType, Filter, Journal, Limits, RawEvent, Subject};
use serde_json::{Value, json};

const DIR: &str = "ENFORCER_TEST_JOURNAL_DIR";
const AFTER: &str = "ENFORCER_TEST_JOURNAL_AFTER";
const SEED: &str = "ENFORCER_TEST_SEED";
/// Set by `cargo xtask soak`.
const SOAK: &str = "ENFORCER_SOAK";

/// Small enough that segments are begun all the time, and large enough that none goes.
const LIMITS: Limits = Limits { max_bytes: 1 << 30, max_age_ms: 600_000 };

/// The appender waits while more events than this are not on the disk. They are more than the tail holds (512 KiB) and less
/// than memory holds (2 MiB). Beyond that the journal drops the oldest events and counts them as lost: how a slow disk is
/// handled is not what this test is about.
const MOST_UNWRITTEN: u64 = 500;

fn open(dir: &Path) -> anyhow::Result<Journal> {
    Ok(Journal::open_with("n1", "b1", &dir.join("state"), dir, LIMITS)?.0)
}

/// Not a test of its own: the process that is killed. It prints what readers see, as soon as they see it: one that follows
/// from the cursor that it is given, as a client does that comes back; and what was said to be durable.
#[test]
fn appender() {
    let Some(dir) = env::var_os(DIR) else { return };
    let journal = open(Path::new(&dir)).unwrap();
    let mut out = std::io::stdout().lock();
    let after = env::var(AFTER).ok().filter(|after| !after.is_empty()).map(|after| {
        let cursor: Cursor = after.parse().unwrap();
        journal.resume(&cursor).unwrap_or_else(|stale| panic!("stale {cursor} {stale:?}"))
    });
    let mut reader = journal.reader(after.or(Some(0)), Filter::default());
    let mut durable = journal.durable();
    for n in 0_u64.. {
        while journal.load().unwritten_records > MOST_UNWRITTEN {
            thread::sleep(Duration::from_millis(1));
        }
        let pad = "x".repeat(usize::try_from(n * 7919 % 3_000).unwrap());
        let data = json!({"n": n, "pad": pad});
        journal.append_raw(RawEvent { kind: EventType::PodAdded, subject: Subject::Node, data });
        let mut read = 0;
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { panic!("{batch:?}") };
            for record in records {
                let event: Value = serde_json::from_slice(&record.line).unwrap();
                writeln!(
                    out,
                    "seen {} {} {}",
                    journal.cursor(record.sequence),
                    event["data"]["n"],
                    event["id"].as_str().unwrap()
                )
                .unwrap();
                read += 1;
            }
            // What a client that comes back has to catch up with comes between what is new.
            if read > 500 {
                break;
            }
        }
        if durable.has_changed().unwrap() {
            writeln!(out, "durable {}", *durable.borrow_and_update()).unwrap();
        }
        out.flush().unwrap();
    }
}

fn appender_process(dir: &Path, after: Option<&Cursor>) -> anyhow::Result<Child> {
    Ok(Command::new(env::current_exe()?)
        .args(["--exact", "appender", "--nocapture"])
        .env(DIR, dir)
        .env(AFTER, after.map(Cursor::to_string).unwrap_or_default())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?)
}

/// A number that is the same for the same seed.
fn chance(seed: u64, round: u32, below: u64) -> u64 {
    let mut mixed = seed ^ (u64::from(round) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)) % below
}

#[test]
fn every_event_that_was_seen_is_there_after_a_kill() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = env::var(SEED).map_or_else(|_unset| now.as_secs(), |seed| seed.parse().unwrap());
    println!("{SEED}={seed}");
    let dir = tempfile::tempdir().unwrap();
    let mut read_ids: BTreeMap<u64, String> = BTreeMap::new();
    let (mut cursor, mut durable): (Option<Cursor>, u64) = (None, 0);
    let rounds = if env::var_os(SOAK).is_some() { 300 } else { 15 };
    for round in 0..rounds {
        let mut child = appender_process(dir.path(), cursor.as_ref()).unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Some time after its first word, at another moment each round; now and then before that.
        let mut until = Instant::now() + Duration::from_secs(20);
        let mut is_first = true;
        if chance(seed, round, 10) == 0 {
            thread::sleep(Duration::from_millis(chance(seed, round, 40)));
            child.kill().unwrap();
            is_first = false;
        }
        let mut killed = !is_first;
        while let Some(Ok(line)) = lines.next() {
            if is_first && line.contains("seen ") {
                until = Instant::now() + Duration::from_micros(chance(seed, round, 120_000));
                is_first = false;
            }
            // What it had written before it was killed was seen; the line that the kill cut short is none.
            if let Some((_, saw)) = line.split_once("seen ")
                && let [place, _n, id] = saw.split(' ').collect::<Vec<_>>()[..]
                && id.len() == 26
            {
                let place: Cursor = place.parse().unwrap();
                let expected = cursor.as_ref().map_or(1, |cursor| cursor.sequence + 1);
                assert_eq!(place.sequence, expected, "round {round}: the reader's next event");
                read_ids.insert(place.sequence, id.to_owned());
                cursor = Some(place);
            }
            if let Some((_, newest)) = line.split_once("durable ") {
                // Cut short by the kill it is a smaller one.
                durable = durable.max(newest.parse().unwrap_or(0));
            }
            if Instant::now() >= until && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        let ended = child.wait_with_output().unwrap();
        assert!(killed, "the appender ended by itself: {}", String::from_utf8_lossy(&ended.stderr));
    }

    let journal = open(dir.path()).unwrap();
    let mut reader = journal.reader(Some(0), Filter::default());
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    let mut next = 1;
    while let Some(batch) = reader.read() {
        let Batch::Records(records) = batch else { panic!("{batch:?}") };
        for record in records {
            assert_eq!(record.sequence, next, "the sequence has a hole");
            let event: Value = serde_json::from_slice(&record.line).unwrap();
            let id = event["id"].as_str().unwrap().to_owned();
            if let Some(was) = read_ids.get(&next) {
                assert_eq!(*was, id, "another event took the place of one that was seen");
            }
            assert_eq!(all.insert(id, next), None, "an event is there twice");
            next += 1;
        }
    }
    let newest = read_ids.keys().next_back().copied().unwrap();
    assert!(next > newest, "{newest} was seen, and the log ends before {next}");
    assert!((1..next).contains(&durable), "{durable} was said to be durable, and the log ends before {next}");
    assert!(newest > u64::from(rounds), "{newest} events are no load");
    assert_eq!(journal.resume(&cursor.unwrap()), Ok(newest));
    println!("{newest} events were seen, {} are there", next - 1);
    journal.close();
}
