//! What the recording of an eviction shows of its node: the memory that was left, and what happened when.

use std::{collections::BTreeMap, io, path::Path};

use ulid::Ulid;

use super::{
    alternatives,
    document::{Alternatives, Report},
};
use crate::{
    cli::{render::human_bytes, replay::read_recording},
    model::CgroupId,
    policy::{
        engine::{Resource, Shortage},
        flight::{self, Given, Happening, Member, Origin, Record, Recording},
        threshold::Signal,
    },
    recorder,
};

/// How many recordings are read: those of the newest evictions.
const MOST_READ: usize = 20;

/// How many samples are kept of one.
const MOST_SAMPLES: usize = 400;

/// How many moments are kept of one.
const MOST_MARKS: usize = 40;

/// The recordings by eviction; or why there is none.
pub(super) type Recorded = BTreeMap<String, Result<Course, String>>;

/// The course of a node's memory around a decision. Times are in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Course {
    pub(super) samples: Vec<Sample>,
    /// The thresholds of `memory.available` that were crossed, and whether they are hard.
    pub(super) thresholds: Vec<(bool, u64)>,
    pub(super) marks: Vec<Mark>,
    /// Moments that are left out.
    pub(super) more_marks: usize,
    /// Whether records are missing.
    pub(super) has_gaps: bool,
    /// What others would have done, or why that is not known.
    pub(super) alternatives: Result<Alternatives, String>,
}

/// What was available at a moment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Sample {
    pub(super) ms: i64,
    pub(super) available_bytes: u64,
}

/// Something that happened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Mark {
    pub(super) ms: i64,
    pub(super) what: String,
}

/// Reads the recordings of the newest evictions.
pub(super) fn read(state_dir: &Path, report: &Report) -> Recorded {
    let newest = report.evictions.items.iter().take(MOST_READ);
    newest
        .map(|eviction| {
            let id = &eviction.id;
            let course = match Ulid::from_string(id) {
                Ok(ulid) => read_recording(&recorder::path(state_dir, ulid))
                    .map_err(|error| missing(&error))
                    .and_then(|bytes| of(&bytes, ulid)),
                Err(_not_an_id) => Err(String::from("the id of the eviction is none")),
            };
            (id.clone(), course)
        })
        .collect()
}

/// Why a recording was not read.
fn missing(error: &anyhow::Error) -> String {
    let kind = error.chain().find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    match kind {
        Some(io::ErrorKind::NotFound) => String::from("no recording of it is kept"),
        _ => format!("{error:#}"),
    }
}

/// What the recording of that eviction shows.
pub(super) fn of(bytes: &[u8], eviction: Ulid) -> Result<Course, String> {
    let recording = Recording::read(bytes).map_err(|error| error.to_string())?;
    let origin = recording.origin.as_ref().ok_or("the recording does not say when it was made")?;
    let mut course = Course {
        samples: Vec::new(),
        thresholds: Vec::new(),
        marks: Vec::new(),
        more_marks: 0,
        has_gaps: !recording.whole,
        alternatives: alternatives::of(&recording, eviction.0),
    };
    let mut samples = Vec::new();
    for item in &recording.items {
        let Some(Record::Step(step)) = item.record() else { continue };
        if let Given::Node(node) | Given::Usages { node, .. } = &step.given {
            let ms = wall_ms(origin, node.now_ns);
            samples.push(Sample { ms, available_bytes: node.memory.available });
        }
    }
    course.samples = thinned(&samples);
    for moment in flight::replay(&recording).moments {
        course.has_gaps |= matches!(moment.what, Happening::Gap { .. });
        if let Happening::Crossed(Shortage { signal: Signal::MemoryAvailable, hard, threshold, .. }) =
            moment.what
            && !course.thresholds.contains(&(hard, threshold))
        {
            course.thresholds.push((hard, threshold));
        }
        let Some(what) = words(&recording, &moment.what) else { continue };
        if course.marks.len() < MOST_MARKS {
            course.marks.push(Mark { ms: wall_ms(origin, moment.at_ns), what });
        } else {
            course.more_marks += 1;
        }
    }
    Ok(course)
}

fn wall_ms(origin: &Origin, at_ns: u64) -> i64 {
    i64::try_from(origin.wall_ns(at_ns) / 1_000_000).unwrap_or(i64::MAX)
}

