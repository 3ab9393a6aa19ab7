//! `enforcer what-if`: which pods would be evicted now under other conditions. It changes nothing.

mod document;

use anyhow::anyhow;

use self::document::{Document, table};
use super::{Context, Failure, client, format};
use crate::{
    model::{CgroupId, Quantity},
    nearest::nearest,
    policy::{
        engine::Reading,
        flight::{Member, Recording, latest},
        threshold::{self, ThresholdValue},
        what_if::{Scene, foresee},
    },
    serve::UsageView,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It gets the pods, their present usage and the node from the running daemon, and
runs the eviction engine until nothing is short any more. It assumes that no pod
grows meanwhile, and changes nothing.")]
pub(super) struct Args {
    /// The hard threshold of memory.available instead of the one in force: an
    /// amount such as 2Gi, or a percentage
    #[arg(long, value_name = "AMOUNT", value_parser = amount, required_unless_present = "add")]
    threshold: Option<ThresholdValue>,
    /// The amount of memory that a pod uses in addition, such as 4Gi
    #[arg(long, value_name = "AMOUNT", value_parser = bytes, requires = "pod")]
    add: Option<u64>,
    /// The pod that uses it: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POD", requires = "add")]
    pod: Option<String>,
}

fn amount(text: &str) -> Result<ThresholdValue, String> {
    match threshold::parse(text) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(String::from("0% and 100% switch a threshold off: then no pod is evicted for it")),
        Err(error) => Err(error.to_string()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let quantity: Quantity = text.parse().map_err(|error| format!("{error}"))?;
    if quantity.is_positive() { Ok(quantity.units()) } else { Err(String::from("it must be more than 0")) }
}

/// The daemon's pods at one time.
pub(super) struct Now {
    pub(super) scene: Scene,
    pub(super) members: Vec<Option<Member>>,
}

pub(super) fn what_if(context: &Context, args: &Args) -> Result<(), Failure> {
    let mut now = ask(context)?;
    let before = now.scene.node.memory;
    if let Some(value) = args.threshold {
        now.scene.set_threshold(value);
    }
    if let (Some(bytes), Some(pod)) = (args.add, &args.pod) {
        let cgroup = find(&now, pod)?;
        if !now.scene.add(cgroup, bytes) {
            return Err(Failure::not_there(anyhow!(
                "pod {pod} is not a candidate for eviction: `enforcer next` lists the candidates"
            )));
        }
    }
    let document = Document::new(before, &now, &foresee(now.scene.clone()));
    format::print(context.output, &document, || table(&document, context.columns))
}

/// Gets the state of the daemon's engine, and each pod's present usage.
fn ask(context: &Context) -> Result<Now, Failure> {
    let run_dir = &context.config.run_dir;
    let (file, usages) = client::block_on(async {
        let usages: Vec<UsageView> = client::get_json(run_dir, "/v1/usages").await?;
        let answer = client::get(run_dir, "/v1/recording").await?;
        let status = answer.status;
        let bytes = answer.bytes().await?;
        if status.is_success() { Ok((bytes, usages)) } else { Err(client::refusal(status, &bytes)) }
    })?;
    let recording = Recording::read(&file).map_err(anyhow::Error::new)?;
    let (engine, node) = latest(&recording)
        .ok_or_else(|| anyhow!("the daemon has not sampled the node yet: try again in a moment"))?;
    let reading = |cgroup: CgroupId| {
        let usage = usages.iter().find(|usage| usage.cgroup_id == cgroup.0);
        usage.map_or(Reading::Gone, UsageView::reading)
    };
    let pods: Vec<_> =
        engine.candidates().known().map(|(facts, _)| (*facts, reading(facts.cgroup))).collect();
    let members = pods.iter().map(|(facts, _)| recording.names.get(&facts.cgroup).cloned()).collect();
    Ok(Now { scene: Scene { settings: *engine.settings(), pods, node }, members })
}

fn find(now: &Now, pod: &str) -> Result<CgroupId, Failure> {
    let is_it = |member: &&Member| match pod.split_once('/') {
        Some((namespace, name)) => member.namespace == namespace && member.name == name,
        None => member.name == pod,
    };
    let mut found = now.members.iter().flatten().filter(is_it);
    match (found.next(), found.next()) {
        (Some(member), None) => Ok(member.cgroup),
        (None, _) => {
            let names: Vec<_> = now
                .members
                .iter()
                .flatten()
                .flat_map(|member| [format!("{}/{}", member.namespace, member.name), member.name.clone()])
                .collect();
            let near = nearest(pod, names.iter().map(String::as_str));
            let hint = near.map_or_else(String::new, |near| format!("did you mean {near:?}? "));
            Err(Failure::not_there(anyhow!(
                "no pod {pod:?} is a candidate for eviction: {hint}`enforcer next` lists the candidates"
            )))
        }
        (Some(_), Some(_)) => {
            Err(Failure::usage(anyhow!("{pod:?} is in more than one namespace: write NAMESPACE/NAME")))
        }
    }
}
