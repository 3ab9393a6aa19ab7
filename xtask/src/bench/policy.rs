//! The rules of the policy, natively: criterion measures, and the medians are held to their bars.
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use crate::{places::Places, steps::Steps};

/// The maximum of each median, in milliseconds, by criterion's name of the measurement.
const BARS_MS: [(&str, f64); 6] = [
    ("plan/1000 pods", 5.0),
    ("plan/1000 pods, 100 fit", 5.0),
    ("rank/memory/1000", 1.0),
    ("rank/pids/1000", 1.0),
    ("rank/memory/10000", 15.0),
    ("rank/pids/10000", 15.0),
];

/// Measures, prints median and 99th percentile, and fails if a median is above its bar.
pub(crate) fn measure(places: &Places, args: &[OsString]) -> anyhow::Result<u8> {
    let results = places.target.join("criterion");
    // Results of an earlier run must not count.
    if results.exists() {
        fs::remove_dir_all(&results).with_context(|| format!("cannot remove {}", results.display()))?;
    }
    Steps::Out.say("measuring; this takes a minute or two");
    let run = Command::new(env!("CARGO"))
        .args(["bench", "--package", "enforcer", "--bench", "policy", "--"])
        .args(args)
        .current_dir(&places.root)
        .env("CARGO_TARGET_DIR", &places.target)
        .output()
        .context("cannot run cargo bench")?;
    let said = || String::from_utf8_lossy(&[run.stdout.as_slice(), &run.stderr].concat()).into_owned();
    ensure!(run.status.success(), "cargo bench ended with {}:\n{}", run.status, said());
    let mut measured = Vec::new();
    collect(&results, &mut measured)?;
    ensure!(!measured.is_empty(), "criterion left no results in {}", results.display());
    measured.sort_by(|left, right| left.name.cmp(&right.name));

    Steps::Out.say(format_args!("{:<28} {:>12} {:>12} {:>8}", "", "median ms", "p99 ms", "bar ms"));
    let mut all_hold = true;
    for Measured { name, median_ms, p99_ms } in &measured {
        let bar_ms = BARS_MS.iter().find(|(of, _)| of == name).map(|(_, bar_ms)| *bar_ms);
        let holds = bar_ms.is_none_or(|bar_ms| *median_ms <= bar_ms);
        all_hold &= holds;
        let bar = bar_ms.map_or_else(String::new, |bar_ms| {
            format!("{bar_ms:>8.1} {}", if holds { "ok" } else { "TOO SLOW" })
        });
        Steps::Out.say(format_args!("{name:<28} {median_ms:>12.3} {p99_ms:>12.3} {bar}"));
    }
    Ok(u8::from(!all_hold))
}

struct Measured {
    name: String,
    median_ms: f64,
    p99_ms: f64,
}

/// Criterion's `benchmark.json`, as far as it is read.
#[derive(Deserialize)]
struct Benchmark {
    full_id: String,
}

/// Criterion's `sample.json`: how long that many runs took, in nanoseconds.
#[derive(Deserialize)]
struct Sample {
    iters: Vec<f64>,
    times: Vec<f64>,
}

fn collect(folder: &Path, measured: &mut Vec<Measured>) -> anyhow::Result<()> {
    let listed = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in listed {
        let path = entry?.path();
        if !path.is_dir() {
            continue;
        }
        if path.ends_with("new") {
            measured.push(read(&path)?);
        } else {
            collect(&path, measured)?;
        }
    }
    Ok(())
}

fn read(folder: &Path) -> anyhow::Result<Measured> {
    let json = |name: &str| -> anyhow::Result<(PathBuf, String)> {
        let path = folder.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((path, text))
    };
    let (path, text) = json("benchmark.json")?;
    let Benchmark { full_id } = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let (path, text) = json("sample.json")?;
    let Sample { iters, times } = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let mut runs_ms: Vec<f64> = times.iter().zip(&iters).map(|(time, count)| time / count / 1e6).collect();
    runs_ms.sort_by(f64::total_cmp);
    let at =
        |percent: usize| runs_ms.get((runs_ms.len() * percent / 100).min(runs_ms.len().saturating_sub(1)));
    let (median_ms, p99_ms) =
        at(50).copied().zip(at(99).copied()).with_context(|| format!("{full_id} has no samples"))?;
    Ok(Measured { name: full_id, median_ms, p99_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_percentile_are_of_runs() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("rank/memory/1000/new");
        fs::create_dir_all(&new).unwrap();
        fs::write(new.join("benchmark.json"), r#"{"full_id":"rank/memory/1000","more":1}"#).unwrap();
        let times: Vec<String> = (1..=100).rev().map(|n| format!("{}", f64::from(n) * 2e6)).collect();
        let sample = format!(r#"{{"iters":[{}],"times":[{}]}}"#, vec!["2"; 100].join(","), times.join(","));
        fs::write(new.join("sample.json"), sample).unwrap();
        let mut measured = Vec::new();
        collect(dir.path(), &mut measured).unwrap();
        let [Measured { name, median_ms, p99_ms }] = measured.as_slice() else {
            panic!("{}", measured.len())
        };
        assert_eq!(name, "rank/memory/1000");
        assert!((*median_ms - 51.0).abs() < 1e-9 && (*p99_ms - 100.0).abs() < 1e-9, "{median_ms} {p99_ms}");
    }
}
