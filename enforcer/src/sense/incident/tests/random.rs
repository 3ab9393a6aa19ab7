//! Whatever comes, in whatever order.
use super::*;

/// A record of a small world, so that inputs meet.
fn any_record() -> impl Strategy<Value = Record> {
    let cgroup = prop_oneof![Just(None), (1_u64..24).prop_map(|id| Some(CgroupId(id)))];
    let limit = prop_oneof![
        Just(None),
        Just(Some(Limited::Machine)),
        (1_u64..24).prop_map(|id| Some(Limited::Cgroup(CgroupId(id))))
    ];
    let killed = prop_oneof![Just(None), any::<bool>().prop_map(Some)];
    let marked = (any::<bool>(), 1_u32..6, 1_u32..4, cgroup, limit, killed).prop_map(
        |(with_pid, pid, trigger, cgroup, limit, killed)| {
            let pid = with_pid.then_some(pid);
            let trigger = Task { tid: trigger, ..mark().trigger };
            let tid = pid.unwrap_or(1);
            Record::Mark(Mark { tid, pid, cgroup, killed, trigger, limit, ..mark() })
        },
    );
    prop_oneof![marked, (1_u32..6).prop_map(|pid| Record::Exit(exit(0, pid)))]
}

proptest! {
    /// Whatever comes: each detected incident is closed exactly once and in time, and each kill that is
    /// counted is reported at most once.
    #[test]
    fn every_incident_closes_once(
        steps in proptest::collection::vec((0_u64..80, any_record(), any::<bool>()), 1..60),
    ) {
        let mut machine = Machine::new();
        let mut now_ns = 1_000 * MS;
        let mut reported = Vec::new();
        let mut kills = 0;
        for (wait_ms, mut record, counted) in steps {
            now_ns += wait_ms * MS;
            match &mut record {
                Record::Mark(mark) => {
                    mark.time_ns = now_ns;
                    if counted && let Some(cgroup) = mark.cgroup.filter(|cgroup| path(*cgroup).is_some()) {
                        machine.count(cgroup, 0, 1, 0);
                        kills += 1;
                    }
                }
                Record::Exit(exit) => exit.time_ns = now_ns,
                _ => {}
            }
            reported.extend(machine.emit(now_ns, Input::Record(record)));
        }
        reported.extend(machine.until(now_ns + 2 * CLOSE_NS));
        prop_assert_eq!(machine.incidents.open(), 0);
        let mut open = HashSet::new();
        let mut counted = 0;
        for output in reported {
            match output {
                Output::Detected(detected) => { open.insert(detected.incident_id); }
                Output::Incident(incident) => {
                    prop_assert!(open.remove(&incident.incident_id));
                    counted += incident.counters.oom_kill;
                }
                Output::Averted(averted) => if let Some(id) = averted.incident_id {
                    prop_assert!(open.remove(&id));
                },
                Output::ReadCounters { .. } => {}
            }
        }
        prop_assert!(open.is_empty());
        prop_assert!(counted <= kills, "{} reported of {}", counted, kills);
    }
}
