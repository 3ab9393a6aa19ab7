//! Whether any threshold of a configuration can have a pod evicted, and what to write if none can.

use super::{Config, Mode};
use crate::policy::{
    engine::Resource,
    threshold::{Signal, Threshold, ThresholdValue},
};

/// What to write instead of a configuration that evicts no pod.
const REMEDY: &str = "write evictionHard.memory.available, such as 200Mi; if no pod is to be evicted, write mode: observe, or, \
                      to enforce limits all the same, breaker: {maxKills: 0} beside a threshold";

impl Config {
    /// Why no pod will ever be evicted, and what to write; `None` if one may be, or if the mode says that none is to be.
    ///
    /// `controllers` are those of this machine's cgroups, if they are known: without its controller, what a pod uses of a
    /// resource is unknown.
    #[must_use]
    pub fn idle(&self, controllers: Option<&[String]>) -> Option<String> {
        if self.mode == Mode::Observe {
            return None;
        }
        let set: Vec<_> = self
            .settings
            .eviction
            .thresholds
            .iter()
            .filter(|threshold| !is_nothing(threshold.value))
            .collect();
        let watched: Vec<_> =
            set.iter().copied().filter(|threshold| Resource::of(threshold.signal).is_some()).collect();
        if watched.is_empty() {
            let place = self.value_sources.of("evictionHard");
            let reason = match set.as_slice() {
                [] => String::from("evictionHard: no threshold is left"),
                disks => format!("{}: disks are not watched, and there is no other threshold", fields(disks)),
            };
            return Some(format!("{place}: {reason}, so no pod is ever evicted: {REMEDY}"));
        }
        let controllers = controllers?;
        let is_counted = |threshold: &&Threshold| {
            let needed = Resource::of(threshold.signal).map(controller);
            controllers.iter().any(|name| Some(name.as_str()) == needed)
        };
        (!watched.iter().any(is_counted)).then(|| {
            format!(
                "{}: this machine's cgroups lack the controller that counts what pods use, so no pod is ever evicted: \
                 enforcer doctor says how to get it",
                fields(&watched)
            )
        })
    }

    /// That every kill is forbidden, as a sentence; `None` if some are allowed.
    #[must_use]
    pub fn forbidden_kills(&self) -> Option<String> {
        (self.mode != Mode::Observe && self.settings.eviction.breaker.max_kills == 0).then(|| {
            String::from("breaker.maxKills: is 0: evictions are decided and reported, and no pod is evicted")
        })
    }
}

/// Whether there is never less than that.
fn is_nothing(value: ThresholdValue) -> bool {
    match value {
        ThresholdValue::Amount(amount) => amount == 0,
        ThresholdValue::Share(share) => share <= 0.0,
    }
}

/// The controller that counts what a pod uses of a resource.
fn controller(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => "memory",
        Resource::Pids => "pids",
    }
}

/// The thresholds as fields of a file, without the one that follows from another.
fn fields(thresholds: &[&Threshold]) -> String {
    let has_memory = thresholds.iter().any(|threshold| threshold.signal == Signal::MemoryAvailable);
    let follows = |threshold: &Threshold| {
        has_memory && threshold.signal == Signal::AllocatableMemoryAvailable && threshold.is_hard()
    };
    let fields = thresholds.iter().filter(|threshold| !follows(threshold)).map(|threshold| {
        let map = if threshold.is_hard() { "evictionHard" } else { "evictionSoft" };
        format!("{map}.{}", threshold.signal)
    });
    fields.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFT: &str =
        "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\n";

    fn config(mode: &str, text: &str) -> Config {
        let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";
        Config::parse("c.yaml", &format!("{head}mode: {mode}\n{text}")).unwrap()
    }

    #[test]
    fn a_configuration_without_a_watched_threshold_evicts_no_pod() {
        let only_disks = "c.yaml:4: evictionHard.nodefs.available: disks are not watched, and there is no other threshold, ";
        let none = "c.yaml:4: evictionHard: no threshold is left, ";
        for (text, reason) in [
            (String::new(), None),
            (String::from("evictionHard: {}\n"), Some(none)),
            (String::from("evictionHard: {memory.available: 0%}\n"), Some(none)),
            (String::from("evictionHard: {memory.available: 0.0%, pid.available: 100%}\n"), Some(none)),
            (String::from("evictionHard: {nodefs.available: 10%}\n"), Some(only_disks)),
            (String::from("evictionHard: {memory.available: 0%, nodefs.available: 10%}\n"), Some(only_disks)),
            (String::from("evictionHard: {pid.available: 10%}\n"), None),
            (String::from("evictionHard: {memory.available: 0%, allocatableMemory.available: 1Mi}\n"), None),
            (format!("evictionHard: {{}}\n{SOFT}"), None),
            (String::from("evictionHard: {}\nmergeDefaultEvictionSettings: true\n"), None),
            // That is a choice, and noted.
            (String::from("breaker: {maxKills: 0}\n"), None),
            (String::from("evictionHard: {}\nbreaker: {maxKills: 0}\n"), Some(none)),
        ] {
            for mode in ["dry-run", "enforce"] {
                let found = config(mode, &text).idle(None);
                let begins =
                    found.as_deref().map(|found| reason.is_some_and(|reason| found.starts_with(reason)));
                assert_eq!(begins, reason.map(|_| true), "{mode}, {text}: {found:?}");
                assert!(found.is_none_or(|found| found.contains("write evictionHard.memory.available")));
            }
            assert_eq!(config("observe", &text).idle(None), None, "{text}: it is meant");
        }
    }

    #[test]
    fn a_resource_without_its_controller_evicts_no_pod() {
        let both = "evictionHard: {memory.available: 1Mi, pid.available: 1%}\n";
        let pids = "evictionHard: {pid.available: 1%}\n";
        for (text, controllers, fields) in [
            ("", &["cpu", "memory"][..], None),
            ("", &["cpu", "pids"], Some("evictionHard.memory.available: this ")),
            (both, &["pids"], None),
            (both, &["memory"], None),
            (both, &["cpu"], Some("evictionHard.memory.available, evictionHard.pid.available: ")),
            (pids, &["memory"], Some("evictionHard.pid.available: ")),
        ] {
            let controllers: Vec<_> = controllers.iter().map(|name| (*name).to_owned()).collect();
            let found = config("enforce", text).idle(Some(&controllers));
            let begins = found.as_deref().map(|found| fields.is_some_and(|fields| found.starts_with(fields)));
            assert_eq!(begins, fields.map(|_| true), "{text}, {controllers:?}: {found:?}");
        }
    }

    #[test]
    fn a_breaker_that_allows_no_kill_is_noted_unless_none_is_meant() {
        let noted = |mode: &str, most: u16| {
            config(mode, &format!("breaker: {{maxKills: {most}}}\n")).forbidden_kills().is_some()
        };
        assert_eq!(["observe", "dry-run", "enforce"].map(|mode| noted(mode, 0)), [false, true, true]);
        assert!(!noted("enforce", 1));
    }
}
