//! Soft evictions: the API server is asked before anything is signalled here, so that budgets count and the kubelet ends
//! the pod.

use std::time::{Duration, Instant};

use enforcer_events::{Event, EventType, Payload, eviction::EvictionRequested};
use tokio::runtime::Builder;

use super::{
    client::ApiServer,
    message::{Action, Call, Lane, Outcome, PodRef},
    outbox::{ApiSettings, Owner},
};
use crate::{
    clock,
    journal::{Batch, Filter, Journal, Record, Subject},
    model::PodName,
};

/// How long the answers may take in all, with the reading of the credentials. A soft threshold has time, but another soft
/// eviction waits for this one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait before an API server that has too much to do is asked again, if it does not say for how long.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest such wait: it is asked again before the patience ends.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Requests soft evictions.
#[derive(Clone, Debug)]
pub struct SoftEvictions {
    server: ApiServer,
    settings: ApiSettings,
    journal: Journal,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SoftOutcome {
    /// The API server has accepted it, and the kubelet ends the pod.
    Accepted,
    /// A disruption budget does not allow it now.
    Budget,
    /// Nothing is requested for such a pod, the API server does not have it, there is no answer that settles it, or it was
    /// withdrawn before.
    Unanswered,
}

impl SoftEvictions {
    /// Requests through `server`, and reports to `journal`.
    #[must_use]
    pub fn new(server: &ApiServer, settings: ApiSettings, journal: &Journal) -> Self {
        Self { server: server.clone(), settings, journal: journal.clone() }
    }

    /// Requests the end of a pod within `grace`, with one effect at most, and reports the answer under the eviction `id`.
    /// Blocks for seconds at most. What is withdrawn by the time that it could be sent is neither sent nor reported.
    #[must_use]
    pub fn request(
        &self,
        id: &str,
        pod: &PodRef,
        owner: Owner,
        grace: Duration,
        is_withdrawn: &dyn Fn() -> bool,
    ) -> SoftOutcome {
        self.request_until(Instant::now() + PATIENCE, id, pod, owner, grace, is_withdrawn)
    }

    fn request_until(
        &self,
        end: Instant,
        id: &str,
        pod: &PodRef,
        owner: Owner,
        grace: Duration,
        is_withdrawn: &dyn Fn() -> bool,
    ) -> SoftOutcome {
        let action = match self.settings.action(owner) {
            Some(action @ (Action::Evict | Action::Delete)) => action,
            // A status leaves the containers running.
            Some(Action::Status) | None => return SoftOutcome::Unanswered,
        };
        let grace_seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
        let mut requests = 0;
        let begin = self.journal.range().newest;
        let answer = answered(end, self.ask(end, action, pod, grace_seconds, is_withdrawn, &mut requests));
        if requests == 0 && is_withdrawn() {
            return SoftOutcome::Unanswered;
        }
        // The request was not answered, and has been done.
        if matches!(&answer, Ok(Outcome::Found(found)) if found.uid == pod.uid && found.is_terminating) {
            self.report_terminating(id, pod, requests, begin);
            return SoftOutcome::Accepted;
        }
        let (outcome, words) = judge(answer);
        // One without an answer may have been done all the same: then the pod can no longer be spared.
        if outcome == SoftOutcome::Unanswered && is_withdrawn() && self.is_going(pod) {
            self.report_terminating(id, pod, requests, begin);
            return SoftOutcome::Accepted;
        }
        if outcome != SoftOutcome::Accepted {
            self.report_refusal(id, pod, outcome, requests, words);
            return outcome;
        }
        let name = action.as_str();
        let words = format!(
            "the API server accepted the request `{name}`: the kubelet ends the pod within {grace_seconds} s"
        );
        self.report_accepted(id, pod, ("accepted", Some(action), requests), begin, words);
        outcome
    }

    /// Whether an earlier process may have requested it, as the pod is being deleted; that is reported under the eviction
    /// `id`. False if that cannot be found out. Only looks at the pod. Blocks for seconds at most.
    #[must_use]
    pub fn was_requested(&self, id: &str, pod: &PodRef) -> bool {
        let begin = self.journal.range().newest;
        let is_going = self.is_going(pod);
        if is_going {
            self.report_terminating(id, pod, 0, begin);
        }
        is_going
    }

