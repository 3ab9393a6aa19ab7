//! A replay as JSON and YAML.

use std::{collections::BTreeMap, path::Path};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use ulid::Ulid;

use crate::{
    model::CgroupId,
    policy::{
        engine::{
            Decision, EngineSettings, FailureReason, KillReason, RankKey, Ranked, Reading, Refusal, Resource,
            Shortage, Suppression, Waiting,
        },
        flight::{Account, Counterfactual, Happening, Item, Member, Recording},
        rank::DecidedBy,
    },
};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    pub(super) recording: Origin,
    pub(super) replay: Replay,
    /// What happened, in order.
    pub(super) happenings: Vec<Value>,
    /// The decisions among them, with the data of `eviction.decided`.
    pub(super) decisions: Vec<Value>,
    /// What another configuration would have done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) under: Option<Replayed>,
}

/// Where the recording comes from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Origin {
    pub(super) source: String,
    pub(super) program: String,
    pub(super) node: Option<String>,
    pub(super) boot_id: Option<String>,
    pub(super) config_hash: Option<String>,
    pub(super) from: Option<String>,
    pub(super) to: Option<String>,
    pub(super) records: usize,
    /// Records that the recorder lost.
    pub(super) lost_records: u64,
    pub(super) damage: Vec<Damage>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Damage {
    pub(super) at_byte: usize,
    pub(super) bytes: usize,
    pub(super) what: &'static str,
}

/// Whether the engine decides the same again.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replay {
    /// All steps that could be run again had the same result.
    pub(super) equal: bool,
    pub(super) steps_equal: u64,
    /// Steps that could not be run again, as records before them are missing.
    pub(super) steps_not_run: u64,
    pub(super) first_difference: Option<Difference>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Difference {
    pub(super) at_byte: usize,
    pub(super) time: Option<String>,
    pub(super) recorded: String,
    pub(super) replayed: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Replayed {
    pub(super) config: String,
    pub(super) mode: &'static str,
    /// When the two diverged; `None` if they do the same.
    pub(super) parted: Option<String>,
    /// What was done and what would have been done, by time.
    pub(super) rows: Vec<Row>,
}

/// A time at which at least one of the two decides.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) time: Option<String>,
    pub(super) boot_time_ns: u64,
    /// The decision that was made.
    pub(super) recorded: Option<Value>,
    /// The decision that would have been made.
    pub(super) under: Option<Value>,
    /// Whether that is based on a model, as the two had diverged before.
    pub(super) modelled: bool,
    /// When the usage that it is based on was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read: Option<String>,
    /// Why no pod would have been evicted.
    #[serde(rename = "nobody", skip_serializing_if = "Option::is_none")]
    pub(super) no_victim: Option<String>,
}

impl Document {
    pub(super) fn new(
        source: &str,
        recording: &Recording<'_>,
        account: &Account,
        under: Option<&(&Path, EngineSettings, Counterfactual)>,
    ) -> Self {
        let namer = Namer::new(recording, account);
        let Account { moments, equal, unverified, difference, span_ns } = account;
        let origin = recording.origin.as_ref();
        let lost = moments.iter().map(|moment| match moment.what {
            Happening::Gap { lost } => lost,
            _ => 0,
        });
        Self {
            recording: Origin {
                source: source.to_owned(),
                program: recording.program.clone(),
                node: origin.map(|origin| origin.node.clone()),
                boot_id: origin.map(|origin| origin.boot_id.clone()),
                config_hash: origin.map(|origin| origin.config_hash.clone()),
                from: span_ns.and_then(|(from_ns, _)| namer.time(from_ns)),
                to: span_ns.and_then(|(_, to_ns)| namer.time(to_ns)),
                records: recording.items.iter().filter(|item| matches!(item, Item::Record { .. })).count(),
                lost_records: lost.sum(),
                damage: recording
                    .damages()
                    .map(|damage| Damage { at_byte: damage.at, bytes: damage.bytes, what: damage.what })
                    .collect(),
            },
            replay: Replay {
                equal: difference.is_none() && *equal > 0,
                steps_equal: *equal,
                steps_not_run: *unverified,
                first_difference: difference.as_ref().map(|difference| Difference {
                    at_byte: difference.at,
                    time: namer.time(difference.at_ns),
                    recorded: difference.recorded.clone(),
                    replayed: difference.replayed.clone(),
                }),
            },
            happenings: moments.iter().map(|moment| namer.happening(moment.at_ns, &moment.what)).collect(),
            decisions: account.decisions().map(|(decision, id)| namer.decision(decision, id)).collect(),
            under: under.map(|(path, settings, other)| namer.under(path, settings, other, account)),
        }
    }
}

