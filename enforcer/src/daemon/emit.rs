//! The payloads of the desired state's events.

use std::collections::BTreeMap;

use enforcer_events::{
    self as events, Payload,
    limits::{Component, FileWritten, LimitsDrifted, LimitsWritten, Owner},
    node::Degraded,
    pod::{Container, PodRejected, PodReported},
};

use crate::{
    cgroup::{
        Applied, Author, ComponentScore, Drift, DriftAction, FileChange, KeptFile, Moved, Reason, ScoreFate,
    },
    clock,
    journal::{Journal, Subject},
    model::{self, CgroupPath, Pod, PodName, Quantity, ResourceList},
    policy::{Plan, PodPlan, admission::Rejection},
    sense::Process,
    source::SourceName,
};

/// Reports that something is missing here or does not work, and the consequence. Call it once. `what` is a word of the code and
/// of docs/doctor.md, never of what others say: it becomes the value of a label.
pub(super) fn degraded(journal: &Journal, what: &'static str, message: &str) {
    degraded_at(journal, what, None, message);
}

/// The same for one place of several; its end is reported with the place too.
pub(super) fn degraded_at(journal: &Journal, what: &'static str, place: Option<&str>, message: &str) {
    tracing::warn!("{what}: {message}; `enforcer doctor` shows what to do");
    let data =
        Degraded { place: place.map(str::to_owned), message: Some(message.to_owned()), ..Degraded::of(what) };
    journal.emit(Subject::Node, Payload::DegradedEntered(data));
}

/// Reports that it is over.
pub(super) fn recovered(journal: &Journal, what: &'static str, message: &str) {
    recovered_at(journal, what, None, message);
}

/// The same for one place of several.
pub(super) fn recovered_at(journal: &Journal, what: &'static str, place: Option<&str>, message: &str) {
    let data =
        Degraded { place: place.map(str::to_owned), message: Some(message.to_owned()), ..Degraded::of(what) };
    journal.emit(Subject::Node, Payload::DegradedLeft(data));
}

/// The time in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    clock::realtime_ns() / 1_000_000
}

/// A pod that came, changed or went.
pub(super) fn pod(pod: &Pod, source: SourceName, plan: Option<&PodPlan>) -> PodReported {
    PodReported {
        namespace: pod.name.namespace.clone(),
        name: pod.name.name.clone(),
        uid: pod.uid.to_string(),
        source: source.as_str().into(),
        priority: pod.priority(),
        qos_class: plan.map(|plan| plan.qos_class.as_str().into()),
        old_qos_class: None,
        critical: plan.map(|plan| plan.critical),
        requests: plan.map(|plan| resources(&plan.requests)),
        limits: plan.map(|plan| resources(&plan.limits)),
        containers: pod.containers.iter().map(container).collect(),
    }
}

fn container(container: &model::Container) -> Container {
    Container { name: container.name.clone(), kind: container.kind.as_str().into() }
}

/// A pod that may not run.
pub(super) fn rejected(pod: &Pod, source: SourceName, rejection: &Rejection, dry_run: bool) -> PodRejected {
    PodRejected {
        namespace: Some(pod.name.namespace.clone()),
        name: Some(pod.name.name.clone()),
        uid: Some(pod.uid.to_string()),
        source: source.as_str().into(),
        reason: Some(rejection.reason().into_owned().into()),
        message: rejection.message().clone(),
        dry_run: Some(dry_run),
    }
}

/// Resources under the names that events use, in base units.
fn resources(list: &ResourceList) -> BTreeMap<String, i64> {
    let entry = |(name, quantity): (&model::ResourceName, &Quantity)| match name.as_str() {
        "cpu" => (String::from("cpuMilli"), quantity.milli_value_ceil()),
        "memory" => (String::from("memoryBytes"), quantity.value_ceil()),
        other => (other.to_owned(), quantity.value_ceil()),
    };
    list.iter().map(entry).collect()
}

/// Which processes wrote to files, as far as the kernel reported it.
#[derive(Debug, Default)]
pub(super) struct Writers(BTreeMap<(CgroupPath, KeptFile), Writer>);