/// At most that many samples: of some beside each other the least, as lows are what matters. The last one stays.
fn thinned(samples: &[Sample]) -> Vec<Sample> {
    let together = samples.len().div_ceil(MOST_SAMPLES).max(1);
    let chunks = samples.chunks(together);
    let mut thin: Vec<_> = chunks
        .filter_map(|chunk| chunk.iter().min_by_key(|sample| sample.available_bytes).copied())
        .collect();
    if let Some(last) = samples.last()
        && thin.last() != Some(last)
    {
        thin.push(*last);
    }
    thin
}

fn words(recording: &Recording<'_>, what: &Happening) -> Option<String> {
    Some(match what {
        Happening::Crossed(shortage) => format!("crossed: {}", amounts(shortage)),
        Happening::Cleared(shortage) => format!("the shortage of {} was over", shortage.signal),
        Happening::Decided { decision, .. } => {
            let how = if decision.dry_run { "would have been chosen" } else { "was chosen" };
            format!("{} {how}", pod(recording, decision.cgroup))
        }
        Happening::Terminated { .. } => String::from("the victim was asked to exit (SIGTERM)"),
        Happening::Requested { .. } => String::from("the API server accepted to evict the victim"),
        Happening::Signalled { .. } => String::from("the victim was killed (SIGKILL)"),
        Happening::Completed(completion) => {
            let freed = completion.freed_bytes.map_or_else(|| String::from("an unknown amount"), human_bytes);
            format!("{} was dead, {freed} came back", pod(recording, completion.cgroup))
        }
        Happening::Failed(_) => String::from("the victim did not end"),
        Happening::Suppressed { signal, .. } => format!("no pod was evicted for {signal}"),
        Happening::Gap { .. } => String::from("records are missing here"),
        Happening::HookEnded { .. } | Happening::CutShort { .. } | Happening::Configured(_) => return None,
    })
}

fn amounts(shortage: &Shortage) -> String {
    let Shortage { signal, hard, threshold, observed } = shortage;
    let kind = if *hard { "hard" } else { "soft" };
    let amount = |amount: u64| match shortage.resource() {
        Resource::Memory => human_bytes(amount),
        Resource::Pids => amount.to_string(),
    };
    format!("{signal} {} < {} ({kind})", amount(*observed), amount(*threshold))
}

