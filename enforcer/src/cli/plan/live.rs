//! `enforcer plan --live`: computes what would be written to this machine's cgroups now, and writes nothing.

use std::{path::Path, sync::Arc};

use anyhow::Context as _;
use serde::Serialize;

use super::{cpus, document::ErrorDocument};
use crate::{
    cgroup::{self, Guard, Index, Reconciler, Report, Step, Write},
    cli::{Context, Failure, client, render},
    model::{Node, Pod, PodUid},
    policy::{
        self,
        admission::{Admission, Rejection},
    },
    serve::{AllocatableView, PodState, ReservationView, View},
    source::Wrong,
};

/// The steps that would be done, and those that would wait or are impossible.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    /// In order of execution.
    steps: Vec<StepDocument>,
    /// Limits that would be lowered once less memory is in use.
    waiting: Vec<Waiting>,
    /// Planned steps that are impossible.
    problems: Vec<String>,
    /// What is wrong with the manifests.
    errors: Vec<ErrorDocument>,
    /// What is reserved for others than pods: no pod is admitted into it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reservations: Vec<ReservationView>,
    /// Whether the cgroups are a kubelet's: then nothing is written to them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    kubelet_owns_cgroups: bool,
    /// Beside a kubelet, the daemon's values that follow from the kubelet's, and where they are from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside_kubelet: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "do")]
enum StepDocument {
    Create {
        cgroup: String,
    },
    Enable {
        cgroup: String,
        controllers: Vec<&'static str>,
    },
    #[serde(rename_all = "camelCase")]
    Write {
        cgroup: String,
        file: String,
        old: Option<String>,
        new: String,
        reason: &'static str,
    },
    Move {
        from: String,
        to: String,
    },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Waiting {
    cgroup: String,
    file: String,
    old: Option<String>,
    new: String,
    usage_bytes: u64,
}

impl Document {
    /// Compares the plan for these pods, as the daemon admitted them, with the kernel's state.
    pub(super) fn compute(
        context: &Context,
        node: &Node,
        pods: &[Pod],
        errors: &[Wrong],
    ) -> Result<Self, Failure> {
        let view: View = client::block_on(client::get_json(&context.config.run_dir, "/v1/pods"))?;
        let AllocatableView { reservations, .. } =
            client::block_on(client::get_json(&context.config.run_dir, "/v1/allocatable"))?;
        let decided: Vec<(&Pod, Admission)> =
            pods.iter().map(|pod| (pod, admission(&view, &pod.uid))).collect();
        let mut plan = policy::plan_decided(node, &context.config.settings, &decided);
        let admitted: Vec<&Pod> =
            decided.iter().filter(|(_, admission)| admission.is_admitted()).map(|(pod, _)| *pod).collect();
        let cpus = cpus::live(context, node, &admitted);
        let mut of_cpus = None;
        if let Some((assignments, problem)) = cpus {
            plan.pin(&assignments, &context.config.settings);
            of_cpus = problem;
        }
        let retired: Vec<PodUid> = decided
            .iter()
            .filter(|(_, admission)| !admission.is_admitted())
            .map(|(pod, _)| pod.uid.clone())
            .collect();
        let mut reconciler = Reconciler::new(Path::new(cgroup::MOUNT), Index::new())
            .context("cannot read this machine's cgroups")?;
        let guard = Guard::new(Path::new("/proc"), &context.config.node_components);
        reconciler.set_guard(Arc::new(guard));
        reconciler.set_former_parents(policy::name::of_other_driver(&context.config.settings));
        let report = reconciler.reconcile(&plan, &retired, None);
        let problems = reconciler.problems().into_iter().map(|problem| problem.message);
        let problems = problems.chain(of_cpus).collect();
        let errors = errors.iter().map(ErrorDocument::from).collect();
        Ok(Self { problems, errors, reservations, ..Self::from(report) })
    }

    /// Where the cgroups are a kubelet's, nothing is planned for them.
    pub(super) fn beside_kubelet(beside_kubelet: Vec<String>) -> Self {
        Self { kubelet_owns_cgroups: true, beside_kubelet, ..Self::default() }
    }