/// Translates the engine's numbers to names and times.
struct Namer<'a> {
    recording: &'a Recording<'a>,
    /// The decisions by number.
    decisions: BTreeMap<u64, (&'a Decision, Option<u128>)>,
}

impl<'a> Namer<'a> {
    fn new(recording: &'a Recording<'a>, account: &'a Account) -> Self {
        let decisions = account.decisions().map(|(decision, id)| (decision.number, (decision, id))).collect();
        Self { recording, decisions }
    }

    fn time(&self, at_ns: u64) -> Option<String> {
        let wall_ns = self.recording.origin.as_ref()?.wall_ns(at_ns);
        Timestamp::from_nanosecond(wall_ns.into()).ok().map(|time| format!("{time:.6}"))
    }

    fn names(&self, cgroup: CgroupId) -> Map<String, Value> {
        let mut data = Map::new();
        if let Some(Member { cgroup: _, namespace, name, uid, qos_class }) = self.recording.names.get(&cgroup)
        {
            for (key, text) in
                [("namespace", namespace), ("name", name), ("uid", uid), ("qosClass", qos_class)]
            {
                data.insert(key.to_owned(), json!(text));
            }
        }
        data
    }

    fn pod(&self, cgroup: CgroupId) -> String {
        match self.recording.names.get(&cgroup) {
            Some(Member { namespace, name, .. }) => format!("{namespace}/{name}"),
            None => format!("cgroup {}", cgroup.0),
        }
    }

