//! Configurations, and the thresholds and durations in them.

use std::time::Duration;

use enforcer::{
    config::{Config, Effective, Error, FIELDS, Problem},
    model::Quantity,
    policy::{
        duration,
        threshold::{self, Threshold, ThresholdValue, Written},
    },
};

use super::{
    plan,
    text::{check_message, line_count},
};

/// The bytes are a configuration file; its lines are thresholds and durations as well.
pub fn check(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    check_file(text);
    check_kubelets(text);
    for line in short_lines(text) {
        let value = line.split_once(':').map_or(line, |(_, value)| value.trim());
        check_duration(value);
        check_threshold(value);
    }
    check_maps(text);
}

/// A value repeats itself in its message; the file's messages are cut, those of the rules below it are not.
fn short_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().take(64).filter(|line| line.len() <= 500)
}

/// The same text as a kubelet's file: errors are reported in the same way, and what is passed over stands in it.
fn check_kubelets(text: &str) {
    let lines = line_count(text.as_bytes());
    match Effective::parse(None, Some(("fuzz.yaml", text))) {
        Ok(Effective { config, origins, ignored }) => {
            assert!(
                origins
                    .values()
                    .chain(ignored.iter().map(|ignored| &ignored.origin))
                    .all(|origin| (1..=lines).contains(&origin.line))
            );
            for field in FIELDS {
                // What is shown must not panic, whatever was read.
                drop((field.show)(&config));
            }
        }
        Err(Error::Invalid { problems }) => check_problems(&problems, lines),
        Err(other) => panic!("nothing is read from a disk: {other}"),
    }
}

fn check_problems(problems: &[Problem], lines: u64) {
    assert!(!problems.is_empty(), "refused without a reason");
    for problem in problems {
        check_message(&problem.to_string());
        assert!((1..=lines).contains(&problem.line), "line {} of {lines}", problem.line);
    }
}

fn check_file(text: &str) {
    let lines = line_count(text.as_bytes());
    match Config::parse("fuzz.yaml", text) {
        Ok(config) => {
            let again = Config::parse("fuzz.yaml", text).map(|again| again.hash());
            assert_eq!(again.ok(), Some(config.hash()), "read twice, it says two things");
            assert!(config.state_dir.is_absolute() && config.run_dir.is_absolute());
            let settings = &config.settings;
            assert!((1_000..=1_000_000).contains(&settings.cpu_cfs_quota_period_us));
            assert!(settings.memory_throttling_factor.is_none_or(|factor| factor > 0.0 && factor <= 1.0));
            settings.eviction.thresholds.iter().for_each(check_whole);
            let reserved = settings.system_reserved.values().chain(settings.kube_reserved.values());
            assert!(reserved.copied().all(|amount| !Quantity::is_negative(amount)));
            plan::check(&plan::node(), settings, &[]);
        }
        Err(Error::Invalid { problems }) => check_problems(&problems, lines),
        Err(other) => panic!("nothing is read from a disk: {other}"),
    }
}

fn check_whole(threshold: &Threshold) {
    check_value(threshold.value, false);
    if let Some(reclaim) = threshold.min_reclaim {
        check_value(reclaim, true);
    }
}

fn check_value(value: ThresholdValue, may_be_nothing: bool) {
    match value {
        ThresholdValue::Amount(amount) => assert!(amount > 0 || may_be_nothing),
        ThresholdValue::Share(share) => assert!((0.0..=1.0).contains(&share), "{share}"),
    }
    let capacity = 16 << 30;
    if let ThresholdValue::Share(_) = value {
        assert!(value.amount(capacity) <= capacity, "{value} of {capacity}");
        assert!(!value.to_string().is_empty());
    }
}

fn check_duration(text: &str) {
    match duration::parse(text) {
        Ok(read) => {
            let nanoseconds = format!("{}ns", read.as_nanos());
            assert_eq!(duration::parse(&nanoseconds), Ok(read), "{text:?}");
            assert!(read <= Duration::from_nanos(i64::MAX.unsigned_abs()));
        }
        Err(error) => check_message(&error.to_string()),
    }
}

fn check_threshold(text: &str) {
    match threshold::parse(text) {
        Ok(Some(value)) => {
            check_value(value, false);
            // What is shown is read as the same.
            if let ThresholdValue::Amount(_) = value {
                assert_eq!(
                    threshold::parse(&value.to_string()),
                    Ok(Some(value)),
                    "{text:?} is shown as {value}"
                );
            }
        }
        Ok(None) => assert!(text == "0%" || text == "100%", "{text:?} switches a threshold off"),
        Err(error) => check_message(&error.to_string()),
    }
    match threshold::parse_minimum_reclaim(text) {
        Ok(value) => check_value(value, true),
        Err(error) => check_message(&error.to_string()),
    }
}

/// The same lines as all four maps, whatever the file's own shape is.
fn check_maps(text: &str) {
    let entries: Vec<(String, String)> = short_lines(text)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect();
    for merge_defaults in [false, true] {
        let written = Written {
            hard: Some(&entries),
            soft: &entries,
            soft_grace_period: &entries,
            minimum_reclaim: &entries,
            merge_defaults,
            enforce_pods: true,
        };
        match threshold::from_configuration(&written) {
            Ok(thresholds) => thresholds.iter().for_each(check_whole),
            Err(wrong) => {
                assert!(!wrong.is_empty(), "refused without a reason");
                assert!(wrong.len() <= 5 * entries.len(), "more is wrong than there is");
                for wrong in wrong {
                    check_message(&wrong.to_string());
                }
            }
        }
        let soft_only = Written { hard: None, soft: &[], minimum_reclaim: &[], ..written };
        if let Ok(thresholds) = threshold::from_configuration(&soft_only) {
            thresholds.iter().for_each(check_whole);
        }
    }
}
