//! Hundreds of answers that are none, in an hour that passes at once: one effect, and nothing is kept of it.
use super::*;

/// An API server with one pod `shop/web`.
struct Server {
    uid: &'static str,
    is_there: bool,
    is_terminating: bool,
    /// How often the pod was evicted or deleted.
    effects: u32,
    /// Which request was made how often.
    looks: u32,
    writes: u32,
}

impl Server {
    fn new() -> Self {
        Self { uid: "u1", is_there: true, is_terminating: false, effects: 0, looks: 0, writes: 0 }
    }

    fn answer(&mut self, call: &Call) -> Outcome {
        if call.changes_nothing() {
            self.looks += 1;
        } else {
            self.writes += 1;
        }
        match call {
            Call::Discover => Outcome::Discovered(Some(String::from("policy/v1"))),
            _ if !self.is_there => Outcome::Missing,
            Call::Look(_) => Outcome::Found(FoundPod {
                uid: self.uid.to_owned(),
                is_terminating: self.is_terminating,
                controller: Some(String::from("ReplicaSet")),
                ..FoundPod::default()
            }),
            Call::Evict { pod, .. } | Call::Delete { pod, .. } if pod.uid != self.uid => Outcome::Conflict,
            Call::Evict { .. } | Call::Delete { .. } => {
                self.effects += 1;
                self.is_terminating = true;
                Outcome::Done { sent_boot_ms: 0 }
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Time that passes only when it is waited for, and what was reported.
struct Clock {
    start: Instant,
    ms: u64,
    reports: Vec<String>,
}

impl Clock {
    fn new() -> Self {
        Self { start: Instant::now(), ms: 0, reports: Vec::new() }
    }

    fn now(&self) -> Now {
        now(self.ms, self.start)
    }

    /// Has the server asked whatever is due until then.
    fn run(
        &mut self,
        outbox: &mut Outbox,
        until_ms: u64,
        mut answer: impl FnMut(&Call, u64) -> Option<Outcome>,
    ) {
        while let Some(due) = outbox.due() {
            let due_ms =
                u64::try_from(due.duration_since(self.start).as_nanos().div_ceil(1_000_000)).unwrap();
            self.ms = self.ms.max(due_ms);
            if self.ms >= until_ms {
                break;
            }
            let asked = self.now();
            let (id, call) = outbox.next(asked).unwrap();
            let answer = answer(&call, self.ms);
            self.ms += 10;
            if let Some(payload) = outbox.answered(&id, answer, asked, self.now()) {
                self.reports.push(match payload {
                    Payload::EvictionRequested(of) => of.outcome.into_owned(),
                    Payload::EvictionConfirmed(_) => String::from("confirmed"),
                    other => panic!("{other:?}"),
                });
            }
        }
        self.ms = self.ms.max(until_ms);
    }
}

const HOUR_MS: u64 = 3_600_000;

/// A hard eviction of a pod whose spec is live: its first request needs no look.
fn killed(start: Instant) -> Outbox {
    let mut outbox = Outbox::new(SETTINGS, 0);
    outbox.discovered(Some(String::from("policy/v1")));
    let live = signalled_live("e1", "web", "u1", Some("ReplicaSet"));
    let live = EvictionSignalled { boot_ms: Some(0), ..live };
    assert_eq!(outbox.take(7, 0, None, &Payload::EvictionSignalled(live), now(0, start)), None);
    outbox
}

fn refused(status: u16, after_ms: Option<u64>) -> Outcome {
    Outcome::Refused { status, words: String::from("not now"), after_ms }
}

/// Lets the pod end, and checks that nothing is left of its eviction.
fn finish(clock: &mut Clock, outbox: &mut Outbox, server: &mut Server) {
    server.is_there = false;
    clock.run(outbox, 2 * HOUR_MS, |call, _| Some(server.answer(call)));
    assert_eq!((outbox.due(), outbox.position(40), outbox.entries.len()), (None, 40, 0));
    assert_eq!(clock.reports.last().map(String::as_str), Some("confirmed"));
}

#[test]
fn a_storm_of_429_500_and_503_of_nearly_an_hour_ends_in_one_eviction() {
    for statuses in [&[429][..], &[500], &[503], &[429, 500, 503]] {
        // The server that is asked to wait for knows best; and looks may be answered while nothing can be changed.
        for (after_ms, are_looks_answered) in [(None, false), (Some(1_000), false), (None, true)] {
            let (mut clock, mut server) = (Clock::new(), Server::new());
            let mut outbox = killed(clock.start);
            let mut refusals = 0;
            clock.run(&mut outbox, HOUR_MS - 100_000, |call, _| {
                if are_looks_answered && call.changes_nothing() {
                    return Some(server.answer(call));
                }
                refusals += 1;
                Some(refused(statuses[refusals % statuses.len()], after_ms))
            });
            let shown = format!("{statuses:?} {after_ms:?} {are_looks_answered}: {refusals}");
            assert!((100..=400).contains(&refusals), "{shown}");
            assert_eq!((server.effects, outbox.entries.len()), (0, 1), "{shown}");
            // The first refusal alone is reported.
            assert_eq!(clock.reports, ["refused"], "{shown}");
            clock.run(&mut outbox, HOUR_MS - 50_000, |call, _| Some(server.answer(call)));
            assert_eq!((server.effects, server.writes), (1, 1), "{shown}");
            assert_eq!(clock.reports, ["refused", "accepted"], "{shown}");
            finish(&mut clock, &mut outbox, &mut server);
            assert_eq!((server.effects, clock.reports.len()), (1, 3), "{shown}");
        }
    }
}

/// The server does what is asked, and answers as if it had not, or not at all.
#[test]
fn a_storm_in_which_the_eviction_was_made_makes_no_second_one() {
    for answer in [Some(refused(500, None)), Some(refused(503, None)), Some(Outcome::Conflict), None] {
        let (mut clock, mut server) = (Clock::new(), Server::new());
        let mut outbox = killed(clock.start);
        clock.run(&mut outbox, HOUR_MS / 2, |call, _| {
            if !call.changes_nothing() {
                server.answer(call);
            }
            answer.clone()
        });
        assert_eq!((server.effects, server.writes), (1, 1), "{answer:?}");
        clock.run(&mut outbox, HOUR_MS / 2 + 100_000, |call, _| Some(server.answer(call)));
        assert_eq!(clock.reports.last().map(String::as_str), Some("terminating"), "{answer:?}");
        finish(&mut clock, &mut outbox, &mut server);
        assert_eq!((server.effects, server.writes), (1, 1), "{answer:?}");
    }
}

/// Another pod takes the name before the first request, after a look, or after the request.
#[test]
fn a_pod_recreated_at_any_moment_between_its_kill_and_its_end_is_not_evicted_itself() {
    for recreated_at in 0..4 {
        let (mut clock, mut server) = (Clock::new(), Server::new());
        let mut outbox = killed(clock.start);
        let mut calls = 0;
        let mut of_first = 0;
        clock.run(&mut outbox, HOUR_MS / 2, |call, _| {
            if calls == recreated_at {
                of_first = std::mem::take(&mut server.effects);
                server = Server { uid: "u2", ..Server::new() };
            }
            calls += 1;
            // The first request and the look that follows it are not answered, so that there are two more.
            if calls <= 1 { None } else { Some(server.answer(call)) }
        });
        assert_eq!((server.effects, server.is_terminating), (0, false), "{recreated_at}");
        assert!(of_first <= 1, "{recreated_at}");
        let last = if recreated_at < 3 { "anotherPod" } else { "confirmed" };
        assert_eq!(
            clock.reports.last().map(String::as_str),
            Some(last),
            "{recreated_at}: {:?}",
            clock.reports
        );
        assert_eq!((outbox.due(), outbox.entries.len()), (None, 0), "{recreated_at}");
    }
}

#[test]
fn what_is_kept_of_thousands_of_evictions_in_storms_does_not_grow() {
    let mut clock = Clock::new();
    let mut outbox = Outbox::new(SETTINGS, 0);
    for number in 0..5_000_u64 {
        let (id, uid) = (format!("e{number}"), format!("u{number}"));
        let killed = EvictionSignalled {
            boot_ms: Some(clock.ms),
            ..signalled_live(&id, "web", &uid, Some("ReplicaSet"))
        };
        let begin = clock.ms;
        let killed = Payload::EvictionSignalled(killed);
        assert_eq!(outbox.take(number + 1, 0, None, &killed, clock.now()), None);
        // A storm for ten seconds; then the pod is gone already.
        clock.run(&mut outbox, begin + 20_000, |_, at| {
            Some(if at < begin + 10_000 { refused(500, None) } else { Outcome::Missing })
        });
        // One that was asked for its version is not gone by that.
        if !outbox.entries.is_empty() {
            clock.run(&mut outbox, begin + 120_000, |_, _| Some(Outcome::Missing));
        }
        assert_eq!(outbox.entries.len(), 0, "{number}");
    }
    assert_eq!((outbox.settled.len(), outbox.position(40)), (LATEST, 40));
    assert!(outbox.messages.len() <= LATEST);
}