    fn happening(&self, at_ns: u64, what: &Happening) -> Value {
        let mut data = Map::new();
        data.insert("time".into(), json!(self.time(at_ns)));
        data.insert("bootTimeNs".into(), json!(at_ns));
        let mut say = |what: &str, more: Map<String, Value>| {
            data.insert("what".into(), json!(what));
            data.extend(more);
        };
        let about = |number: u64| {
            let mut data = Map::new();
            if let Some((decision, id)) = self.decisions.get(&number) {
                data.insert("pod".into(), json!(self.pod(decision.cgroup)));
                data.insert("evictionId".into(), json!(id.map(|id| Ulid(id).to_string())));
            }
            data.insert("number".into(), json!(number));
            data
        };
        let with = |mut data: Map<String, Value>, key: &str, value: Value| {
            data.insert(key.to_owned(), value);
            data
        };
        match what {
            Happening::Crossed(seen) => say("crossed", shortage(seen)),
            Happening::Cleared(seen) => say("cleared", shortage(seen)),
            Happening::Decided { decision, id: _ } => {
                let mut more = about(decision.number);
                more.insert("dryRun".into(), json!(decision.dry_run));
                more.insert("decidedBy".into(), json!(DecidedBy::of(decision.decided_by)));
                more.extend(shortage(&decision.shortage));
                say("decided", more);
            }
            Happening::Terminated { number } => say("terminated", about(*number)),
            Happening::Requested { number } => say("requested", about(*number)),
            Happening::CutShort { number, reason } => {
                let reason = match reason {
                    KillReason::GracePassed => "gracePassed",
                    KillReason::HardThreshold => "hardThreshold",
                    KillReason::Exhausting => "exhausting",
                    KillReason::HookOver => "hookOver",
                    KillReason::Unanswered => "unanswered",
                };
                say("cutShort", with(about(*number), "reason", json!(reason)));
            }
            Happening::HookEnded { number, end } => {
                say("hookEnded", with(about(*number), "outcome", json!(end.as_str())));
            }
            Happening::Signalled { number } => say("signalled", about(*number)),
            Happening::Completed(completion) => {
                let more = with(about(completion.number), "freedBytes", json!(completion.freed_bytes));
                let predicted = json!(completion.predicted_freed_bytes);
                say("completed", with(more, "predictedFreedBytes", predicted));
            }
            Happening::Failed(failure) => {
                let reason = match failure.reason {
                    FailureReason::StillPopulated => String::from("stillPopulated"),
                    FailureReason::Relieved => String::from("relieved"),
                    FailureReason::Spared(spared) => String::from(spared.as_str()),
                    FailureReason::Refused(Refusal::Gone) => String::from("gone"),
                    FailureReason::Refused(Refusal::Empty) => String::from("empty"),
                    FailureReason::Refused(Refusal::Replaced) => String::from("replaced"),
                    FailureReason::Refused(Refusal::Unrecorded) => String::from("unrecorded"),
                    FailureReason::Refused(Refusal::Withdrawn) => String::from("withdrawn"),
                    FailureReason::Refused(Refusal::Unknown) => String::from("unknown"),
                    FailureReason::Refused(Refusal::Budget) => String::from("disruptionBudget"),
                    FailureReason::Refused(Refusal::Kernel(errno)) => {
                        std::io::Error::from_raw_os_error(errno).to_string()
                    }
                };
                say("failed", with(about(failure.number), "reason", json!(reason)));
            }
            Happening::Suppressed { signal, reason } => {
                let reason = match reason {
                    Suppression::NoCandidate => "noCandidate",
                    Suppression::BreakerOpen => "breakerOpen",
                    Suppression::OutOfReach => "outOfReach",
                    Suppression::DisruptionBudget => "disruptionBudget",
                };
                let more = with(Map::new(), "signal", json!(signal.as_str()));
                say("suppressed", with(more, "reason", json!(reason)));
            }
            Happening::Configured(settings) => {
                say("configured", with(Map::new(), "mode", json!(settings.mode.as_str())));
            }
            Happening::Gap { lost } => say("gap", with(Map::new(), "lostRecords", json!(lost))),
        }
        Value::Object(data)
    }

    /// With the keys of `eviction.decided`.
    fn decision(&self, decision: &Decision, id: Option<u128>) -> Value {
        let mut data = shortage(&decision.shortage);
        let mut add = |key: &str, value: Value| {
            data.insert(key.to_owned(), value);
        };
        add("evictionId", json!(id.map(|id| Ulid(id).to_string())));
        add("number", json!(decision.number));
        add("time", json!(self.time(decision.decided_ns)));
        add("bootTimeNs", json!(decision.decided_ns));
        add("dryRun", json!(decision.dry_run));
        add("graceMs", json!(decision.grace_ns / 1_000_000));
        add("decidedBy", json!(DecidedBy::of(decision.decided_by)));
        add("predictedFreedBytes", json!(decision.predicted_freed_bytes));
        add("rankedCount", json!(decision.ranked_count));
        add("excludedCount", json!(decision.excluded_count));
        let mut victim = self.names(decision.cgroup);
        victim.insert("cgroupId".into(), json!(decision.cgroup.0));
        victim.insert("growthBytesPerSecond".into(), json!(decision.growth_bytes_per_second));
        if let Reading::Usage(usage) = decision.reading {
            victim.insert("usageBytes".into(), json!(usage.working_set_bytes));
            victim.insert("anonBytes".into(), json!(usage.anon_bytes));
        }
        add("victim", Value::Object(victim));
        let ranking = (1_u32..).zip(decision.ranking.iter()).map(|(rank, ranked)| self.ranked(rank, ranked));
        add("ranking", ranking.collect());
        Value::Object(data)
    }

