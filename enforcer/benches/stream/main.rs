//! What the event stream takes and costs, on this machine: a real log on a real disk, served on a real socket to readers
//! in another process. `cargo xtask bench stream` runs it; it fails where a bar is missed.
//!
//! `--only PART` measures one of capacity, delay, stall and durable; `--seconds`, `--stall-seconds`, `--readers` and
//! `--state-dir` say how much and where.

#![expect(clippy::unwrap_used, reason = "a benchmark ends where its machine fails it")]
#![expect(clippy::print_stdout, reason = "its figures are its output")]

mod readers;
mod scene;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use enforcer::journal::EventType;

use self::{
    readers::{Figures, monotonic_ns, reader_process},
    scene::{Scene, rss_kib},
};

/// Events a second, journalled and streamed to one reader: at least.
const BAR_RATE: f64 = 50_000.0;
/// From an event's append to its reader at a thousand events a second, the 99th percentile: at most.
const BAR_DELAY_MS: f64 = 5.0;
/// What readers that read nothing may add to the daemon's memory, each: one chunk, its buffers, and some.
const BAR_STALLED_KIB: f64 = 64.0;
/// From the append of a hard decision until no power cut can take it, the 99th percentile: at most.
const BAR_DURABLE_MS: f64 = 100.0;

/// How many events may be under way to the slowest reader while capacity is measured: less than is kept in memory.
const WINDOW: u64 = 3_000;

/// What is measured, and how much of it.
struct Plan {
    only: Option<String>,
    seconds: u64,
    stall_seconds: u64,
    readers: usize,
    state_dir: PathBuf,
}

impl Plan {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut plan = Self {
            only: None,
            seconds: 5,
            stall_seconds: 60,
            readers: 100,
            state_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        };
        while let Some(word) = words.next() {
            // Cargo's own.
            if word == "--bench" {
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{word} {value}: {error}"));
            match word.as_str() {
                "--only" => plan.only = Some(value),
                "--seconds" => plan.seconds = number()?.max(1),
                "--stall-seconds" => plan.stall_seconds = number()?.max(1),
                "--readers" => plan.readers = usize::try_from(number()?.max(1)).unwrap_or(usize::MAX),
                "--state-dir" => plan.state_dir = value.into(),
                _ => return Err(format!("{word} is not an option")),
            }
        }
        Ok(plan)
    }