    pub(super) fn table(&self) -> String {
        // The errors go to stderr.
        let Self { steps, waiting, problems, errors: _, reservations, kubelet_owns_cgroups, beside_kubelet } =
            self;
        let mut text = String::new();
        if *kubelet_owns_cgroups {
            let says = "the pods' cgroups are the kubelet's: nothing would be written to them. Limits that differ from those \
                        that a pod's spec asks for are reported (limits.drifted, action: audited).";
            let values = beside_kubelet.iter().map(|value| format!("beside the kubelet: {value}"));
            for line in
                std::iter::once(says.to_owned()).chain(values).flat_map(|line| render::wrap(&line, 80))
            {
                text.push_str(&format!("{line}\n"));
            }
            return text;
        }
        let shown = |old: Option<&str>| old.unwrap_or("(none)").to_owned();
        for step in steps {
            text.push_str(&match step {
                StepDocument::Create { cgroup } => format!("create  {}\n", render::escape(cgroup)),
                StepDocument::Enable { cgroup, controllers } => {
                    format!("enable  {}: {}\n", render::escape(cgroup), controllers.join(" "))
                }
                StepDocument::Write { cgroup, file, old, new, reason } => format!(
                    "write   {}/{file}: {} -> {new} ({reason})\n",
                    render::escape(cgroup),
                    render::escape(&shown(old.as_deref()))
                ),
                StepDocument::Move { from, to } => {
                    format!("move    {} -> {}\n", render::escape(from), render::escape(to))
                }
            });
        }
        for Waiting { cgroup, file, old, new, usage_bytes } in waiting {
            text.push_str(&format!(
                "lower   {}/{file}: {} -> {new}, by reclaim: {usage_bytes} bytes are in use\n",
                render::escape(cgroup),
                render::escape(&shown(old.as_deref()))
            ));
        }
        for problem in problems {
            text.push_str(&format!("problem {}\n", render::escape(problem)));
        }
        if text.is_empty() {
            text.push_str("nothing would be written\n");
        }
        for ReservationView { name, resources, until, .. } in reservations {
            let amounts: Vec<_> = resources.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
            let line = format!("reserved for {name} until {until}: {}", amounts.join(" and "));
            text.push_str(&format!("{}\n", render::escape(&line)));
        }
        text
    }
}

/// Whether a pod may have cgroups. A pod that the daemon does not know yet counts as admitted.
fn admission(view: &View, uid: &PodUid) -> Admission {
    let known = view.pods.iter().find(|pod| pod.uid == *uid);
    match known.map(|pod| pod.state) {
        Some(PodState::Evicted | PodState::Rejected | PodState::Removed) => {
            Admission::Rejected(Rejection::Evicted)
        }
        Some(PodState::Pending | PodState::Active) | None => Admission::plain(),
    }
}

impl From<Report> for Document {
    fn from(report: Report) -> Self {
        let steps = report.planned.into_iter().map(|step| match step {
            Step::Create(path) => StepDocument::Create { cgroup: path.to_string() },
            Step::Enable { path, controllers } => StepDocument::Enable {
                cgroup: path.to_string(),
                controllers: controllers.iter().map(|controller| controller.name()).collect(),
            },
            Step::Write(Write { path, value, old, reason }) => StepDocument::Write {
                cgroup: path.to_string(),
                file: value.file().to_string(),
                old: old.map(|held| held.to_string()),
                new: value.to_string(),
                reason: reason.as_str(),
            },
            Step::Move { from, to } => StepDocument::Move { from: from.to_string(), to: to.to_string() },
        });
        let waiting = report.withheld.into_iter().map(|withheld| Waiting {
            cgroup: withheld.write.path.to_string(),
            file: withheld.write.file().to_string(),
            old: withheld.write.old.map(|held| held.to_string()),
            new: withheld.write.value.to_string(),
            usage_bytes: withheld.usage_bytes,
        });
        Self { steps: steps.collect(), waiting: waiting.collect(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Held, Reason},
        model::CgroupPath,
        sample::value,
    };

    #[test]
    fn nothing_is_planned_for_the_cgroups_of_a_kubelet() {
        let document =
            Document::beside_kubelet(vec![String::from("memoryAvailableSource: kubelet (by default)")]);
        let table = document.table();
        assert!(
            table.starts_with("the pods' cgroups are the kubelet's: nothing would be written"),
            "{table}"
        );
        assert!(
            table.ends_with("beside the kubelet: memoryAvailableSource: kubelet (by default)\n"),
            "{table}"
        );
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!((&json["kubeletOwnsCgroups"], &json["steps"]), (&true.into(), &serde_json::json!([])));
        let alone = serde_json::to_value(Document::default()).unwrap();
        assert!(alone.get("kubeletOwnsCgroups").is_none(), "{alone}");
    }

    #[test]
    fn steps_are_shown_in_their_order() {
        let path = CgroupPath::parse("/kubepods/pod1").unwrap();
        let write = Write {
            path: path.clone(),
            value: value("memory.max", "1"),
            old: Some(Held::Value(value("memory.max", "max"))),
            reason: Reason::Drifted,
        };
        let report = Report { planned: vec![Step::Create(path), Step::Write(write)], ..Report::default() };
        let document = Document::from(report);
        assert_eq!(
            document.table(),
            "create  /kubepods/pod1\nwrite   /kubepods/pod1/memory.max: max -> 1 (drifted)\n"
        );
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["steps"][1]["do"], "write");
        assert_eq!(Document::default().table(), "nothing would be written\n");
        let reserved = ReservationView {
            name: String::from("batch"),
            resources: [(String::from("memory"), String::from("2Gi"))].into(),
            until: String::from("2026"),
            ..ReservationView::default()
        };
        let document = Document { reservations: vec![reserved], ..Document::default() };
        assert_eq!(document.table(), "nothing would be written\nreserved for batch until 2026: 2Gi memory\n");
    }
}
