//! The key `hook` of an eviction's events: the program that ran before its signal.

use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::milliseconds;
use crate::{
    evict::hook::HookRun,
    policy::engine::{HookEnd, HookPlan},
};

/// The plan as in `eviction.decided`; `None` without one.
pub(super) fn planned(plan: HookPlan) -> Option<Value> {
    match plan {
        HookPlan::Off => None,
        HookPlan::NoTime => Some(json!({"skipped": "noTime"})),
        HookPlan::Awaited { for_ns } => Some(json!({"allowedMs": for_ns / 1_000_000})),
    }
}

/// The run for the current eviction, until it is reported; there is one eviction at a time.
///
/// A run that ends before the signal is reported with it. The outcome of a run that the signal cut short is known a
/// moment later, and is reported with the eviction's end.
#[derive(Clone, Debug, Default)]
pub(super) struct HookNotes(Option<Note>);

#[derive(Clone, Debug)]
struct Note {
    id: Ulid,
    plan: HookPlan,
    ran: Option<HookRun>,
}

impl HookNotes {
    pub(super) fn decided(&mut self, id: Ulid, plan: HookPlan) {
        let is_awaited = matches!(plan, HookPlan::Awaited { .. });
        self.0 = is_awaited.then_some(Note { id, plan, ran: None });
    }

    /// Records that the run has ended.
    pub(super) fn ended(&mut self, id: Ulid, plan: HookPlan, ran: &HookRun) {
        match &mut self.0 {
            Some(note) if note.id == id => note.ran = Some(ran.clone()),
            // The report of its decision was dropped, or the eviction ended before the run.
            Some(_) | None => {
                let reported = Value::Object(run(plan, ran));
                tracing::info!(eviction = %id, hook = %reported, "preKillHook ended after its eviction");
            }
        }
    }

    /// The data for the signal's event; the signal came `waited_ns` after the decision. It cut the run short unless the
    /// run had ended.
    pub(super) fn signalled(&mut self, id: Ulid, waited_ns: u64) -> Option<Value> {
        let note = self.0.as_ref().filter(|note| note.id == id)?;
        if note.ran.is_some() {
            return self.take(id);
        }
        let is_over = matches!(note.plan, HookPlan::Awaited { for_ns } if waited_ns >= for_ns);
        let end = if is_over { HookEnd::TimedOut } else { HookEnd::Cut };
        let mut reported = allowed(note.plan);
        reported.extend([(String::from("outcome"), json!(end.as_str())), message(end)]);
        Some(Value::Object(reported))
    }

    /// The data for the event of the eviction's end; `None` if all is already reported.
    pub(super) fn over(&mut self, id: Ulid, is_signalled: bool) -> Option<Value> {
        if let Some(reported) = self.take(id) {
            return Some(reported);
        }
        let note = self.0.take_if(|note| note.id == id)?;
        // The victim ended by itself or is spared; the run still goes on or is just ending.
        (!is_signalled).then(|| {
            let mut reported = allowed(note.plan);
            reported.insert("outcome".into(), json!("running"));
            reported.insert("message".into(), json!("it had not ended yet; the daemon's log shows its end"));
            Value::Object(reported)
        })
    }

    fn take(&mut self, id: Ulid) -> Option<Value> {
        let Note { plan, ran, .. } = self.0.take_if(|note| note.id == id && note.ran.is_some())?;
        Some(Value::Object(run(plan, &ran?)))
    }
}

fn allowed(plan: HookPlan) -> Map<String, Value> {
    match planned(plan) {
        Some(Value::Object(data)) => data,
        Some(_) | None => Map::new(),
    }
}

fn run(plan: HookPlan, ran: &HookRun) -> Map<String, Value> {
    let HookRun { end, ran_ns, output, output_bytes } = ran;
    let mut data = allowed(plan);
    data.extend([
        (String::from("outcome"), json!(end.as_str())),
        (String::from("ranMs"), milliseconds(0, *ran_ns)),
        (String::from("output"), json!(output)),
        (String::from("outputBytes"), json!(output_bytes)),
        message(*end),
    ]);
    data
}

