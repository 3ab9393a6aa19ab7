//! The key `hook` of an eviction's events: the program that ran before its signal.

use enforcer_events::eviction::Hook;
use ulid::Ulid;

use super::milliseconds;
use crate::{
    evict::hook::HookRun,
    policy::engine::{HookEnd, HookPlan},
};

/// The plan as in `eviction.decided`; `None` without one.
pub(super) fn planned(plan: HookPlan) -> Option<Hook> {
    match plan {
        HookPlan::Off => None,
        HookPlan::NoTime => Some(Hook { skipped: Some("noTime".into()), ..Hook::default() }),
        HookPlan::Awaited { for_ns } => {
            Some(Hook { allowed_ms: Some(for_ns / 1_000_000), ..Hook::default() })
        }
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
                let reported = run(plan, ran);
                let outcome = reported.outcome.as_deref().unwrap_or("unknown");
                tracing::info!("the preKillHook of eviction {id} ended after it: {outcome}");
            }
        }
    }

    /// The data for the signal's event; the signal came `waited_ns` after the decision. It cut the run short unless the
    /// run had ended.
    pub(super) fn signalled(&mut self, id: Ulid, waited_ns: u64) -> Option<Hook> {
        let note = self.0.as_ref().filter(|note| note.id == id)?;
        if note.ran.is_some() {
            return self.take(id);
        }
        let is_over = matches!(note.plan, HookPlan::Awaited { for_ns } if waited_ns >= for_ns);
        let end = if is_over { HookEnd::TimedOut } else { HookEnd::Cut };
        Some(ended(note.plan, end))
    }

    /// The data for the event of the eviction's end; `None` if all is already reported.
    pub(super) fn over(&mut self, id: Ulid, is_signalled: bool) -> Option<Hook> {
        if let Some(reported) = self.take(id) {
            return Some(reported);
        }
        let note = self.0.take_if(|note| note.id == id)?;
        // The victim ended by itself or is spared; the run still goes on or is just ending.
        (!is_signalled).then(|| Hook {
            outcome: Some("running".into()),
            message: Some(String::from("it had not ended yet; the daemon's log shows its end")),
            ..planned(note.plan).unwrap_or_default()
        })
    }

    fn take(&mut self, id: Ulid) -> Option<Hook> {
        let Note { plan, ran, .. } = self.0.take_if(|note| note.id == id && note.ran.is_some())?;
        Some(run(plan, &ran?))
    }
}

fn run(plan: HookPlan, ran: &HookRun) -> Hook {
    let HookRun { end, ran_ns, output, output_bytes } = ran;
    Hook {
        ran_ms: Some(milliseconds(0, *ran_ns)),
        output: Some(output.clone()),
        output_bytes: Some(*output_bytes),
        ..ended(plan, *end)
    }
}

/// A run with such an end.
fn ended(plan: HookPlan, end: HookEnd) -> Hook {
    let hook = Hook { outcome: Some(end.as_str().into()), ..planned(plan).unwrap_or_default() };
    let message = match end {
        HookEnd::Exited(status) => return Hook { exit_status: Some(status), ..hook },
        HookEnd::Signalled(signal) => return Hook { died_of_signal: Some(signal), ..hook },
        HookEnd::Unstarted(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        HookEnd::TimedOut => String::from("it ran out of time and was killed"),
        HookEnd::Cut => String::from("the eviction could not wait any longer: it was killed or not started"),
        HookEnd::Busy => String::from("it was not started: an earlier one is stuck, or no time was left"),
        HookEnd::Unsafe => {
            String::from("it was not started: others than root can change it; see the daemon's log")
        }
        HookEnd::Unset => String::from("it was not started: preKillHook is no longer set"),
    };
    Hook { message: Some(message), ..hook }
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
        let expected = Hook {
            allowed_ms: Some(2000),
            outcome: Some("exited".into()),
            exit_status: Some(3),
            ran_ms: Some(1.5),
            output: Some(String::from("a\n")),
            output_bytes: Some(2),
            ..Hook::default()
        };
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
            assert_eq!((reported.outcome.as_deref(), reported.allowed_ms), (Some(outcome), Some(2000)));
            assert_eq!(reported.output, None);
            unreported.ended(id(1), PLAN, &ran(HookEnd::Cut));
            assert_eq!(unreported.over(id(1), true).unwrap().output.as_deref(), Some("a\n"));
        }
    }

    #[test]
    fn one_that_outlives_its_eviction_is_reported_as_running() {
        let mut unreported = HookNotes::default();
        unreported.decided(id(1), PLAN);
        assert_eq!(unreported.over(id(1), false).unwrap().outcome.as_deref(), Some("running"));
        unreported.ended(id(1), PLAN, &ran(HookEnd::TimedOut));
        unreported.decided(id(2), PLAN);
        assert_eq!(
            unreported.signalled(id(2), 2_000_000_000).unwrap().outcome.as_deref(),
            Some("timedOut"),
            "that of the other"
        );
        assert_eq!(unreported.over(id(2), true), None, "it was reported before");
    }

    #[test]
    fn where_none_is_run_there_is_nothing_to_emit() {
        let mut unreported = HookNotes::default();
        for plan in [HookPlan::Off, HookPlan::NoTime] {
            unreported.decided(id(1), plan);
            assert_eq!(unreported.signalled(id(1), 0), None);
            assert_eq!(unreported.over(id(1), false), None);
        }
        let skipped = Hook { skipped: Some("noTime".into()), ..Hook::default() };
        assert_eq!(planned(HookPlan::NoTime), Some(skipped));
    }
}
