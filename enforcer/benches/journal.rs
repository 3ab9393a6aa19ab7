//! What the journal costs: how long an append takes its caller, and how long it is until the event is in a segment that
//! a kill cannot take, and on the disk. On the disk that `TMPDIR` is on; `cargo bench --bench journal`.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where its input is wrong")]
#![expect(clippy::print_stdout, reason = "its result")]

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use enforcer::{
    journal::{EventType, Journal, RawEvent, Subject},
    model::PodName,
};
use serde_json::json;

/// A decision of ten candidates is some 3 KB, a pod's change some 500 bytes.
fn event(decision: bool) -> RawEvent {
    let ranking: Vec<_> = (0..if decision { 10 } else { 1 })
        .map(|rank| {
            json!({"rank": rank, "namespace": "team-1", "pod": format!("worker-{rank}"), "priority": 1_000,
                   "exceedsRequest": true, "usageBytes": 123_456_789, "requestBytes": 100_000_000, "cgroupId": 4_711})
        })
        .collect();
    let kind = if decision { EventType::EvictionDecided } else { EventType::PodChanged };
    let pod = PodName { namespace: String::from("team-1"), name: String::from("worker-0") };
    RawEvent {
        kind,
        subject: Subject::Pod(pod),
        data: json!({"message": "The node was low on resource: memory.", "ranking": ranking}),
    }
}

fn show(name: &str, mut times: Vec<Duration>, bar: Option<Duration>) {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let held = bar.map_or(String::new(), |bar| {
        format!("  bar {:.0} us at p99: {}", micros(bar), if at(99) <= bar { "ok" } else { "TOO SLOW" })
    });
    println!(
        "{name:<44} median {:>10.1} us  p99 {:>10.1} us  max {:>10.1} us{held}",
        micros(at(50)),
        micros(at(99)),
        micros(at(100))
    );
}

fn main() {
    // `cargo test` runs benchmarks too, and wants no measurement.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The run directory is on tmpfs.
    let run = tempfile::tempdir_in("/dev/shm").unwrap();
    let (journal, _) = Journal::open("bench", "boot", dir.path(), run.path()).unwrap();
    if std::io::stdout().is_terminal() {
        println!("on {}", dir.path().display());
    }

    for (name, decision) in
        [("append, pod.changed, a burst", false), ("append, eviction.decided, a burst", true)]
    {
        let times = (0..20_000)
            .map(|_| {
                let event = event(decision);
                let start = Instant::now();
                journal.append_raw(event);
                start.elapsed()
            })
            .collect();
        show(name, times, None);
    }

    // One at a time, as a decision comes on a quiet node: a hard one must be in the journal within 100 ms.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut appended, mut durable) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        std::thread::sleep(Duration::from_millis(3));
        let event = event(true);
        let mut watch = journal.durable();
        let start = Instant::now();
        let sequence = journal.append_raw(event);
        appended.push(start.elapsed());
        runtime.block_on(watch.wait_for(|durable| *durable >= sequence)).unwrap();
        durable.push(start.elapsed());
    }
    show("append, eviction.decided, a quiet node", appended, None);
    show("append to durable, eviction.decided", durable, Some(Duration::from_millis(100)));
    let start = Instant::now();
    let count = 100_000_u32;
    let mut newest = 0;
    for _ in 0..count {
        newest = journal.append_raw(event(false));
    }
    let reported = start.elapsed();
    let mut watch = journal.durable();
    runtime.block_on(watch.wait_for(|durable| *durable >= newest)).unwrap();
    println!(
        "{count} events: appended in {:.3} s, all durable after {:.3} s",
        reported.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    journal.close();
}
