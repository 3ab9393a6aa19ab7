//! Which Events repeat another, and which are too many.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::kube::{About, Report};

/// For how long an Event is repeated instead of reported anew, from its last time on (client-go's `finishTime`).
const REPEATS_WITHIN: Duration = Duration::from_mins(6);

/// How many Events about one thing are sent at once, and how long one more takes (client-go's spam filter).
const BURST: u32 = 25;
const ONE_MORE: Duration = Duration::from_mins(5);

/// The most things and kinds of Events that are kept.
const MOST: usize = 1_024;

/// What an Event is about, and why.
pub(super) type Kind = (About, String);

/// The latest Events, by what they are about and their reason.
#[derive(Debug, Default)]
pub(super) struct Series {
    latest: BTreeMap<Kind, Latest>,
    budgets: BTreeMap<About, Budget>,
    /// The Event that was taken from a budget last. It is sent again if the server is away, at no further charge.
    charged: Option<String>,
}

#[derive(Debug)]
struct Latest {
    name: String,
    count: u32,
    at: Instant,
}

#[derive(Debug)]
struct Budget {
    left: u32,
    since: Instant,
}

/// How an Event is to be sent.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Delivery {
    /// As a new one.
    New,
    /// As the repetition of another.
    Again {
        /// The other's name.
        name: String,
        /// How often it has happened with this one.
        count: u32,
    },
    /// There were too many about this.
    Suppressed,
}

impl Series {
    /// How to send it, if it is to be sent. That takes from the budget of what it is about.
    pub(super) fn next(&mut self, report: &Report, now: Instant) -> Delivery {
        let kind = (report.about.clone(), report.reason.clone());
        let again = self
            .latest
            .get(&kind)
            .filter(|latest| now.duration_since(latest.at) < REPEATS_WITHIN)
            .map(|latest| (latest.name.clone(), latest.count.saturating_add(1)));
        if again.as_ref().is_some_and(|(name, _)| *name == report.name) {
            // It was sent, and its delivery was not noted.
            return Delivery::New;
        }
        if self.charged.as_ref() != Some(&report.name) {
            if !self.spend(&report.about, now) {
                // The next one that is sent counts it too.
                if again.is_some() {
                    self.repeated(report, now);
                }
                return Delivery::Suppressed;
            }
            self.charged = Some(report.name.clone());
        }
        again.map_or(Delivery::New, |(name, count)| Delivery::Again { name, count })
    }

    fn spend(&mut self, about: &About, now: Instant) -> bool {
        if self.budgets.len() >= MOST && !self.budgets.contains_key(about) {
            self.budgets.retain(|_, budget| now.duration_since(budget.since) < ONE_MORE);
            // Of a flood about more things than that, the oldest begins anew.
            let oldest = self.budgets.iter().min_by_key(|(_, budget)| budget.since);
            if let Some((oldest, _)) = oldest.filter(|_| self.budgets.len() >= MOST) {
                let oldest = oldest.clone();
                self.budgets.remove(&oldest);
            }
        }
        let budget = self.budgets.entry(about.clone()).or_insert(Budget { left: BURST, since: now });
        let earned = now.duration_since(budget.since).as_secs() / ONE_MORE.as_secs();
        if earned > 0 {
            budget.left = budget.left.saturating_add(u32::try_from(earned).unwrap_or(BURST)).min(BURST);
            budget.since = now;
        }
        let has_left = budget.left > 0;
        budget.left = budget.left.saturating_sub(1);
        has_left
    }

    /// Notes that it was sent as a new one.
    pub(super) fn begun(&mut self, kind: Kind, name: String, now: Instant) {
        if self.latest.len() >= MOST {
            self.latest.retain(|_, latest| now.duration_since(latest.at) < REPEATS_WITHIN);
            if self.latest.len() >= MOST {
                self.latest.clear();
            }
        }
        self.latest.insert(kind, Latest { name, count: 1, at: now });
    }

    /// Notes that it was a repetition.
    pub(super) fn repeated(&mut self, report: &Report, now: Instant) {
        if let Some(latest) = self.latest.get_mut(&(report.about.clone(), report.reason.clone())) {
            latest.count = latest.count.saturating_add(1);
            latest.at = now;
        }
    }

