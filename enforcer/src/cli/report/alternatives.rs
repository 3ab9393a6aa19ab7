//! What the kubelet and the kernel would have done in place of the daemon, by a recording, in words and numbers.

use super::{
    document::{Alternatives, Answer, AnswerStep, Eviction},
    recorded::Recorded,
    words::{counted, duration},
};
use crate::{
    cli::render::human_bytes,
    model::CgroupId,
    policy::flight::{self, Assumption, Kernel, KernelVictim, Kubelet, MayExhaust, Member, Recording, Span},
};

/// The answers for the shortage in which that eviction was decided; or why there are none.
pub(super) fn of(recording: &Recording<'_>, eviction: u128) -> Result<Alternatives, String> {
    let episode = flight::instead_of(recording, eviction)
        .ok_or("the recording has no shortage in which it was decided, as of an order")?;
    let names = Names(recording);
    Ok(Alternatives { kubelet: kubelet(&names, &episode.kubelet), kernel: kernel(&names, &episode.kernel) })
}

/// Both are unknown for that reason.
pub(super) fn unknown(reason: &str) -> Alternatives {
    Alternatives { kubelet: not_known(reason), kernel: not_known(reason) }
}

/// Gives each eviction whose recording was looked for its answers.
pub(super) fn add(evictions: &mut [Eviction], recorded: &Recorded) {
    for eviction in evictions {
        eviction.alternatives = recorded.get(&eviction.id).map(|course| match course {
            Ok(course) => course.alternatives.clone().unwrap_or_else(|reason| unknown(&reason)),
            Err(reason) => unknown(reason),
        });
    }
}

/// The pods by cgroup.
struct Names<'a>(&'a Recording<'a>);

impl Names<'_> {
    fn pod(&self, cgroup: CgroupId) -> String {
        match self.0.names.get(&cgroup) {
            Some(Member { namespace, name, .. }) => format!("{namespace}/{name}"),
            None => format!("cgroup {}", cgroup.0),
        }
    }

    fn process(&self, victim: &KernelVictim) -> String {
        let process = &victim.process;
        let pod = process.pod.map_or_else(|| String::from("no pod"), |pod| self.pod(pod));
        let others = match victim.others {
            0 => String::new(),
            others => format!(", and {} with it", counted(others.into(), "process", "processes")),
        };
        format!("{} (pid {}) of {pod}{others}", process.comm, process.pid)
    }
}

fn not_known(reason: &str) -> Answer {
    Answer {
        outcome: "unknown",
        sentence: format!("unknown: {reason}"),
        reason: Some(reason.to_owned()),
        ..Answer::default()
    }
}

fn kubelet(names: &Names<'_>, answer: &Kubelet) -> Answer {
    match answer {
        Kubelet::Evicts { passes, lowest_bytes, exhausted_before, assumptions } => {
            let steps = passes.iter().map(|pass| AnswerStep {
                victims: pass.pods.iter().map(|pod| names.pod(*pod)).collect(),
                from_ms: pass.at_ms.from(),
                to_ms: pass.at_ms.to(),
                certain: pass.is_certain,
            });
            let mut answer = with_steps("evicts", steps.collect());
            answer.lowest(*lowest_bytes);
            if let MayExhaust::Possibly { from_ms, permille } = *exhausted_before {
                answer.exhausted_from_ms = Some(from_ms);
                answer.exhausted_permille = Some(permille);
                answer.sentence.push_str(&format!(
                    "; in {permille} of 1000 ways that were tried memory is used up before, after {} at the earliest",
                    duration(from_ms)
                ));
            }
            answer.assumes(assumptions)
        }
        Kubelet::TooLate { exhausted_ms, would_act_ms, assumptions } => Answer {
            outcome: "tooLate",
            sentence: format!(
                "acts too late: memory is used up after {}, and it acts after {}",
                span(*exhausted_ms),
                span(*would_act_ms)
            ),
            exhausted_from_ms: Some(exhausted_ms.from()),
            ..Answer::default()
        }
        .assumes(assumptions),
        Kubelet::Spares { lowest_bytes, assumptions } => spares("evicts no pod", *lowest_bytes, assumptions),
        Kubelet::Unknown(reason) => not_known(reason.as_str()),
    }
}

fn kernel(names: &Names<'_>, answer: &Kernel) -> Answer {
    match answer {
        Kernel::Kills { kills, read_ms, assumptions } => {
            let steps = kills.iter().map(|kill| AnswerStep {
                victims: kill.victims.iter().map(|victim| names.process(victim)).collect(),
                from_ms: kill.at_ms.from(),
                to_ms: kill.at_ms.to(),
                certain: kill.is_certain,
            });
            let mut answer = with_steps("kills", steps.collect());
            answer.processes_read_ms = Some(*read_ms);
            let side = if *read_ms < 0 { "before" } else { "after" };
            let read = duration(read_ms.unsigned_abs());
            answer.sentence.push_str(&format!("; processes were read {read} {side} the crossing"));
            answer.assumes(assumptions)
        }
        Kernel::Spares { lowest_bytes, assumptions } => {
            spares("kills no process", *lowest_bytes, assumptions)
        }
        Kernel::Unknown(reason) => not_known(reason.as_str()),
    }
}

fn with_steps(outcome: &'static str, steps: Vec<AnswerStep>) -> Answer {
    let words: Vec<_> = steps
        .iter()
        .map(|step| {
            let perhaps = if step.certain { "" } else { "perhaps " };
            let when = between(step.from_ms, step.to_ms);
            format!("{perhaps}{} after {when}", step.victims.join(" or "))
        })
        .collect();
    Answer { outcome, sentence: format!("{outcome} {}", words.join(", then ")), steps, ..Answer::default() }
}