    /// Whether the API server says that the pod is being deleted.
    fn is_going(&self, pod: &PodRef) -> bool {
        let end = Instant::now() + PATIENCE;
        let seen = answered(end, self.server.ask_until(end, Lane::Looks, Call::Look(pod.clone())));
        matches!(&seen, Ok(Outcome::Found(found)) if found.uid == pod.uid && found.is_terminating)
    }

    /// Requests the same as [`Self::request`] after a look at the pod: what is known of it may be old, or an earlier
    /// process may have requested it and did not live to report the answer. Sends nothing if the pod is being deleted, or
    /// if another pod has its name.
    #[must_use]
    pub fn request_after_look(
        &self,
        id: &str,
        pod: &PodRef,
        grace: Duration,
        is_withdrawn: &dyn Fn() -> bool,
    ) -> SoftOutcome {
        let begin = self.journal.range().newest;
        let end = Instant::now() + PATIENCE;
        let mut requests = 0;
        let look = self.ask_patiently(end, Call::Look(pod.clone()), is_withdrawn, &mut requests);
        let (outcome, words) = match answered(end, look) {
            Ok(Outcome::Found(found)) if found.uid != pod.uid => {
                (SoftOutcome::Unanswered, String::from("another pod has this name now"))
            }
            Ok(Outcome::Found(found)) if found.is_terminating => {
                self.report_terminating(id, pod, 0, begin);
                return SoftOutcome::Accepted;
            }
            Ok(Outcome::Found(found)) if found.has_ended || found.is_mirror => (
                SoftOutcome::Unanswered,
                String::from("the pod has ended, or is a static one of the kubelet"),
            ),
            Ok(Outcome::Found(found)) => {
                let owner = Owner::of(found.controller.as_deref());
                return self.request_until(end, id, pod, owner, grace, is_withdrawn);
            }
            other => judge(other),
        };
        if is_withdrawn() {
            return SoftOutcome::Unanswered;
        }
        self.report_refusal(id, pod, outcome, requests, words);
        outcome
    }

    fn report_terminating(&self, id: &str, pod: &PodRef, requests: u32, begin: u64) {
        let words = "the pod is being deleted already: the kubelet ends it";
        self.report_accepted(id, pod, ("terminating", None, requests), begin, words.to_owned());
    }

