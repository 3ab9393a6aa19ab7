//! Reports to the Kubernetes API server as Events, so that `kubectl describe` explains a pod's death.

mod evictions;
mod report;
mod series;

use std::time::{Duration, Instant};

use enforcer_events::Event;

pub(in crate::sink) use self::report::{Optional, TYPES};
use self::{
    evictions::Evictions,
    series::{Delivery, Series},
};
use super::{
    feed::Item,
    run::{Outlet, Trouble},
};
use crate::{
    journal::Journal,
    kube::{ApiServer, Call, Lane, Outcome, Report},
    network::Bounds,
};

/// The outlet of the sink `kubernetes`.
pub(super) struct Kubernetes {
    optional: Optional,
    server: ApiServer,
    evictions: Evictions,
    series: Series,
    present: Present,
}

/// How far the present item got: it is delivered again if the server is away in the middle of its Events.
#[derive(Default)]
struct Present {
    /// Its position.
    sequence: u64,
    /// How many of its Events are settled.
    settled: usize,
    /// Why one of them is refused for ever.
    refusal: Option<Trouble>,
}

impl Kubernetes {
    pub(super) fn new(optional: Optional, server: ApiServer, journal: Journal) -> Self {
        Self {
            optional,
            server,
            evictions: Evictions::new(journal),
            series: Series::default(),
            present: Present::default(),
        }
    }

    async fn ask(&self, call: Call) -> Result<Outcome, Trouble> {
        let later = |why: String, after| Trouble::Later { why, after };
        match self.server.ask(Lane::Events, call).await.map_err(|why| later(why, None))? {
            Outcome::Refused { status, words, after_ms } => {
                let why = format!("the API server answers {status}: {words}");
                // What it will not take keeps no other back.
                if is_for_ever(status, &words) {
                    return Err(Trouble::Never { why });
                }
                Err(later(why, after_ms.map(Duration::from_millis)))
            }
            Outcome::Failed(why) => Err(later(why, None)),
            outcome => Ok(outcome),
        }
    }

    async fn report(&mut self, report: Report) -> Result<(), Trouble> {
        let now = Instant::now();
        match self.series.next(&report, now) {
            Delivery::Suppressed => {}
            Delivery::New => {
                let (about, reason, name) =
                    (report.about.clone(), report.reason.clone(), report.name.clone());
                match self.ask(Call::Report(Box::new(report))).await? {
                    // The namespace is gone, and all that was in it.
                    Outcome::Missing => {}
                    // It is there: an answer was lost, or the cursor.
                    _ => self.series.begun((about, reason), name, now),
                }
            }
            Delivery::Again { name, count } => {
                let namespace = report.about.namespace().to_owned();
                let call = Call::Repeat { namespace, name, count, time_ms: report.time_ms };
                match self.ask(call).await? {
                    // It is kept for an hour, and may have been deleted before.
                    Outcome::Missing => {
                        self.series.forget(&report);
                        return Box::pin(self.report(report)).await;
                    }
                    _ => self.series.repeated(&report, now),
                }
            }
        }
        Ok(())
    }
}

/// Whether the API server will never take the Event that it refuses so. A missing right is waited for; a namespace
/// that is being deleted, a quota, a webhook or a policy refuses some Events, and not others.
fn is_for_ever(status: u16, words: &str) -> bool {
    // `ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s`, whose names may be longer than what is
    // kept of the words; the policy has 401, 403, 413 or 422 for a reason.
    let reasons = [
        "because it is being terminated",
        "exceeded quota",
        "denied the request",
        "denied request: ",
        "ValidatingAdmissionPolicy '",
    ];
    match status {
        400 | 413 | 422 => true,
        401 | 403 => reasons.iter().any(|reason| words.contains(reason)),
        _ => false,
    }
}

impl Outlet for Kubernetes {
    const BACK_OFF: Bounds = Bounds { least: Duration::from_secs(1), most: Duration::from_mins(1) };

    fn limits(&self) -> (usize, usize) {
        (1, usize::MAX)
    }

    async fn deliver(&mut self, items: &[Item]) -> Result<usize, Trouble> {
        let Some(item) = items.first() else { return Ok(0) };
        // A gap is for readers that need every event.
        if !item.is_gap
            && let Ok(event) = Event::parse(&item.line)
        {
            let evicted = self.evictions.take(item.first, &event);
            if self.present.sequence != item.first {
                self.present = Present { sequence: item.first, ..Present::default() };
            }
            let reports = report::reports(&event, evicted, &self.server.node(), self.optional);
            for report in reports.into_iter().skip(self.present.settled) {
                match self.report(report).await {
                    Ok(()) => {}
                    // What is refused of one namespace keeps no Event of another back.
                    Err(never @ Trouble::Never { .. }) => self.present.refusal = Some(never),
                    Err(later) => return Err(later),
                }
                self.present.settled += 1;
            }
        }
        self.present.refusal.take().map_or(Ok(1), Err)
    }
}

#[cfg(test)]
mod tests;