    fn has(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

/// What was measured, line by line, and whether all bars hold.
struct Table {
    holds: bool,
}

impl Table {
    fn row(&mut self, what: &str, value: f64, unit: &str, bar: Option<(f64, bool)>) {
        let bar = bar.map_or_else(String::new, |(bar, holds)| {
            self.holds &= holds;
            format!("bar {bar:>9.1} {}", if holds { "ok" } else { "MISSED" })
        });
        println!("{what:<58} {value:>12.2} {unit:<9} {bar}");
    }

    fn at_least(&mut self, what: &str, value: f64, unit: &str, bar: f64) {
        self.row(what, value, unit, Some((bar, value >= bar)));
    }

    fn at_most(&mut self, what: &str, value: f64, unit: &str, bar: f64) {
        self.row(what, value, unit, Some((bar, value <= bar)));
    }

    fn plain(&mut self, what: &str, value: f64, unit: &str) {
        self.row(what, value, unit, None);
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if words.next_if(|word| word == readers::WORD).is_some() {
        reader_process(&words.collect::<Vec<_>>());
        return ExitCode::SUCCESS;
    }
    let plan = match Plan::parse(words) {
        Ok(plan) => plan,
        Err(error) => {
            println!("{error}");
            return ExitCode::from(64);
        }
    };
    let mut table = Table { holds: true };
    if plan.has("capacity") {
        append_alone(&plan, &mut table);
        capacity(&plan, 1, "ndjson", &mut table);
        capacity(&plan, 1, "sse", &mut table);
        capacity(&plan, plan.readers, "ndjson", &mut table);
    }
    if plan.has("delay") {
        delay(&plan, 1, &mut table);
        delay(&plan, plan.readers, &mut table);
    }
    if plan.has("stall") {
        stall(&plan, &mut table);
    }
    if plan.has("durable") {
        durable(&plan, &mut table);
    }
    ExitCode::from(u8::from(!table.holds))
}

/// What an append alone takes, as its caller waits for it.
fn append_alone(plan: &Plan, table: &mut Table) {
    let scene = Scene::new(&plan.state_dir);
    let mut taken = Vec::new();
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        let begun = Instant::now();
        scene.append(EventType::LimitsApplied, false);
        taken.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        // So that the disk keeps up.
        std::thread::sleep(Duration::from_micros(50));
    }
    let figures = Figures::of(taken);
    table.plain("append, median", figures.median_us(), "us");
    table.plain("append, 99th percentile", figures.p99_us(), "us");
    scene.end();
}

/// Events a second, as fast as the slowest reader takes them.
fn capacity(plan: &Plan, readers: usize, form: &str, table: &mut Table) {
    let scene = Scene::new(&plan.state_dir);
    let mut clients = scene.readers(readers, form, 0);
    let begun = Instant::now();
    let until = begun + Duration::from_secs(plan.seconds);
    let mut appended = 0;
    while Instant::now() < until {
        for _ in 0..100 {
            scene.append(EventType::LimitsApplied, false);
        }
        appended += 100;
        while appended > clients.slowest() + WINDOW && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    scene.append(EventType::LimitsApplied, true);
    appended += 1;
    let figures = clients.end();
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(figures.gaps, 0, "a reader missed something");
    assert_eq!(
        figures.received,
        appended * u64::try_from(readers).unwrap(),
        "a reader did not get everything"
    );
    let rate = float(appended) / seconds;
    let what = format!("events journalled and streamed to {readers} ({form})");
    if readers == 1 {
        table.at_least(&what, rate, "events/s", BAR_RATE);
    } else {
        table.plain(&what, rate, "events/s");
        table.plain("  received by all together", rate * float(figures.readers), "events/s");
    }
    scene.end();
}

/// From append to reader at a thousand events a second.
fn delay(plan: &Plan, readers: usize, table: &mut Table) {
    let scene = Scene::new(&plan.state_dir);
    let clients = scene.readers(readers, "ndjson", 0);
    let cpu = scene::cpu_seconds();
    scene.append_for(plan.seconds, 1_000);
    let cpu = scene::cpu_seconds() - cpu;
    let figures = clients.end();
    assert_eq!(figures.gaps, 0, "a reader missed something");
    let what = format!("append to reader, 1,000 events/s, {readers} readers");
    table.plain(&format!("{what}, median"), figures.median_us() / 1e3, "ms");
    table.at_most(&format!("{what}, 99th percentile"), figures.p99_us() / 1e3, "ms", BAR_DELAY_MS);
    table.plain(&format!("{what}, longest"), figures.longest_us() / 1e3, "ms");
    table.plain("  processor time", cpu / float(plan.seconds) * 100.0, "% of one");
    scene.end();
}

/// What readers that stall cost: memory, and the time of one that does not.
fn stall(plan: &Plan, table: &mut Table) {
    const STALLED: u16 = 10;
    let scene = Scene::new(&plan.state_dir);
    let clients = scene.readers(1, "ndjson", 0);
    // What it takes without them: the log's own memory is full.
    scene.append_steadily(2, 5_000);
    let before = rss_kib();
    let stalled = scene.readers(STALLED.into(), "ndjson", plan.stall_seconds + 3);
    let mut most = before;
    for _ in 0..plan.stall_seconds {
        scene.append_steadily(1, 5_000);
        most = most.max(rss_kib());
    }
    scene.append(EventType::LimitsApplied, true);
    let figures = clients.end();
    let late = stalled.end();
    assert_eq!(figures.gaps, 0, "a reader missed something");
    table.plain("memory before readers stall", float(before), "KiB");
    let each = (float(most) - float(before)) / f64::from(STALLED);
    table.at_most(
        &format!("  more while {STALLED} stall for {} s, each", plan.stall_seconds),
        each,
        "KiB",
        BAR_STALLED_KIB,
    );
    table.at_most("  another reader's delay, 99th percentile", figures.p99_us() / 1e3, "ms", BAR_DELAY_MS);
    table.plain("  of them hung up on", float(late.hung_up), "readers");
    table.plain("  of them with a gap reported", float(late.gaps), "readers");
    scene.end();
}

/// From a hard decision's append until no power cut can take it.
fn durable(plan: &Plan, table: &mut Table) {
    let scene = Scene::new(&plan.state_dir);
    let mut taken = Vec::new();
    let until = Instant::now() + Duration::from_secs(plan.seconds);
    while Instant::now() < until {
        // What comes with it.
        for _ in 0..5 {
            scene.append(EventType::LimitsApplied, false);
        }
        let begun = monotonic_ns();
        let sequence = scene.append(EventType::EvictionDecided, false);
        scene.wait_durable(sequence);
        taken.push(monotonic_ns() - begun);
        std::thread::sleep(Duration::from_millis(5));
    }
    let figures = Figures::of(taken);
    table.plain("decision to durable, median", figures.median_us() / 1e3, "ms");
    table.at_most("decision to durable, 99th percentile", figures.p99_us() / 1e3, "ms", BAR_DURABLE_MS);
    table.plain("decision to durable, longest", figures.longest_us() / 1e3, "ms");
    scene.end();
}

/// Counts here are far below what a float holds exactly.
fn float(count: u64) -> f64 {
    count.to_string().parse().unwrap()
}
