//! The available amount of each signal, and its trend.
use std::{fs::File, os::fd::OwnedFd, path::Path};

use super::Kubepods;
use crate::{
    cgroup::CgroupDir,
    config::Config,
    policy::{
        forecast::{Rate, Trend},
        threshold::{Signal, Threshold},
    },
    sense::{
        Available, AvailableMemory, MeminfoError, PROC_MEMINFO,
        snapshot::{ChargeFiles, Slope},
    },
};

/// The file with the number of tasks.
const LOADAVG: &str = "/proc/loadavg";

/// `memory.stat` has about 2 KiB.
const BUFFER_BYTES: usize = 8 * 1_024;

/// How a signal changes: over some seconds, and right now.
#[derive(Debug)]
struct SignalCourse {
    slope: Slope,
    pace: Rate,
}

impl Default for SignalCourse {
    fn default() -> Self {
        Self { slope: Slope::from_rest(), pace: Rate::default() }
    }
}

impl SignalCourse {
    fn observe(&mut self, now_ns: u64, signal: Signal, available: u64, capacity: u64) -> Trend {
        self.pace.observe(now_ns, available);
        Trend {
            signal,
            available,
            capacity,
            slope_per_second: self.slope.observe(now_ns, available),
            pace_per_second: self.pace.falling_per_second(),
        }
    }
}

/// The files that signals are read from, open.
pub(super) struct SignalReader {
    available: Available,
    memory: SignalCourse,
    kubepods: Option<(Kubepods, ChargeFiles, SignalCourse)>,
    /// The most tasks that there can be, and the file with their number.
    pids: Option<(u64, OwnedFd, SignalCourse)>,
    signals: Vec<Signal>,
}

impl SignalReader {
    pub(super) fn open(config: &Config, max_pids: Option<u64>) -> Result<Self, MeminfoError> {
        let available = Available::open(Path::new(PROC_MEMINFO), config.memory_available_source)?;
        let pids =
            max_pids.and_then(|max| Some((max, File::open(LOADAVG).ok()?.into(), SignalCourse::default())));
        Ok(Self { available, memory: SignalCourse::default(), kubepods: None, pids, signals: Vec::new() })
    }

    /// Reads only the signals of these thresholds.
    pub(super) fn set_signals(&mut self, thresholds: &[Threshold]) {
        self.signals = thresholds.iter().map(|threshold| threshold.signal).collect();
    }

    /// Sets the cgroup of all pods.
    pub(super) fn set_kubepods(&mut self, root: &CgroupDir, kubepods: &Kubepods) {
        if self.kubepods.as_ref().is_some_and(|(known, _, _)| known == kubepods) {
            return;
        }
        // A kubepods that does not exist yet comes with the first pod.
        let files = root.open(&kubepods.path).and_then(|dir| ChargeFiles::open(&dir));
        self.kubepods = files.ok().map(|files| (kubepods.clone(), files, SignalCourse::default()));
    }

    /// Returns the trends of the signals that could be read.
    pub(super) fn look(&mut self, now_ns: u64) -> Vec<Trend> {
        let Self { available, memory: course, kubepods, pids, signals } = self;
        let mut buffer = [0; BUFFER_BYTES];
        let mut trends = Vec::new();
        if signals.contains(&Signal::MemoryAvailable)
            && let Ok(AvailableMemory { available_bytes, total_bytes }) = available.read()
        {
            trends.push(course.observe(now_ns, Signal::MemoryAvailable, available_bytes, total_bytes));
        }
        if signals.contains(&Signal::AllocatableMemoryAvailable)
            && let Some((Kubepods { limit_bytes: Some(limit_bytes), .. }, files, course)) = kubepods
            && let Ok(usage) = files.usage(&mut buffer)
        {
            let left_bytes = limit_bytes.saturating_sub(usage.working_set_bytes);
            trends.push(course.observe(now_ns, Signal::AllocatableMemoryAvailable, left_bytes, *limit_bytes));
        }
        if signals.contains(&Signal::PidAvailable)
            && let Some((max, loadavg, course)) = pids
            && let Ok(count) = rustix::io::pread(&*loadavg, buffer.as_mut_slice(), 0)
            && let Some(tasks) = buffer.get(..count).and_then(tasks)
        {
            let left = max.saturating_sub(tasks);
            trends.push(course.observe(now_ns, Signal::PidAvailable, left, *max));
        }
        trends
    }
}

/// The number of tasks in `0.20 0.18 0.12 1/80 11206`.
fn tasks(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let (_running, all) = text.split_ascii_whitespace().nth(3)?.split_once('/')?;
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::tasks;

    #[test]
    fn tasks_are_all_and_not_the_running_ones() {
        assert_eq!(tasks(b"0.20 0.18 0.12 1/80 11206\n"), Some(80));
        assert_eq!(tasks(b"0.20 0.18 0.12 80 11206\n"), None);
        assert_eq!(tasks(b""), None);
    }
}