    /// The Event that was to be repeated is gone.
    pub(super) fn forget(&mut self, report: &Report) {
        self.latest.remove(&(report.about.clone(), report.reason.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, reason: &str) -> Report {
        Report {
            name: name.to_owned(),
            about: About::Node,
            node: String::from("n"),
            reason: reason.to_owned(),
            action: String::new(),
            is_warning: true,
            note: String::new(),
            annotations: BTreeMap::new(),
            time_ms: 0,
        }
    }

    fn send(series: &mut Series, name: &str, reason: &str, now: Instant) -> Delivery {
        let report = report(name, reason);
        let delivery = series.next(&report, now);
        match delivery {
            Delivery::New => {
                series.begun((report.about.clone(), report.reason.clone()), report.name.clone(), now);
            }
            Delivery::Again { .. } => series.repeated(&report, now),
            Delivery::Suppressed => {}
        }
        delivery
    }

    #[test]
    fn what_happens_again_soon_is_counted() {
        let (mut series, start) = (Series::default(), Instant::now());
        let again = |count| Delivery::Again { name: String::from("a"), count };
        assert_eq!(send(&mut series, "a", "OOMKilling", start), Delivery::New);
        assert_eq!(send(&mut series, "b", "OOMKilling", start + REPEATS_WITHIN / 2), again(2));
        assert_eq!(
            send(&mut series, "c", "OOMKilling", start + REPEATS_WITHIN),
            again(3),
            "since its last time"
        );
        assert_eq!(
            send(&mut series, "d", "Evicted", start + REPEATS_WITHIN),
            Delivery::New,
            "another reason"
        );
        assert_eq!(send(&mut series, "e", "OOMKilling", start + REPEATS_WITHIN * 3), Delivery::New);
        assert_eq!(
            send(&mut series, "e", "OOMKilling", start + REPEATS_WITHIN * 3),
            Delivery::New,
            "not by itself"
        );
    }

    #[test]
    fn a_flood_about_one_thing_is_sent_as_25_and_then_one_in_five_minutes() {
        let (mut series, start) = (Series::default(), Instant::now());
        let mut names = 0..;
        let mut sent = |series: &mut Series, at: Instant| {
            let names = names.by_ref().take(1_000).map(|number| number.to_string());
            names.filter(|name| send(series, name, "R", at) != Delivery::Suppressed).count()
        };
        assert_eq!(sent(&mut series, start), 25);
        assert_eq!(sent(&mut series, start + ONE_MORE), 1);
        assert_eq!(sent(&mut series, start + ONE_MORE * 100), 25);
    }

    #[test]
    fn what_is_not_sent_of_a_flood_is_counted_by_the_next_that_is() {
        let (mut series, start) = (Series::default(), Instant::now());
        for number in 0..1_000 {
            let now = start + Duration::from_millis(250 * number);
            send(&mut series, &number.to_string(), "OOMKilling", now);
        }
        let again = Delivery::Again { name: String::from("0"), count: 1_001 };
        assert_eq!(send(&mut series, "last", "OOMKilling", start + ONE_MORE), again);
        // Of what was never sent there is nothing to count on.
        for number in 0..3 {
            let name = format!("other{number}");
            assert_eq!(send(&mut series, &name, "Evicted", start + ONE_MORE), Delivery::Suppressed);
        }
        assert_eq!(send(&mut series, "other", "Evicted", start + ONE_MORE * 2), Delivery::New);
    }

    #[test]
    fn what_is_sent_again_because_the_server_was_away_costs_nothing() {
        let (mut series, now) = (Series::default(), Instant::now());
        for _ in 0..1_000 {
            assert_eq!(series.next(&report("a", "Evicted"), now), Delivery::New);
        }
    }

    /// Each pod that comes and goes has Events of its own.
    #[test]
    fn what_is_kept_of_events_about_thousands_of_pods_does_not_grow() {
        let (mut series, start) = (Series::default(), Instant::now());
        for number in 0..5_000_u64 {
            let pod = crate::kube::PodRef {
                namespace: String::from("shop"),
                name: format!("web-{number}"),
                uid: format!("u{number}"),
            };
            let about = About::Pod(pod, None);
            let report = Report { about: about.clone(), ..report(&number.to_string(), "Evicted") };
            // Twenty a second: more than are kept within the time of a budget.
            let now = start + Duration::from_millis(50 * number);
            assert_eq!(series.next(&report, now), Delivery::New);
            series.begun((about, report.reason), report.name, now);
            assert!(series.latest.len() <= MOST && series.budgets.len() <= MOST, "{number}");
        }
    }
}
