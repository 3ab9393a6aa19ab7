//! `enforcer reserve` and `enforcer unreserve`: resources of the node that are not for pods.

use std::{collections::BTreeMap, time::Duration};

use super::{Context, Failure, client, orders};
use crate::{
    model::ResourceName,
    policy::{duration, reservation},
    serve::ReservationRequest,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is reserved counts as requested when pods are admitted. Of what is free
alone something can be reserved (enforcer allocatable); more is refused, with
exit status 77. A reservation ends by itself. Made again under its name, it
holds the new amounts for the new time.

  enforcer reserve batch --memory 2Gi --cpu 1 --ttl 1h --reason nightly
  enforcer unreserve batch")]
pub(super) struct Args {
    /// The name, by which it is made again and released
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// How much memory, such as 2Gi
    #[arg(long, value_name = "QUANTITY", value_parser = memory)]
    memory: Option<String>,
    /// How many processors, such as 1 or 500m
    #[arg(long, value_name = "QUANTITY", value_parser = cpu)]
    cpu: Option<String>,
    /// Another resource, such as ephemeral-storage=1Gi; may be repeated
    #[arg(long = "resource", value_name = "RESOURCE=QUANTITY", value_parser = resource)]
    resources: Vec<(String, String)>,
    /// How long it holds: 1s to 168h
    #[arg(long, value_name = "TIME", value_parser = time, required_unless_present = "release")]
    ttl: Option<Duration>,
    /// What it is for, which is recorded in the event
    #[arg(long, value_name = "TEXT", value_parser = orders::reason, required_unless_present = "release")]
    reason: Option<String>,
    /// End it before its time, as unreserve does
    #[arg(long, conflicts_with_all = ["memory", "cpu", "resources", "ttl", "reason"])]
    release: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Release {
    /// Its name
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
}

fn name(text: &str) -> Result<String, String> {
    reservation::check_name(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn quantity(resource: &str, text: &str) -> Result<String, String> {
    let read = reservation::amounts(&[(resource.to_owned(), text.to_owned())].into());
    read.map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

fn memory(text: &str) -> Result<String, String> {
    quantity(ResourceName::MEMORY, text)
}

fn cpu(text: &str) -> Result<String, String> {
    quantity(ResourceName::CPU, text)
}

fn resource(text: &str) -> Result<(String, String), String> {
    let (name, amount) = text.split_once('=').ok_or("write RESOURCE=QUANTITY")?;
    Ok((name.to_owned(), quantity(name, amount)?))
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    let bounds =
        Duration::from_millis(reservation::MIN_FOR_MS)..=Duration::from_millis(reservation::MAX_FOR_MS);
    if bounds.contains(&time) { Ok(time) } else { Err(String::from("a reservation holds for 1s to 168h")) }
}

pub(super) fn reserve(context: &Context, args: Args) -> Result<(), Failure> {
    let Args { name, memory, cpu, resources: others, ttl, reason, release: _ } = args;
    // The parser has checked that the required arguments exist.
    let (Some(ttl), Some(reason)) = (ttl, reason) else { return unreserve(context, &Release { name }) };
    let mut resources = BTreeMap::new();
    let own = [(ResourceName::MEMORY, memory), (ResourceName::CPU, cpu)];
    let own = own.into_iter().filter_map(|(name, amount)| Some((name.to_owned(), amount?)));
    for (name, amount) in own.chain(others) {
        if let Some(before) = resources.insert(name.clone(), amount.clone()) {
            return Err(Failure::usage(anyhow::anyhow!("{name} is given twice: {before} and {amount}")));
        }
    }
    reservation::amounts(&resources).map_err(|error| Failure::usage(error.into()))?;
    let request = ReservationRequest { name, resources, reason, ttl_ms: orders::milliseconds(ttl) };
    orders::answered(context, &client::block_on(client::reserve(&context.config.run_dir, &request))?)
}

pub(super) fn unreserve(context: &Context, Release { name }: &Release) -> Result<(), Failure> {
    orders::answered(context, &client::block_on(client::release(&context.config.run_dir, name))?)
}