    /// Reports that the API server removes the pod.
    fn report_accepted(
        &self,
        id: &str,
        pod: &PodRef,
        (outcome, action, requests): (&'static str, Option<Action>, u32),
        begin: u64,
        message: String,
    ) {
        // A hard kill may have come while this was asked, and its own request may have been accepted before.
        if is_accepted_since(&self.journal, begin, id) {
            return;
        }
        self.report(EvictionRequested {
            outcome: outcome.into(),
            action: action.map(|action| action.as_str().into()),
            boot_ms: Some(clock::boottime_ms()),
            ..requested(id, pod, requests, message)
        });
    }

    fn report_refusal(&self, id: &str, pod: &PodRef, outcome: SoftOutcome, requests: u32, words: String) {
        let (reason, message) = match outcome {
            SoftOutcome::Budget => (Some("disruptionBudget".into()), words),
            SoftOutcome::Accepted | SoftOutcome::Unanswered => (
                None,
                format!(
                    "{words}; its processes are sent SIGTERM here instead, or SIGKILL without a grace period, unless \
                     the pod is spared by now"
                ),
            ),
        };
        self.report(EvictionRequested {
            outcome: "refused".into(),
            reason,
            ..requested(id, pod, requests, message)
        });
    }

    fn report(&self, requested: EvictionRequested) {
        let (namespace, name) = (requested.namespace.clone(), requested.name.clone());
        self.journal.emit(Subject::Pod(PodName { namespace, name }), Payload::EvictionRequested(requested));
    }

    /// Asks until that time; `requests` counts what was sent that changes something.
    async fn ask(
        &self,
        end: Instant,
        action: Action,
        pod: &PodRef,
        grace_seconds: u64,
        is_withdrawn: &dyn Fn() -> bool,
        requests: &mut u32,
    ) -> Result<Outcome, String> {
        let pod = pod.clone();
        let call = match action {
            Action::Delete | Action::Status => Call::Delete { pod, grace_seconds },
            Action::Evict => match self.ask_patiently(end, Call::Discover, is_withdrawn, requests).await? {
                Outcome::Discovered(Some(group_version)) | Outcome::Known(group_version) => {
                    Call::Evict { pod, group_version, grace_seconds }
                }
                Outcome::Discovered(None) => {
                    return Err(String::from("the API server has no subresource pods/eviction"));
                }
                other => return Err(judge(Ok(other)).1),
            },
        };
        self.ask_patiently(end, call, is_withdrawn, requests).await
    }

    /// Asks one question until that time, and again if the API server has too much to do, as it is not away then. What
    /// is withdrawn by the time that it could be sent is not sent.
    async fn ask_patiently(
        &self,
        end: Instant,
        call: Call,
        is_withdrawn: &dyn Fn() -> bool,
        requests: &mut u32,
    ) -> Result<Outcome, String> {
        let is_request = !call.changes_nothing();
        // The answer before may have taken its time.
        let mut latest = Err(String::from("it was withdrawn"));
        while !is_withdrawn() {
            *requests += u32::from(is_request);
            let (outcome, again) = self.server.ask_until(end, Lane::Looks, call.clone()).await?.counted();
            *requests += again;
            let left = end.saturating_duration_since(Instant::now());
            let Some(pause) = pause_after(&outcome, left) else { return Ok(outcome) };
            latest = Ok(outcome);
            tokio::time::sleep(pause).await;
        }
        latest
    }
}

/// How long to wait before the same is asked again, if the API server has refused it for having too much to do (its
/// priority and fairness), and so much time is left. A disruption budget is an answer of its own.
fn pause_after(outcome: &Outcome, left: Duration) -> Option<Duration> {
    let Outcome::Refused { status: 429, after_ms, .. } = outcome else { return None };
    let pause = after_ms.map_or(PAUSE, Duration::from_millis).clamp(PAUSE, LONGEST_PAUSE);
    (pause < left).then_some(pause)
}

/// Waits for an answer until that time.
fn answered(end: Instant, answer: impl Future<Output = Result<Outcome, String>>) -> Result<Outcome, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot wait for an answer: {error}"))?;
    runtime.block_on(async {
        let in_time = tokio::time::timeout_at(end.into(), answer).await;
        in_time.unwrap_or_else(|_elapsed| Err(format!("no answer within {} s", PATIENCE.as_secs())))
    })
}

/// The event of a request, without its outcome.
fn requested(id: &str, pod: &PodRef, requests: u32, message: String) -> EvictionRequested {
    let PodRef { namespace, name, uid } = pod.clone();
    EvictionRequested {
        eviction_id: id.to_owned(),
        namespace,
        name,
        uid,
        requests,
        message,
        ..EvictionRequested::default()
    }
}

/// Whether it is reported already that the API server removes the eviction's pod; only events after `begin` can say so.
fn is_accepted_since(journal: &Journal, begin: u64, id: &str) -> bool {
    let filter = Filter { kinds: vec![EventType::EvictionRequested], ..Filter::default() };
    let mut reader = journal.reader(Some(begin), filter);
    let says_so = |record: &Record| match Event::parse(&record.line).map(|event| event.payload) {
        Ok(Payload::EvictionRequested(requested)) => {
            requested.eviction_id == id && matches!(&*requested.outcome, "accepted" | "terminating")
        }
        _ => false,
    };
    while let Some(batch) = reader.read() {
        if let Batch::Records(records) = batch
            && records.iter().any(says_so)
        {
            return true;
        }
    }
    false
}

/// What an answer means, and its words.
fn judge(answer: Result<Outcome, String>) -> (SoftOutcome, String) {
    match answer {
        Ok(Outcome::Done { .. }) => (SoftOutcome::Accepted, String::new()),
        Ok(Outcome::Budget { words, .. }) => (SoftOutcome::Budget, words),
        Ok(Outcome::Missing | Outcome::Conflict) => {
            let words = "the API server does not have what was asked for, such as a pod of that name and uid";
            (SoftOutcome::Unanswered, String::from(words))
        }
        Ok(Outcome::Refused { status, words, .. }) => {
            (SoftOutcome::Unanswered, format!("the API server answers {status}: {words}"))
        }
        Ok(Outcome::Failed(why)) | Err(why) => (SoftOutcome::Unanswered, why),
        Ok(Outcome::Found(_)) => {
            let words =
                "the API server has another pod of that name, or one that has ended or is a static one";
            (SoftOutcome::Unanswered, String::from(words))
        }
        Ok(Outcome::Resent(_) | Outcome::Discovered(_) | Outcome::Known(_) | Outcome::DiskPressure(_)) => {
            (SoftOutcome::Unanswered, String::from("the API server gave an answer to another question"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hard kill comes while the API server takes its time with the request before.
    #[test]
    fn what_was_reported_meanwhile_is_not_reported_again() {
        let journal = Journal::new("n", "b");
        let requested = |id: &str, outcome: &'static str| {
            let requested = EvictionRequested {
                eviction_id: id.to_owned(),
                outcome: outcome.into(),
                ..EvictionRequested::default()
            };
            let subject = PodName { namespace: String::from("shop"), name: String::from("web") };
            journal.emit(Subject::Pod(subject), Payload::EvictionRequested(requested));
        };
        requested("e1", "accepted");
        let begin = journal.range().newest;
        assert!(!is_accepted_since(&journal, begin, "e1"), "that was before");
        requested("e2", "accepted");
        requested("e1", "refused");
        assert!(!is_accepted_since(&journal, begin, "e1"));
        requested("e1", "accepted");
        assert!(is_accepted_since(&journal, begin, "e1"));
    }

    #[test]
    fn only_what_the_server_has_too_much_to_do_for_is_asked_again_and_in_time() {
        let refused = |status, after_ms| Outcome::Refused { status, words: String::new(), after_ms };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let asked = [None, Some(0), Some(1_000), Some(2_000), Some(300_000)];
        let pauses = asked.map(|after_ms| pause_after(&refused(429, after_ms), PATIENCE));
        assert_eq!(pauses, [seconds(1), seconds(1), seconds(1), seconds(2), seconds(2)]);
        assert_eq!(pause_after(&refused(429, None), PAUSE), None, "there would be no time for an answer");
        for status in [401, 403, 500, 503] {
            assert_eq!(pause_after(&refused(status, Some(1_000)), PATIENCE), None, "{status}");
        }
        let budget = Outcome::Budget { words: String::new(), after_ms: Some(1_000) };
        assert_eq!(pause_after(&budget, PATIENCE), None);
    }

    /// A refusal for having too much to do is one if it still stands at the end.
    #[test]
    fn only_an_accepted_request_spares_a_signal() {
        let of = |answer| judge(answer).0;
        assert_eq!(of(Ok(Outcome::Done { sent_boot_ms: 1 })), SoftOutcome::Accepted);
        assert_eq!(
            of(Ok(Outcome::Budget { words: String::from("0 left"), after_ms: None })),
            SoftOutcome::Budget
        );
        // The node's own cgroup says whether the pod is gone.
        assert_eq!(
            [Outcome::Missing, Outcome::Conflict].map(|out| of(Ok(out))),
            [SoftOutcome::Unanswered; 2]
        );
        for (status, after_ms) in [(401, None), (403, None), (429, Some(10)), (500, None)] {
            let refused = Outcome::Refused { status, words: String::from("no"), after_ms };
            assert_eq!(of(Ok(refused)), SoftOutcome::Unanswered, "{status}");
        }
        assert_eq!(of(Ok(Outcome::Failed(String::from("refused")))), SoftOutcome::Unanswered);
        assert_eq!(of(Err(String::from("no process"))), SoftOutcome::Unanswered);
        assert_eq!(of(Ok(Outcome::Discovered(None))), SoftOutcome::Unanswered);
    }
}