/// The process that wrote a value.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// The writer.
    pub(super) by: Process,
    /// The process whose score it is.
    pub(super) of: Option<Process>,
}

impl Writers {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes a writer; the latest one counts.
    pub(super) fn note(&mut self, path: CgroupPath, file: KeptFile, writer: Writer) {
        self.0.insert((path, file), writer);
    }

    /// Who wrote a file, and for a score whose it is.
    fn of(&self, path: &CgroupPath, file: KeptFile) -> (Option<events::Process>, Option<events::Process>) {
        let Some(Writer { by, of }) = self.0.get(&(path.clone(), file)) else {
            return (None, None);
        };
        let process = |process: &Process| events::Process { pid: process.pid, comm: process.comm.clone() };
        (Some(process(by)), of.as_ref().map(process))
    }
}

/// Files written in one cgroup; the subject is its pod, or the node.
pub(super) fn limits(
    applied: &Applied,
    owner: Option<Owned<'_>>,
    writers: &Writers,
) -> (Subject, LimitsWritten) {
    let Applied { path, reason, files } = applied;
    let files = files
        .iter()
        .map(|FileChange { file, old, new }| {
            let (writer, of) =
                if *reason == Reason::Drifted { writers.of(path, *file) } else { (None, None) };
            FileWritten { file: file.to_string(), old: old.clone(), new: new.clone(), writer, of }
        })
        .collect();
    let data = LimitsWritten {
        owner: named(owner),
        cgroup: path.to_string(),
        reason: reason.as_str().into(),
        files,
        processes: None,
        component: None,
    };
    (subject(owner), data)
}

/// Processes that were moved into their container's present cgroup.
pub(super) fn moved(moved: &Moved, plan: &Plan) -> (Subject, LimitsWritten) {
    let Moved { from, to, processes } = moved;
    let file = FileWritten {
        file: String::from("cgroup.procs"),
        old: Some(from.to_string()),
        new: to.to_string(),
        writer: None,
        of: None,
    };
    let owner = owner(to, plan);
    let data = LimitsWritten {
        owner: named(owner),
        cgroup: to.to_string(),
        reason: "moved".into(),
        files: vec![file],
        processes: Some(*processes),
        component: None,
    };
    (subject(owner), data)
}

/// A value that another process wrote.
pub(super) fn drifted(
    drift: &Drift,
    owner: Option<Owned<'_>>,
    writers: &Writers,
) -> (Subject, LimitsDrifted) {
    let Drift { path, cgroup, file, planned, found, action, author } = drift;
    let (writer, of) = writers.of(path, *file);
    let author =
        || author.as_ref().map(|Author { pid, comm }| events::Process { pid: *pid, comm: comm.clone() });
    let data = LimitsDrifted {
        owner: named(owner),
        cgroup: path.to_string(),
        cgroup_id: Some(cgroup.0),
        file: file.to_string(),
        old: planned.clone(),
        new: found.clone(),
        action: action.as_str().into(),
        writer: writer.or_else(author),
        pid: of.as_ref().map(|of| of.pid),
        comm: of.map(|of| of.comm),
        executable: None,
    };
    (subject(owner), data)
}

