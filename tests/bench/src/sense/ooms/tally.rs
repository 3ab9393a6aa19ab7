//! What was reported, compared with what was done.
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use anyhow::Context as _;
use enforcer_tests::{figures::float, stream::is};
use serde_json::Value;

use super::{pool::Container, reader::Line};

/// The figures of one series.
#[derive(Debug)]
pub(super) struct Tally {
    /// Processes that were to die.
    pub(super) started: usize,
    /// Kills by the kernel's counters.
    pub(super) killed: usize,
    /// Kills that were reported by an incident, each once.
    pub(super) reported: usize,
    /// Of those, the ones reported of the pod and container in which the process was, with its limit.
    pub(super) right: usize,
    /// Reported in another place, twice, of a process that was never started, or as no kill.
    pub(super) wrong: usize,
    /// Reconstructed from counters, without a record.
    pub(super) reconstructed: usize,
    /// Kills in the kernel's log.
    pub(super) logged: usize,
    /// From the opening of the gates to the last end.
    pub(super) took: Duration,
    /// From the kernel's mark to the reader's line.
    pub(super) latencies_ms: Vec<f64>,
    /// From the kernel's mark to the event's own time: what lies behind it is the way to the reader.
    pub(super) dated_ms: Vec<f64>,
    /// Whether they came one at a time.
    pub(super) is_single: bool,
}

impl Tally {
    pub(super) fn new(
        killed: u64,
        started: &HashMap<u32, Container>,
        marked_us: &HashMap<u32, u64>,
        lines: &[Line],
        logged: usize,
        took: Duration,
        is_single: bool,
    ) -> anyhow::Result<Self> {
        let mut tally = Self {
            started: started.len(),
            killed: usize::try_from(killed)?,
            reported: 0,
            right: 0,
            wrong: 0,
            reconstructed: 0,
            logged,
            took,
            latencies_ms: Vec::new(),
            dated_ms: Vec::new(),
            is_single,
        };
        let mut reported = HashSet::new();
        for line in lines {
            let event = line.event()?;
            let data = &event["data"];
            if is(&event, "oom.detected") {
                if let Some(marked_us) = pid(&data["victim"]).and_then(|pid| marked_us.get(&pid)) {
                    // Below zero if the clocks disagree.
                    let latency_us = float(line.time_us) - float(*marked_us);
                    tally.latencies_ms.push(latency_us / 1e3);
                    let time = event["time"].as_str().context("an event without its time")?;
                    let dated_us = u64::try_from(time.parse::<jiff::Timestamp>()?.as_microsecond())?;
                    let way_us = float(line.real_time_us) - float(dated_us);
                    tally.dated_ms.push((latency_us - way_us) / 1e3);
                }
            } else if is(&event, "oom.incident") && data["reconstructed"] == true {
                let kills = data["kills"].as_u64().context("an incident without its number of kills")?;
                let kills = usize::try_from(kills)?;
                tally.reported += kills;
                tally.reconstructed += kills;
                let owner = data["limitOwner"].as_str();
                if started.values().any(|container| Some(container.cgroup.as_str()) == owner) {
                    tally.right += kills;
                } else {
                    tally.wrong += kills;
                }
            } else if is(&event, "oom.incident") {
                for victim in data["victims"].as_array().context("an incident without victims")? {
                    let fresh = pid(victim).is_some_and(|pid| reported.insert(pid));
                    let container = pid(victim).and_then(|pid| started.get(&pid));
                    tally.reported += usize::from(fresh);
                    match container {
                        Some(container)
                            if fresh
                                && is_of(victim, container)
                                && data["limitOwner"] == container.cgroup.as_str() =>
                        {
                            tally.right += 1;
                        }
                        Some(_) | None => tally.wrong += 1,
                    }
                }
            } else if is(&event, "oom.averted") {
                tally.wrong += 1;
            } else {
                println!("        reported beside: {}", data["message"]);
            }
        }
        Ok(tally)
    }
}

fn pid(task: &Value) -> Option<u32> {
    task["pid"].as_u64()?.try_into().ok()
}

fn is_of(victim: &Value, container: &Container) -> bool {
    victim["namespace"] == "default"
        && victim["pod"] == container.pod.as_str()
        && victim["container"] == container.name.as_str()
        && victim["cgroup"] == container.cgroup.as_str()
}
