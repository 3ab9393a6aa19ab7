//! How often the kernel's OOM killer picks the pod that the ranking would: random pod sets, with scores by class alone and
//! with scores that follow the ranking, in the same guest.
//!
//! The daemon is stopped while the node runs out, and is asked nothing: the first in rank is reckoned from what the kernel
//! charged each pod for, and the victim is the one that the kernel's log names.

use std::{fs, path::Path};

use anyhow::{Context as _, ensure};
use enforcer_tests::{
    agreement::{Member, Scene},
    random::Random,
};

/// What pods hold at the most together, so that the node has some left before it runs out.
const MOST_MIB: u64 = 1_000;

/// Two pods that could be first differ by this at least: else chance decides who is.
const APART_MIB: u64 = 24;

/// Counts agreements.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many pod sets
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    sets: u32,
}

/// Whether scores that follow the ranking agree in every set.
pub(crate) fn bench(args: &Args) -> anyhow::Result<bool> {
    let mut random = Random::of_this_run();
    eprintln!("{}", random.seed());
    let sets: Vec<Vec<Member>> = (0..args.sets).map(|set| draw(set, &mut random)).collect();
    let mut agreements = Vec::new();
    for policy in ["static", "ranked"] {
        let folder = Path::new("/tmp/bench-agreement").join(policy);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let mut scene = Scene::open(&folder, policy)?;
        let mut agreed = 0;
        for (number, members) in sets.iter().enumerate() {
            let outcome = scene
                .start(members)
                .and_then(|()| scene.run_out())
                .with_context(|| format!("set {number} with {policy} scores: {members:?}"))?;
            scene.clear()?;
            let is_agreed = outcome.first == outcome.killed;
            agreed += u32::from(is_agreed);
            eprintln!(
                "set {number:>2}  {policy:<6}  {}  first {}, killed {}; {}",
                if is_agreed { "agrees  " } else { "DISAGREES" },
                outcome.first,
                outcome.killed,
                shown(members, &outcome.scores)
            );
        }
        let (daemon, _stream, _processes) = scene.into_parts();
        daemon.stop()?;
        agreements.push((policy, agreed));
    }
    println!(
        "the kernel's first victim is the ranking's first, the daemon stopped, over {} random pod sets",
        args.sets
    );
    println!("{:<8} {:>8} {:>8}", "", "agreed", "share");
    for (policy, agreed) in &agreements {
        println!(
            "{policy:<8} {agreed:>5}/{:<2} {:>6.0} %",
            args.sets,
            100.0 * f64::from(*agreed) / f64::from(args.sets)
        );
    }
    let ranked = agreements.iter().find(|(policy, _)| *policy == "ranked");
    ensure!(ranked.is_some(), "nothing was measured");
    Ok(ranked.is_some_and(|(_, agreed)| *agreed == args.sets))
}

/// Three to six pods of any class but Guaranteed, of one to three processes each.
fn draw(set: u32, random: &mut Random) -> Vec<Member> {
    loop {
        let count = 3 + random.below(4);
        let mut members = Vec::new();
        for number in 0..count {
            let requests = [0, 0, 16, 64, 128, 256];
            let holds_mib = 16 + random.below(280);
            let processes = 1 + random.below(3);
            members.push(Member {
                name: format!("set{set}-pod{number}"),
                priority: random.one_of(&[-10, 0, 0, 10]),
                request_mib: random.one_of(&requests),
                processes_mib: vec![(holds_mib / processes).max(4); usize::try_from(processes).unwrap_or(1)],
            });
        }
        let whole_mib: u64 = members.iter().map(Member::holds_mib).sum();
        if whole_mib <= MOST_MIB && is_clear(&members) {
            return members;
        }
    }
}

/// Whether it is clear who is first, whatever a program takes beyond what it is to hold.
fn is_clear(members: &[Member]) -> bool {
    let above = |member: &Member| member.holds_mib().checked_sub(member.request_mib);
    if members.iter().any(|member| member.holds_mib().abs_diff(member.request_mib) < APART_MIB) {
        return false;
    }
    let exceeding = || members.iter().filter(|member| above(member).is_some());
    let Some(lowest) = exceeding().map(|member| member.priority).min() else { return false };
    let mut most: Vec<u64> =
        exceeding().filter(|member| member.priority == lowest).filter_map(above).collect();
    most.sort_unstable_by(|left, right| right.cmp(left));
    match most.as_slice() {
        [first, second, ..] => first - second >= APART_MIB,
        [_] => true,
        [] => false,
    }
}

fn shown(members: &[Member], scores: &[(String, i32)]) -> String {
    let shown = members.iter().map(|member| {
        let score = scores.iter().find(|(name, _)| *name == member.name).map_or(0, |(_, score)| *score);
        let name = member.name.rsplit('-').next().unwrap_or(&member.name);
        format!(
            "{name} {}/{}Mi in {} priority {}: {score}",
            member.holds_mib(),
            member.request_mib,
            member.processes_mib.len(),
            member.priority
        )
    });
    shown.collect::<Vec<_>>().join(", ")
}
