//! How long each tier of tests may take.
use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, ensure};

use crate::places::Places;

/// The file, below the root of the repository.
pub(crate) const FILE: &str = ".ci/budget";

/// The maximum time of each tier, by its name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Budget(BTreeMap<String, Duration>);

impl Budget {
    /// Reads the file.
    pub(crate) fn read(places: &Places) -> anyhow::Result<Self> {
        let path = places.root.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut tiers = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let expected = || format!("expected `TIER MINUTES`, found `{line}`");
            let (tier, minutes) = line.split_once(' ').with_context(expected)?;
            let minutes: u64 = minutes.trim().parse().with_context(expected)?;
            let before = tiers.insert(tier.to_owned(), Duration::from_secs(minutes * 60));
            ensure!(before.is_none(), "the tier `{tier}` stands there twice");
        }
        Ok(Self(tiers))
    }

    /// A line for each tier that ran, and the tiers that exceeded their budget by half, or have none. Each budget is
    /// multiplied by `slowness`.
    pub(crate) fn judge(&self, taken: &BTreeMap<String, Duration>, slowness: f64) -> (String, Vec<String>) {
        let (mut table, mut over) =
            (format!("{:<14} {:>8} {:>10}\n", "tier", "took s", "budget s"), Vec::new());
        for (tier, took) in taken {
            let budget = self.0.get(tier).copied();
            let shown = budget.map_or_else(|| "none".to_owned(), |budget| budget.as_secs().to_string());
            let exceeded = budget.is_none_or(|budget| *took > budget.mul_f64(1.5 * slowness));
            let verdict = if exceeded { "  TOO LONG" } else { "" };
            table.push_str(&format!("{tier:<14} {:>8.0} {shown:>10}{verdict}\n", took.as_secs_f64()));
            if exceeded {
                over.push(format!(
                    "{tier} takes {:.0} s, of a budget of {shown} s in {FILE}",
                    took.as_secs_f64()
                ));
            }
        }
        (table, over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_fails_that_takes_half_as_long_again_as_it_may() {
        let budget = Budget::parse("# minutes\nhost 2\nkernel 10\n").unwrap();
        let taken = |tiers: &[(&str, u64)], slowness| {
            let taken =
                tiers.iter().map(|(tier, seconds)| ((*tier).to_owned(), Duration::from_secs(*seconds)));
            budget.judge(&taken.collect(), slowness).1
        };
        assert!(taken(&[("host", 180), ("kernel", 900)], 1.0).is_empty());
        assert_eq!(taken(&[("host", 181)], 1.0), ["host takes 181 s, of a budget of 120 s in .ci/budget"]);
        assert_eq!(taken(&[("systemd", 1)], 1.0), ["systemd takes 1 s, of a budget of none s in .ci/budget"]);
        assert!(taken(&[("host", 360)], 2.0).is_empty(), "a machine that is half as fast");
        assert_eq!(taken(&[("host", 361)], 2.0).len(), 1);
    }

    #[test]
    fn the_budget_names_every_tier_and_stays_within_45_minutes() {
        let Budget(tiers) = Budget::parse(include_str!("../../.ci/budget")).unwrap();
        assert_eq!(
            tiers.keys().collect::<Vec<_>>(),
            [
                "checks",
                "daemon",
                "exclusive",
                "host",
                "kernel",
                "kube",
                "numa",
                "systemd",
                "whole",
                "without_memory",
                "without_pids"
            ]
        );
        assert!(tiers["whole"] <= Duration::from_mins(45));
    }

    #[test]
    fn a_line_that_is_no_budget_is_named() {
        let error = |text: &str| format!("{:#}", Budget::parse(text).unwrap_err());
        assert!(error("host\n").starts_with("expected `TIER MINUTES`, found `host`"));
        assert!(error("host ten\n").starts_with("expected `TIER MINUTES`, found `host ten`"));
        assert_eq!(error("host 1\nhost 2\n"), "the tier `host` stands there twice");
    }
}