/// The key and value that describe such an end.
fn message(end: HookEnd) -> (String, Value) {
    let (key, value) = match end {
        HookEnd::Exited(status) => ("exitStatus", json!(status)),
        HookEnd::Signalled(signal) => ("diedOfSignal", json!(signal)),
        HookEnd::Unstarted(errno) => ("message", json!(std::io::Error::from_raw_os_error(errno).to_string())),
        HookEnd::TimedOut => ("message", json!("it ran out of time and was killed")),
        HookEnd::Cut => {
            ("message", json!("the eviction could not wait any longer: it was killed or not started"))
        }
        HookEnd::Busy => {
            ("message", json!("it was not started: an earlier one is stuck, or no time was left"))
        }
        HookEnd::Unsafe => {
            ("message", json!("it was not started: others than root can change it; see the daemon's log"))
        }
        HookEnd::Unset => ("message", json!("it was not started: preKillHook is no longer set")),
    };
    (key.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: HookPlan = HookPlan::Awaited { for_ns: 2_000_000_000 };

    fn id(number: u128) -> Ulid {
        Ulid::from_parts(1, number)
    }

    fn ran(end: HookEnd) -> HookRun {
        HookRun { end, ran_ns: 1_500_000, output: String::from("a\n"), output_bytes: 2 }
    }

    #[test]
    fn what_ends_before_the_signal_is_reported_with_it_and_once() {
        let mut unreported = HookNotes::default();
        unreported.decided(id(1), PLAN);
        unreported.ended(id(1), PLAN, &ran(HookEnd::Exited(3)));
        let reported = unreported.signalled(id(1), 0);
        let expected = json!({
            "allowedMs": 2000, "outcome": "exited", "exitStatus": 3, "ranMs": 1.5, "output": "a\n", "outputBytes": 2,
        });
        assert_eq!(reported, Some(expected));
        assert_eq!(unreported.signalled(id(1), 0), None);
        assert_eq!(unreported.over(id(1), true), None);
    }

    #[test]
    fn what_the_signal_has_cut_is_reported_in_full_at_the_end() {
        for (waited_ns, outcome) in [(2_000_000_000, "timedOut"), (1_999_999_999, "cut")] {
            let mut unreported = HookNotes::default();
            unreported.decided(id(1), PLAN);
            let reported = unreported.signalled(id(1), waited_ns).unwrap();
            assert_eq!((&reported["outcome"], &reported["allowedMs"]), (&json!(outcome), &json!(2000)));
            assert!(reported["output"].is_null());
            unreported.ended(id(1), PLAN, &ran(HookEnd::Cut));
            assert_eq!(unreported.over(id(1), true).unwrap()["output"], "a\n");
        }
    }

    #[test]
    fn one_that_outlives_its_eviction_is_reported_as_running() {
        let mut unreported = HookNotes::default();
        unreported.decided(id(1), PLAN);
        assert_eq!(unreported.over(id(1), false).unwrap()["outcome"], "running");
        unreported.ended(id(1), PLAN, &ran(HookEnd::TimedOut));
        unreported.decided(id(2), PLAN);
        assert_eq!(
            unreported.signalled(id(2), 2_000_000_000).unwrap()["outcome"],
            "timedOut",
            "that of the other"
        );
        assert_eq!(unreported.over(id(2), true), None, "told before");
    }

    #[test]
    fn where_none_is_run_there_is_nothing_to_emit() {
        let mut unreported = HookNotes::default();
        for plan in [HookPlan::Off, HookPlan::NoTime] {
            unreported.decided(id(1), plan);
            assert_eq!(unreported.signalled(id(1), 0), None);
            assert_eq!(unreported.over(id(1), false), None);
        }
        assert_eq!(planned(HookPlan::NoTime), Some(json!({"skipped": "noTime"})));
    }
}
