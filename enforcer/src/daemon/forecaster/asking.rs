//! The headroom of each threshold, on request.
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Sender, sync_channel},
    },
    thread::Thread,
    time::Duration,
};

use super::{Message, Watch};
use crate::{
    cgroup::CgroupDir,
    clock,
    daemon::lock,
    model::CgroupPath,
    policy::{
        engine::Resource,
        forecast::{Crossing, Trend},
        threshold::Threshold,
    },
    sense::snapshot::{Stall, Stalls},
    serve::{HeadroomView, Headrooms, SignalView, SliceView, ThresholdView},
};

/// Requests within this time get the same answer.
const SAME_NS: u64 = 250_000_000;

/// How long to wait for the answer; a look takes less than a millisecond.
const ANSWER: Duration = Duration::from_secs(2);

/// Returns a handle that makes the thread look on request; it answers `None` if there is no thread.
pub(super) fn headrooms(line: Option<(Sender<Message>, Thread)>) -> Headrooms {
    // The sender needs a lock to be shared by threads.
    let line = line.map(|(sender, thread)| (Arc::new(Mutex::new(sender)), thread));
    Headrooms::by(move || {
        let (sender, thread) = line.as_ref()?;
        let (answer, answered) = sync_channel(1);
        lock(sender).send(Message::Asked(answer)).ok()?;
        thread.unpark();
        answered.recv_timeout(ANSWER).ok()
    })
}

impl Watch {
    /// The present headroom.
    pub(super) fn headroom(&mut self) -> HeadroomView {
        if clock::boottime_ns().saturating_sub(self.looked_ns) >= SAME_NS {
            self.look();
        }
        let signals = self.trends.iter().map(|trend| signal_view(trend, &self.thresholds)).collect();
        let slices = self.slices.iter();
        let slices = self.growth.root().map_or_else(Vec::new, |root| {
            slices.filter_map(|(name, path)| slice_view(root, name, path)).collect()
        });
        HeadroomView { signals, slices }
    }
}

fn signal_view(trend: &Trend, thresholds: &[Threshold]) -> SignalView {
    let (is_pids, falls) = (Resource::of(trend.signal) == Some(Resource::Pids), falling(trend));
    let bytes = |amount: u64| (!is_pids).then_some(amount);
    let count = |amount: u64| is_pids.then_some(amount);
    let mut own: Vec<_> =
        thresholds.iter().copied().filter(|threshold| threshold.signal == trend.signal).collect();
    own.sort_by_key(|threshold| threshold.grace_period_ms);
    SignalView {
        signal: trend.signal.as_str().to_owned(),
        available_bytes: bytes(trend.available),
        capacity_bytes: bytes(trend.capacity),
        fill_bytes_per_second: falls.and_then(bytes),
        available_count: count(trend.available),
        capacity_count: count(trend.capacity),
        fill_per_second: falls.and_then(count),
        thresholds: own.into_iter().map(|threshold| threshold_view(trend, threshold, is_pids)).collect(),
    }
}

/// How fast the signal falls; `None` if that is not known yet.
fn falling(trend: &Trend) -> Option<u64> {
    let slope = trend.slope_per_second.map(|slope| if slope < 0 { slope.unsigned_abs() } else { 0 });
    slope.max(trend.pace_per_second)
}

fn threshold_view(trend: &Trend, threshold: Threshold, is_pids: bool) -> ThresholdView {
    let Crossing { amount, available, left_ns, .. } = trend.ahead(threshold);
    let left = i128::from(available) - i128::from(amount);
    let left = i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX });
    let met = available < amount;
    ThresholdView {
        hard: threshold.is_hard(),
        value: threshold.value.to_string(),
        grace_period_ms: (!threshold.is_hard()).then_some(threshold.grace_period_ms),
        met,
        threshold_bytes: (!is_pids).then_some(amount),
        headroom_bytes: (!is_pids).then_some(left),
        threshold_count: is_pids.then_some(amount),
        headroom_count: is_pids.then_some(left),
        crossed_in_ms: left_ns.filter(|_| !met).map(|left_ns| left_ns / 1_000_000),
    }
}

/// Returns `None` if the cgroup does not exist.
fn slice_view(root: &CgroupDir, name: &str, path: &CgroupPath) -> Option<SliceView> {
    let dir = root.open(path).ok()?;
    let number = |file: &str| dir.read(file).ok().and_then(|text| text.trim().parse().ok());
    let stalls = dir.read("memory.pressure").ok().and_then(|text| Stalls::parse(text.as_bytes()).ok());
    let percent = |stall: Stall| f64::from(stall.avg10_centipercent) / 100.0;
    Some(SliceView {
        name: name.to_owned(),
        cgroup: path.to_string(),
        current_bytes: number("memory.current"),
        limit_bytes: number("memory.max"),
        some_avg10_percent: stalls.map(|stalls| percent(stalls.some)),
        full_avg10_percent: stalls.map(|stalls| percent(stalls.full)),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::policy::threshold::{Signal, ThresholdValue};

    fn trend(signal: Signal, available: u64, slope: Option<i64>) -> Trend {
        Trend { signal, available, capacity: 1_000, slope_per_second: slope, pace_per_second: None }
    }

    #[test]
    fn what_is_left_is_reported_in_the_signals_own_unit() {
        let hard = |signal| Threshold::hard(signal, ThresholdValue::Amount(200));
        let soft = Threshold { grace_period_ms: 30_000, ..hard(Signal::MemoryAvailable) };
        let soft = Threshold { value: ThresholdValue::Amount(500), ..soft };
        let thresholds = [soft, hard(Signal::PidAvailable), hard(Signal::MemoryAvailable)];
        let memory = signal_view(&trend(Signal::MemoryAvailable, 400, Some(-50)), &thresholds);
        assert_eq!((memory.available_bytes, memory.fill_bytes_per_second), (Some(400), Some(50)));
        assert_eq!((memory.available_count, memory.fill_per_second), (None, None));
        let [hard, soft] = memory.thresholds.as_slice() else { panic!("{memory:?}") };
        assert!(hard.hard && !hard.met && !soft.hard && soft.met);
        assert_eq!((hard.headroom_bytes, hard.crossed_in_ms), (Some(200), Some(4_000)));
        assert_eq!((soft.headroom_bytes, soft.crossed_in_ms), (Some(-100), None));
        assert_eq!(soft.grace_period_ms, Some(30_000));
        let pids = signal_view(&trend(Signal::PidAvailable, 400, None), &thresholds);
        assert_eq!(
            (pids.available_count, pids.fill_per_second, pids.available_bytes),
            (Some(400), None, None)
        );
        assert_eq!(pids.thresholds[0].headroom_count, Some(200));
    }

    #[test]
    fn a_slice_reports_what_it_has_and_one_that_is_not_there_nothing() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("kubepods")).unwrap();
        for (file, text) in [
            ("memory.current", "4096\n"),
            ("memory.max", "max\n"),
            (
                "memory.pressure",
                "some avg10=1.25 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1\n",
            ),
        ] {
            fs::write(temp.path().join("kubepods").join(file), text).unwrap();
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let slice = |path: &str| slice_view(&root, "kubepods", &CgroupPath::parse(path).unwrap());
        let seen = slice("/kubepods").unwrap();
        assert_eq!((seen.current_bytes, seen.limit_bytes), (Some(4_096), None));
        assert_eq!((seen.some_avg10_percent, seen.full_avg10_percent), (Some(1.25), Some(0.5)));
        assert_eq!(slice("/elsewhere"), None);
    }
}