fn spares(words: &str, lowest_bytes: Span<u64>, assumptions: &[Assumption]) -> Answer {
    let mut answer = Answer { outcome: "spares", sentence: words.to_owned(), ..Answer::default() };
    answer.lowest(lowest_bytes);
    answer.assumes(assumptions)
}

fn span(span: Span<u64>) -> String {
    between(span.from(), span.to())
}

fn between(from_ms: u64, to_ms: u64) -> String {
    let (from, to) = (duration(from_ms), duration(to_ms));
    if from == to { from } else { format!("{from} to {to}") }
}

impl Answer {
    /// The node's least available memory.
    fn lowest(&mut self, bytes: Span<u64>) {
        self.lowest_from_bytes = Some(bytes.from());
        self.lowest_to_bytes = Some(bytes.to());
        let (from, to) = (human_bytes(bytes.from()), human_bytes(bytes.to()));
        let amount = if from == to { from } else { format!("{from} to {to}") };
        self.sentence.push_str(&format!("; {amount} stay available at the lowest"));
    }

    fn assumes(self, assumptions: &[Assumption]) -> Self {
        Self { assumptions: assumptions.iter().map(|one| one.as_str()).collect(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::flight::{AtLeastOne, Kill, Pass, Process, Unknown};

    const HOG: CgroupId = CgroupId(7);

    fn recording() -> Recording<'static> {
        let member = Member {
            cgroup: HOG,
            namespace: String::from("default"),
            name: String::from("hog"),
            uid: String::from("u"),
            qos_class: String::from("BestEffort"),
        };
        Recording { names: BTreeMap::from([(HOG, member)]), ..Recording::default() }
    }

    #[test]
    fn the_kubelets_answer_has_every_pod_that_it_may_evict_as_a_range() {
        let recording = recording();
        let pass = |pods: AtLeastOne<CgroupId>, is_certain| Pass {
            pods,
            at_ms: Span::of(500).with(9_500),
            is_certain,
        };
        let either = AtLeastOne { first: HOG, rest: vec![CgroupId(9)] };
        let answer = Kubelet::Evicts {
            passes: AtLeastOne { first: pass(either, true), rest: vec![pass(AtLeastOne::only(HOG), false)] },
            lowest_bytes: Span::of(0).with(20 << 20),
            exhausted_before: MayExhaust::Possibly { from_ms: 4_000, permille: 120 },
            assumptions: vec![Assumption::SameThresholds],
        };
        let answer = kubelet(&Names(&recording), &answer);
        assert_eq!(
            answer.sentence,
            "evicts default/hog or cgroup 9 after 500ms to 9.5s, then perhaps default/hog after 500ms to 9.5s; 0 to 20Mi \
             stay available at the lowest; in 120 of 1000 ways that were tried memory is used up before, after 4.0s at \
             the earliest"
        );
        assert_eq!((answer.lowest_from_bytes, answer.lowest_to_bytes), (Some(0), Some(20 << 20)));
        assert_eq!(answer.assumptions, [Assumption::SameThresholds.as_str()]);
        assert_eq!((answer.steps[0].certain, answer.steps[1].certain), (true, false));
        assert_eq!(answer.exhausted_permille, Some(120));
    }

    #[test]
    fn a_kubelet_that_comes_too_late_names_no_victim() {
        let answer = Kubelet::TooLate {
            exhausted_ms: Span::of(1_000),
            would_act_ms: Span::of(2_000).with(9_000),
            assumptions: Vec::new(),
        };
        let answer = kubelet(&Names(&recording()), &answer);
        assert_eq!(
            answer.sentence,
            "acts too late: memory is used up after 1.0s, and it acts after 2.0s to 9.0s"
        );
        assert!(answer.steps.is_empty());
    }

    #[test]
    fn the_kernels_answer_names_the_process_and_its_pod() {
        let process = Process {
            pid: 412,
            start_ticks: 1,
            comm: String::from("workload"),
            resident_bytes: 0,
            unbacked_bytes: 0,
            swap_bytes: 0,
            page_table_bytes: 0,
            oom_score_adj: 1_000,
            pod: Some(HOG),
            group: None,
        };
        let victim = KernelVictim { process, badness_pages: 5, others: 2 };
        let kill = Kill { victims: AtLeastOne::only(victim), at_ms: Span::of(3_000), is_certain: true };
        let answer = Kernel::Kills { kills: AtLeastOne::only(kill), read_ms: -200, assumptions: Vec::new() };
        let answer = kernel(&Names(&recording()), &answer);
        assert_eq!(
            answer.sentence,
            "kills workload (pid 412) of default/hog, and 2 processes with it after 3.0s; processes were read 200ms \
             before the crossing"
        );
        assert_eq!(answer.processes_read_ms, Some(-200));
    }

    #[test]
    fn what_is_not_known_has_its_reason_and_no_number() {
        let recording = recording();
        let reason = Unknown::NoProcesses.as_str();
        for answer in [
            kernel(&Names(&recording), &Kernel::Unknown(Unknown::NoProcesses)),
            unknown(reason).kubelet,
            unknown(reason).kernel,
        ] {
            assert_eq!((answer.outcome, answer.reason.as_deref()), ("unknown", Some(reason)));
            assert!(answer.steps.is_empty() && answer.lowest_from_bytes.is_none(), "{answer:?}");
        }
        assert!(of(&recording, 1).unwrap_err().contains("no shortage"));
    }
}
