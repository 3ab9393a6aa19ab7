//! The metrics count what is reported of an incident.
use super::*;
use crate::{
    journal::Journal,
    metrics::{Counts, Format, Gauges, expose},
};

/// The rows of kills that are not 0, once an incident is reported.
fn counted(incident: &Incident) -> Vec<String> {
    let counts = Counts::default();
    let journal = Journal::new("n", "b").observed_by(std::sync::Arc::new(counts.clone()));
    journal.emit(incident.subject(), enforcer_events::Payload::OomIncident(incident.clone()));
    let text = expose(&counts, Gauges::default(), Format::OpenMetrics).unwrap();
    let kills = text.lines().filter(|line| line.starts_with("enforcer_oom_kills_total{"));
    kills.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
}

#[test]
fn the_first_process_of_a_container_and_another_one_are_reported_apart() {
    for (init, survived) in [(Some(true), "false"), (Some(false), "true"), (None, "unknown")] {
        let mut machine = Machine::new();
        machine.count(POD, 1, 0, 0);
        machine.count(C1, 0, 1, 0);
        machine.mark(Mark { container_init: init, ..mark() });
        machine.exit(106 * MS, 398);
        let reported = machine.until(10_000 * MS);
        let row = format!(
            "enforcer_oom_kills_total{{scope=\"pod\",namespace=\"default\",init_survived=\"{survived}\"}} 1"
        );
        assert_eq!(counted(incident(&reported)), [row]);
    }
}

#[test]
fn a_group_kill_leaves_no_process() {
    let mut machine = Machine::new();
    let container = Mark { limit: Some(Limited::Cgroup(C1)), container_init: Some(false), ..mark() };
    machine.count(C1, 1, 4, 1);
    for pid in 398..401 {
        machine.mark(Mark { tid: pid, pid: Some(pid), ..container.clone() });
        machine.exit(101 * MS, pid);
    }
    let reported = machine.until(10_000 * MS);
    let row = r#"enforcer_oom_kills_total{scope="container",namespace="default",init_survived="false"} 3"#;
    assert_eq!(counted(incident(&reported)), [row]);
}
