//! Builds the fuzz targets with coverage counters, and runs them: libFuzzer, on the stable compiler.
use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};
use clap::ValueEnum;

use crate::{places::Places, run, steps::Steps};

/// The flags that cargo-fuzz sets too: counters at each edge, and comparisons traced for libFuzzer. No sanitizer: the
/// fuzzed code has no `unsafe`, and each oracle reports an error by a panic.
const RUSTFLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// The longest input, in bytes.
const MOST_BYTES: u32 = 16_384;

/// What is fuzzed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Target {
    /// The kernel's description of its types
    Btf,
    /// Configurations, thresholds and durations
    Configuration,
    /// Lines of the event stream
    Event,
    /// The intent page
    Intent,
    /// Segments and tail of the log, and their repair
    Journal,
    /// The kernel's text files
    KernelText,
    /// Pod manifests, and their plans
    Manifest,
    /// Quantities
    Quantity,
    /// The query of the event stream
    Query,
    /// Recordings of the eviction engine, and their replay
    Recording,
    /// The stream of records into the incidents
    Records,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Btf => "btf",
            Self::Configuration => "configuration",
            Self::Event => "event",
            Self::Intent => "intent",
            Self::Journal => "journal",
            Self::KernelText => "kernel_text",
            Self::Manifest => "manifest",
            Self::Quantity => "quantity",
            Self::Query => "query",
            Self::Recording => "recording",
            Self::Records => "records",
        }
    }
}

/// Fuzzes one target, or each in turn, for that many seconds; returns 1 if an input broke an oracle.
pub(crate) fn fuzz(places: &Places, target: Option<Target>, seconds: u32) -> anyhow::Result<u8> {
    let targets = target.map_or_else(|| Target::value_variants().to_vec(), |target| vec![target]);
    let folder = places.target.join("fuzz");
    let programs = Steps::Out.work("fuzz targets", || build(places, &folder))?;
    let mut failed = false;
    for target in targets {
        let name = target.name();
        let outcome = Steps::Out.work(format_args!("{name}, {seconds} s"), || {
            fuzz_one(places, &folder, &programs.join(name), name, seconds)
        })?;
        Steps::Out.say(outcome.summary);
        failed |= outcome.failed;
    }
    Ok(u8::from(failed))
}

/// The folder of the programs.
fn build(places: &Places, folder: &Path) -> anyhow::Result<PathBuf> {
    // Named, so that build scripts and macros, which run on this host, are built without counters.
    let host = run::text(Command::new("rustc").args(["--print", "host-tuple"]).current_dir(&places.root))?;
    let host = host.trim();
    let mut cargo = Command::new(env!("CARGO"));
    // Not `--locked`: this workspace's lock file follows the main one, which does not cover it.
    cargo
        .args(["build", "--release", "--bins", "--manifest-path", "enforcer/fuzz/Cargo.toml"])
        .args(["--target", host])
        .current_dir(&places.root)
        .env("CARGO_TARGET_DIR", folder)
        .env("CARGO_ENCODED_RUSTFLAGS", RUSTFLAGS.join("\x1f"));
    run::output(&mut cargo)?;
    Ok(folder.join(host).join("release"))
}

struct Outcome {
    summary: String,
    failed: bool,
}

fn fuzz_one(
    places: &Places,
    folder: &Path,
    program: &Path,
    name: &str,
    seconds: u32,
) -> anyhow::Result<Outcome> {
    let made = |kind: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(kind).join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(path)
    };
    // libFuzzer writes new inputs into the first folder; the seeds are only read.
    let (corpus, artifacts) = (made("corpus")?, made("artifacts")?);
    let seeds = places.root.join("enforcer/fuzz/seeds").join(name);
    let mut fuzzer = Command::new(program);
    fuzzer
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={MOST_BYTES}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-print_final_stats=1", "-timeout=10", "-rss_limit_mb=2048"])
        .args([&corpus, &seeds])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = fuzzer.spawn().with_context(|| format!("cannot start {}", run::shown(&fuzzer)))?;
    let mut said = Said::default();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            said.line(&String::from_utf8_lossy(&line?));
        }
    }
    let status = child.wait()?;
    if status.success() {
        // A program without counters would run, and find nothing.
        ensure!(said.coverage > 0, "{name} counted no edges: it was built without coverage");
        let summary =
            format!("     {} inputs, {} edges, {} in the corpus", said.runs, said.coverage, said.corpus);
        return Ok(Outcome { summary, failed: false });
    }
    let summary = format!(
        "FAIL {name}: an input broke it ({status}); keep it in enforcer/fuzz/seeds/{name}, and fix the code\n{}",
        said.last.join("\n")
    );
    Ok(Outcome { summary, failed: true })
}

/// What libFuzzer has printed so far.
#[derive(Debug, Default)]
struct Said {
    runs: u64,
    coverage: u64,
    corpus: u64,
    /// The last lines that are no progress.
    last: Vec<String>,
}

impl Said {
    /// How many lines of a failure are shown.
    const MOST_LINES: usize = 60;

    fn line(&mut self, line: &str) {
        // `#65536 pulse  cov: 2004 ft: 8031 corp: 412/30Kb lim: 4096 exec/s: 3276 rss: 61Mb`
        let mut words = line.split_whitespace();
        let Some(runs) = words.next().and_then(|word| word.strip_prefix('#')?.parse().ok()) else {
            if self.last.len() == Self::MOST_LINES {
                self.last.remove(0);
            }
            self.last.push(line.to_owned());
            return;
        };
        self.runs = runs;
        while let Some(word) = words.next() {
            let number = |text: &str| text.split('/').next().and_then(|number| number.parse().ok());
            match word {
                "cov:" => self.coverage = words.next().and_then(number).unwrap_or(self.coverage),
                "corp:" => self.corpus = words.next().and_then(number).unwrap_or(self.corpus),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read() {
        let mut said = Said::default();
        said.line("INFO: Seed: 1");
        said.line("#2\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 30Mb");
        said.line("#65536\tpulse  cov: 2004 ft: 8031 corp: 412/30Kb lim: 4096 exec/s: 3276 rss: 61Mb");
        assert_eq!((said.runs, said.coverage, said.corpus), (65_536, 2_004, 412));
        assert_eq!(said.last, ["INFO: Seed: 1"]);
    }
}