fn pod(recording: &Recording<'_>, cgroup: CgroupId) -> String {
    match recording.names.get(&cgroup) {
        Some(Member { namespace, name, .. }) => format!("{namespace}/{name}"),
        None => format!("cgroup {}", cgroup.0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::policy::{
        engine::{
            CandidateFacts, Candidates, Engine, EngineSettings, Input, Mode, NodeSample, PodKey, Reading,
            Usage, followed,
        },
        flight::{Process, Processes, RecordRef, StepRef, Writer, encode},
        threshold::{Threshold, ThresholdValue},
    };

    const MIB: u64 = 1 << 20;

    fn record_into(writer: &mut Writer, record: &RecordRef<'_>) {
        let mut bytes = Vec::new();
        encode(record, &mut bytes);
        writer.record(&bytes);
    }

    /// A node that falls to 199 MiB, below its hard threshold of 200 MiB, so that a pod is chosen.
    fn recording() -> Vec<u8> {
        recording_of("hog", &[])
    }

    /// The same with a pod of that name, and its processes.
    pub(in super::super) fn recording_of(name: &str, comms: &[&str]) -> Vec<u8> {
        let origin = Origin { realtime_ns: 1_769_860_800_000_000_000, ..Origin::default() };
        let mut writer = Writer::new("test", &origin);
        writer.names(&[Member {
            cgroup: CgroupId(7),
            namespace: String::from("default"),
            name: name.to_owned(),
            uid: String::from("u"),
            qos_class: String::from("BestEffort"),
        }]);
        if !comms.is_empty() {
            writer.processes(&[processes(comms)]);
        }
        let hard = Threshold::hard(Signal::MemoryAvailable, ThresholdValue::Amount(200 * MIB));
        let settings = EngineSettings {
            mode: Mode::Enforce,
            thresholds: followed(&[hard]),
            ..EngineSettings::default()
        };
        let mut engine = Engine::new(&settings);
        engine.remember_armed(|_| true);
        let candidates = Candidates::new(&[CandidateFacts {
            cgroup: CgroupId(7),
            pod: PodKey { hash: 7 },
            priority: 0,
            request_bytes: 0,
            critical: false,
            protected: false,
            grace_period_ns: 0,
            terminating: false,
            torn_down: false,
            in_kubepods: true,
        }]);
        drop(engine.replace(candidates));
        record_into(&mut writer, &RecordRef::Key(&engine));
        let usage = Usage {
            working_set_bytes: 500 * MIB,
            current_bytes: 500 * MIB,
            anon_bytes: 500 * MIB,
            ..Usage::default()
        };
        let readings = [Reading::Usage(usage)];
        let earlier = NodeSample::memory(1_000_000, 900 * MIB, 8 << 30);
        let node = NodeSample::memory(1_001_000_000, 199 * MIB, 8 << 30);
        for input in [Input::Node(earlier), Input::Node(node), Input::Usages { node, readings: &readings }] {
            let actions = engine.step(input);
            record_into(&mut writer, &RecordRef::Step(StepRef::new(&input, &actions, engine.decision())));
        }
        record_into(&mut writer, &RecordRef::Called { number: 1, id: 1 });
        writer.finish()
    }

    /// Read after a millisecond.
    fn processes(comms: &[&str]) -> Processes {
        let process = |(pid, comm): (u32, &&str)| Process {
            pid,
            start_ticks: 1,
            comm: (*comm).to_owned(),
            resident_bytes: 500 * MIB,
            unbacked_bytes: 500 * MIB,
            swap_bytes: 0,
            page_table_bytes: 0,
            oom_score_adj: 0,
            pod: Some(CgroupId(7)),
            group: None,
        };
        Processes {
            began_ns: 900_000,
            read_ns: 1_000_000,
            page_bytes: 4_096,
            total_pages: 2 << 20,
            swap_free_bytes: 0,
            seen: 100,
            worst: (1..).zip(comms).map(process).collect(),
        }
    }

    #[test]
    fn a_recording_shows_what_was_left_and_what_happened_by_the_wall_clock() {
        let course = of(&recording(), Ulid(1)).unwrap();
        assert!(!course.has_gaps, "{course:?}");
        let first = Sample { ms: 1_769_860_800_001, available_bytes: 900 * MIB };
        assert_eq!(course.samples.first(), Some(&first));
        let last = Sample { ms: 1_769_860_801_001, available_bytes: 199 * MIB };
        assert_eq!(course.samples.last(), Some(&last));
        assert_eq!(course.thresholds, [(true, 200 * MIB)]);
        let marks: Vec<_> = course.marks.iter().map(|mark| (mark.ms, mark.what.as_str())).collect();
        assert!(marks.contains(&(last.ms, "crossed: memory.available 199Mi < 200Mi (hard)")), "{marks:?}");
        assert!(marks.contains(&(last.ms, "default/hog was chosen")), "{marks:?}");
        let others = course.alternatives.unwrap();
        assert_eq!(others.kernel.outcome, "unknown", "no process was recorded: {others:?}");
        // Of an eviction that this recording does not have, nothing is known.
        assert!(of(&recording(), Ulid(2)).unwrap().alternatives.unwrap_err().contains("no shortage"));
    }

    #[test]
    fn samples_are_thinned_to_the_lowest_and_the_last() {
        let all: Vec<_> =
            (0..1_001_u64).map(|number| Sample { ms: 0, available_bytes: (number + 1) % 1_001 }).collect();
        let thin = thinned(&all);
        assert!(thin.len() <= MOST_SAMPLES + 1, "{}", thin.len());
        assert!(thin.iter().any(|sample| sample.available_bytes == 0));
        assert_eq!(thin.last(), all.last());
        assert!(thinned(&[]).is_empty());
    }

    #[test]
    fn what_is_no_recording_says_why() {
        assert!(of(b"x", Ulid(1)).is_err());
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::NotFound)).context("cannot open a");
        assert_eq!(missing(&error), "no recording of it is kept");
        let error =
            anyhow::Error::new(io::Error::from(io::ErrorKind::PermissionDenied)).context("cannot open a");
        assert!(missing(&error).starts_with("cannot open a: "), "{}", missing(&error));
    }
}