/// The events of a node component or a pod's sandbox whose score was wrong.
pub(super) fn component(score: &ComponentScore) -> Vec<Payload> {
    let ComponentScore { pid, executable, cgroup, found, wanted, fate } = score;
    let (found, wanted) = (found.to_string(), wanted.to_string());
    let drifted = |action: DriftAction| {
        Payload::LimitsDrifted(LimitsDrifted {
            owner: Owner::default(),
            cgroup: cgroup.clone(),
            cgroup_id: None,
            file: KeptFile::Score.to_string(),
            old: wanted.clone(),
            new: found.clone(),
            action: action.as_str().into(),
            writer: None,
            pid: Some(*pid),
            comm: None,
            executable: Some(executable.clone()),
        })
    };
    let written = |reason: Reason| {
        let (old, new) = (Some(found.clone()), wanted.clone());
        LimitsWritten {
            owner: Owner::default(),
            cgroup: cgroup.clone(),
            reason: reason.as_str().into(),
            files: vec![FileWritten { file: KeptFile::Score.to_string(), old, new, writer: None, of: None }],
            processes: None,
            component: Some(Component { pid: *pid, executable: executable.clone() }),
        }
    };
    match fate {
        ScoreFate::Set => vec![Payload::LimitsApplied(written(Reason::Initial))],
        ScoreFate::Restored => {
            vec![drifted(DriftAction::Restored), Payload::LimitsRestored(written(Reason::Drifted))]
        }
        ScoreFate::Delayed => vec![drifted(DriftAction::Delayed)],
        ScoreFate::Audited => vec![drifted(DriftAction::Audited)],
        // Reported among what this host lacks.
        ScoreFate::Refused => Vec::new(),
    }
}

fn subject(owner: Option<Owned<'_>>) -> Subject {
    owner.map_or(Subject::Node, |(pod, _)| Subject::Pod(pod.clone()))
}

/// Names the pod and the container that a cgroup belongs to.
fn named(owner: Option<Owned<'_>>) -> Owner {
    let Some((pod, container)) = owner else { return Owner::default() };
    Owner {
        namespace: Some(pod.namespace.clone()),
        pod: Some(pod.name.clone()),
        container: container.map(str::to_owned),
    }
}

/// A pod, and its container if the cgroup is one's.
pub(super) type Owned<'a> = (&'a PodName, Option<&'a str>);

/// Returns the pod and the container that own the cgroup by the plan.
pub(super) fn owner<'a>(path: &CgroupPath, plan: &'a Plan) -> Option<Owned<'a>> {
    plan.pods.iter().find_map(|pod| {
        if pod.cgroup.path == *path {
            return Some((&pod.name, None));
        }
        let container = pod.containers.iter().find(|container| container.cgroup.path == *path)?;
        Some((&pod.name, Some(container.name.as_str())))
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    /// What stands before a word, and how a constant with one is named.
    const BEFORE: [&str; 6] =
        ["emit::degraded(", "emit::degraded_at(", "Degraded::of(", "Problem {", "Lost {", "self.emit("];
    const NAMES: [&str; 7] =
        ["WHAT", "SINK", "TLS", "LISTEN", "ADDRESS_SPACE", "MEMORY_LOCK", "SHARED_MEMORY"];

    /// The first text in a call, if it is one word.
    fn word(call: &str) -> Option<&str> {
        let arguments = call.split("format!").next()?.split(';').next()?;
        let word = arguments.split('"').nth(1)?;
        let is_word = word.starts_with(|c: char| c.is_ascii_lowercase())
            && word.chars().all(|c| c.is_ascii_alphabetic());
        (is_word && arguments.find('"')? < 100).then_some(word)
    }

    fn collect(folder: &Path, words: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if name != "tests" {
                    collect(&path, words);
                }
                continue;
            }
            if name == "tests.rs" || path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap();
            for before in BEFORE {
                words.extend(text.split(before).skip(1).filter_map(word).map(str::to_owned));
            }
            for name in NAMES {
                let before = format!("const {name}: &str = ");
                words.extend(text.split(&*before).skip(1).filter_map(word).map(str::to_owned));
            }
        }
    }

    #[test]
    fn the_page_on_doctor_has_every_word_that_is_reported() {
        let mut words = BTreeSet::new();
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut words);
        assert!(words.len() > 50 && words.contains("journal") && words.contains("limitStuck"), "{words:?}");
        let page = include_str!("../../../docs/doctor.md");
        // The page speaks of doctor's own rows as a whole.
        let rows = include_str!("../sense/probe/ladder/rows.rs");
        let is_known = |word: &String| {
            page.contains(&format!("`{word}`")) || rows.contains(&format!("name: \"{word}\""))
        };
        let unknown: Vec<_> = words.iter().filter(|word| !is_known(word)).collect();
        assert_eq!(unknown, Vec::<&String>::new());
    }
}
