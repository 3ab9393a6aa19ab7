//! The Guaranteed pod's process, which reports how late its writes were.

use std::{
    io::{BufRead as _, BufReader},
    process::Child,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use enforcer_tests::process::Process;
use serde_json::Value;

use super::scene::TIMEOUT;

/// A process of `workload hold`, ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Holder {
    process: Process,
    reports: Arc<Mutex<Vec<Report>>>,
}

/// One of its lines.
#[derive(Clone, Copy, Debug)]
struct Report {
    /// When it came.
    at: Instant,
    /// The longest stall since the line before it, in microseconds.
    recent_stall_us: u64,
}

impl Holder {
    /// Takes the child over, whose standard output is a pipe.
    pub(crate) fn follow(mut child: Child) -> anyhow::Result<Self> {
        let lines = BufReader::new(child.stdout.take().context("the pod has no output to read")?).lines();
        let process = Process::new(child);
        let reports = Arc::new(Mutex::new(Vec::with_capacity(1_024)));
        let sink = Arc::clone(&reports);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(recent_stall_us) = stall_us(&line) {
                    let report = Report { at: Instant::now(), recent_stall_us };
                    sink.lock().unwrap_or_else(PoisonError::into_inner).push(report);
                }
            }
        });
        Ok(Self { process, reports })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it holds what it is to hold.
    pub(crate) fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.reports.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            ensure!(self.process.lives()?, "a pod has ended before the work began");
            ensure!(start.elapsed() < TIMEOUT, "a pod is not ready after {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The longest stall that was reported since then; the first line after it also reports the second before.
    pub(crate) fn longest_stall_ms_since(&self, since: Instant) -> Option<f64> {
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        let stalls = reports.iter().filter(|report| report.at >= since);
        stalls
            .map(|report| Duration::from_micros(report.recent_stall_us).as_secs_f64() * 1e3)
            .max_by(f64::total_cmp)
    }

    /// Waits for a line that was written after this moment: it reports the time until then. A process that has ended
    /// reports nothing more.
    pub(crate) fn wait_for_a_report_after(&mut self, moment: Instant) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.longest_stall_ms_since(moment).is_none() && self.process.lives()? {
            ensure!(start.elapsed() < TIMEOUT, "the Guaranteed pod reports nothing within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn stall_us(line: &str) -> Option<u64> {
    let value: Value = serde_json::from_str(line).ok()?;
    value.get("recentStallUs")?.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reports_the_latest_stall() {
        let line = r#"{"workload":"hold","state":"running","longestStallUs":9,"recentStallUs":7}"#;
        assert_eq!(stall_us(line), Some(7));
        assert_eq!(stall_us("workload: cannot"), None);
    }
}