    fn ranked(&self, rank: u32, ranked: &Ranked) -> Value {
        let mut data = self.names(ranked.cgroup);
        data.insert("rank".into(), json!(rank));
        match ranked.standing {
            RankKey::Memory(standing) => {
                data.insert("priority".into(), json!(standing.priority));
                data.insert("requestBytes".into(), json!(standing.request_bytes));
                data.insert("usageBytes".into(), json!(standing.usage_bytes));
                data.insert("aboveRequestBytes".into(), json!(standing.above_request_bytes()));
            }
            RankKey::Pids(standing) => {
                data.insert("priority".into(), json!(standing.priority));
                data.insert("processCount".into(), json!(standing.process_count));
            }
        }
        Value::Object(data)
    }

    fn under(
        &self,
        path: &Path,
        settings: &EngineSettings,
        other: &Counterfactual,
        account: &Account,
    ) -> Replayed {
        let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
        let row = |at_ns: u64| Row {
            time: self.time(at_ns),
            boot_time_ns: at_ns,
            recorded: None,
            under: None,
            modelled: false,
            read: None,
            no_victim: None,
        };
        for (decision, id) in account.decisions() {
            let at_ns = decision.decided_ns;
            rows.entry(at_ns).or_insert_with(|| row(at_ns)).recorded = Some(self.decision(decision, id));
        }
        for one in &other.decisions {
            let at_ns = one.decision.decided_ns;
            let row = rows.entry(at_ns).or_insert_with(|| row(at_ns));
            row.under = Some(self.decision(&one.decision, None));
            row.modelled = one.modelled;
            row.read = one.read_ns.and_then(|read_ns| self.time(read_ns));
        }
        for one in &other.no_victims {
            let row = rows.entry(one.at_ns).or_insert_with(|| row(one.at_ns));
            row.no_victim = Some(self.why_no_victim(&one.why));
            row.modelled = other.parted_ns.is_some_and(|parted_ns| parted_ns < one.at_ns);
        }
        Replayed {
            config: path.display().to_string(),
            mode: settings.mode.as_str(),
            parted: other.parted_ns.and_then(|parted_ns| self.time(parted_ns)),
            rows: rows.into_values().collect(),
        }
    }

    fn why_no_victim(&self, why: &Waiting) -> String {
        match why {
            Waiting::Observes => String::from("it only observes"),
            Waiting::NotShort => String::from("no threshold is met"),
            Waiting::Grace(threshold) => {
                format!("{} is within its grace period of {} ms", threshold.signal, threshold.grace_period_ms)
            }
            Waiting::Victim(cgroup) => format!("{} is still dying", self.pod(*cgroup)),
            Waiting::GivingBack(cgroup) => {
                format!("the memory that {} is freeing will suffice", self.pod(*cgroup))
            }
            Waiting::Terminating => String::from(
                "the memory that terminating pods or the volumes of dead victims free will suffice",
            ),
            Waiting::Pause => String::from("it waits after its last attempt"),
            Waiting::Nothing => String::from("no pod may be evicted"),
        }
    }
}

fn shortage(shortage: &Shortage) -> Map<String, Value> {
    let Shortage { signal, hard, threshold, observed } = shortage;
    let (threshold_key, observed_key) = match shortage.resource() {
        Resource::Memory => ("thresholdBytes", "observedBytes"),
        Resource::Pids => ("thresholdCount", "observedCount"),
    };
    let values = [
        ("signal", json!(signal.as_str())),
        ("hard", json!(hard)),
        (threshold_key, json!(threshold)),
        (observed_key, json!(observed)),
    ];
    values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
