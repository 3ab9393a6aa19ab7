//! When the next request is made: what the clients of thousands of nodes do together.

use std::time::Duration;

use super::Pace;
use crate::network::{BackOff, fraction};

/// How a list or a watch has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum End {
    /// All pods were listed: the watch follows.
    Listed,
    /// It gives no list in a watch: all pods are listed.
    Unstreamed,
    /// The watch ended as it should, or nothing came for too long.
    Watched,
    /// The version is too old: all pods are listed again.
    Expired,
    /// It failed, and may work later; the server asked for that wait.
    Failed { after: Option<Duration> },
}

/// The pauses of one client.
#[derive(Debug)]
pub(super) struct Schedule {
    pace: Pace,
    back_off: BackOff,
}

impl Schedule {
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, back_off: BackOff::new(pace.pauses) }
    }

    /// The pause before the first request: a whole cluster may start at once.
    pub(super) fn first(&self) -> Duration {
        self.spread()
    }

    /// The pause after a list, or after a watch that lasted that long; `None` if the next request follows at once.
    pub(super) fn after(&mut self, end: End, lasted: Duration) -> Option<Duration> {
        let has_lasted = lasted >= self.pace.lasting;
        if has_lasted {
            self.back_off.reset();
        }
        match end {
            End::Listed | End::Unstreamed => None,
            End::Watched => (!has_lasted).then(|| self.back_off.next()),
            // One restart of the server ends the watches of all nodes.
            End::Expired => Some(self.back_off.next() + self.spread()),
            End::Failed { after } => Some(after.unwrap_or_default() + self.back_off.next() + self.spread()),
        }
    }

    fn spread(&self) -> Duration {
        self.pace.spread.mul_f64(fraction())
    }
}

#[cfg(test)]
pub(crate) use self::tests::watch_requests;

#[cfg(test)]
mod tests {
    use std::{
        cmp::Reverse,
        collections::{BTreeMap, BinaryHeap},
    };

    use super::*;

    const NODES: usize = 5_000;
    const ZERO: Duration = Duration::ZERO;

    #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
    enum Request {
        /// A list in a watch, which goes on.
        Stream,
        List,
        Watch,
    }

    struct Client {
        schedule: Schedule,
        /// Whether the server gives lists in watches, as far as the client knows.
        streams: bool,
        /// Which start of the server its version is of.
        version: Option<u32>,
        /// When its watch began, while it lasts.
        watch: Option<Duration>,
    }

    /// An API server and the clients of a cluster, in virtual time.
    struct Cluster {
        clients: Vec<Client>,
        /// Whether it gives lists in watches.
        gives_streams: bool,
        /// What comes next: when, which client, what it asks for.
        next: BinaryHeap<Reverse<(Duration, usize, Request)>>,
        /// The requests of each second.
        requests: BTreeMap<u64, usize>,
        /// How many requests a second are answered. Others are asked to come back after a second.
        most_a_second: usize,
        /// How often the server was started, and from when on it answers.
        starts: u32,
        up_from: Duration,
    }

    impl Cluster {
        fn started(nodes: usize, gives_streams: bool, most_a_second: usize) -> Self {
            let client = |_| Client {
                schedule: Schedule::new(Pace::default()),
                streams: true,
                version: None,
                watch: None,
            };
            let clients: Vec<_> = (0..nodes).map(client).collect();
            let first = clients.iter().map(|client| client.schedule.first()).enumerate();
            let next = first.map(|(client, at)| Reverse((at, client, Request::Stream))).collect();
            let requests = BTreeMap::new();
            Self { clients, gives_streams, next, requests, most_a_second, starts: 0, up_from: ZERO }
        }

        /// Lets time pass until then.
        fn run(&mut self, until: Duration) {
            while let Some(Reverse((at, client, request))) = self.next.pop() {
                if at >= until {
                    self.next.push(Reverse((at, client, request)));
                    return;
                }
                self.answer(at, client, request);
            }
        }

        /// Ends all watches. The server is back after that time, and has forgotten what was before.
        fn restart(&mut self, now: Duration, lasts: Duration) {
            (self.starts, self.up_from) = (self.starts + 1, now + lasts);
            self.next.clear();
            for (place, client) in self.clients.iter_mut().enumerate() {
                let lasted = client.watch.take().map_or(ZERO, |began| now.saturating_sub(began));
                let pause = client.schedule.after(End::Failed { after: None }, lasted).unwrap();
                self.next.push(Reverse((now + pause, place, Request::Watch)));
            }
        }

        fn answer(&mut self, at: Duration, place: usize, request: Request) {
            let client = &mut self.clients[place];
            if let Some(began) = client.watch.take() {
                assert_eq!(
                    client.schedule.after(End::Watched, at.saturating_sub(began)),
                    None,
                    "the next watch begins at once"
                );
            }
            let requests = self.requests.entry(at.as_secs()).or_default();
            *requests += 1;
            let (end, next) = if at < self.up_from {
                (End::Failed { after: None }, request)
            } else if *requests > self.most_a_second {
                (End::Failed { after: Some(Duration::from_secs(1)) }, request)
            } else if request == Request::Stream && !self.gives_streams {
                client.streams = false;
                (End::Unstreamed, Request::List)
            } else if request == Request::List {
                client.version = Some(self.starts);
                (End::Listed, Request::Watch)
            } else if request == Request::Watch && client.version != Some(self.starts) {
                (End::Expired, if client.streams { Request::Stream } else { Request::List })
            } else {
                client.version = Some(self.starts);
                client.watch = Some(at);
                let lasts = Duration::from_secs(super::super::WATCH_S).mul_f64(1.0 + fraction());
                self.next.push(Reverse((at + lasts, place, Request::Watch)));
                return;
            };
            let pause = client.schedule.after(end, ZERO).unwrap_or_default();
            self.next.push(Reverse((at + pause, place, next)));
        }

        /// The most requests in a second, and how many seconds have more than a tenth of that.
        fn peak(&self, from: Duration) -> (usize, usize) {
            let since = || self.requests.range(from.as_secs()..).map(|(_, requests)| *requests);
            let peak = since().max().unwrap_or(0);
            (peak, since().filter(|requests| *requests > peak / 10).count())
        }

        fn all_watch(&self) -> bool {
            self.clients.iter().all(|client| client.watch.is_some())
        }
    }

    /// The requests of each second that so many nodes make for their pods until then, of a server that gives lists in watches
    /// or does not. They start together, and nothing fails.
    pub(crate) fn watch_requests(nodes: usize, gives_streams: bool, until: Duration) -> BTreeMap<u64, usize> {
        let mut cluster = Cluster::started(nodes, gives_streams, usize::MAX);
        cluster.run(until);
        cluster.requests
    }

    #[test]
    fn thousands_of_nodes_that_start_together_do_not_ask_together() {
        // A list in a watch, or one that is refused, a list and a watch; over 5 s.
        for (gives_streams, of_each) in [(true, 1), (false, 3)] {
            let mut cluster = Cluster::started(NODES, gives_streams, usize::MAX);
            cluster.run(Duration::from_mins(1));
            let (peak, seconds) = cluster.peak(ZERO);
            println!(
                "{NODES} starts at once, lists in watches: {gives_streams}; at most {peak} requests a second, {seconds} s long"
            );
            assert!(cluster.all_watch());
            assert_eq!(cluster.requests.values().sum::<usize>(), NODES * of_each);
            assert!(peak < NODES * of_each / 4, "{peak}");
        }
    }

    #[test]
    fn thousands_of_nodes_come_back_to_a_server_that_answers_few_of_them() {
        for gives_streams in [true, false] {
            let mut cluster = Cluster::started(NODES, gives_streams, 400);
            cluster.run(Duration::from_mins(10));
            assert!(cluster.all_watch());
            let down = Duration::from_mins(10);
            cluster.restart(down, Duration::from_secs(20));
            cluster.run(Duration::from_mins(15));
            let (peak, seconds) = cluster.peak(down);
            println!(
                "a restart of 20 s of a server that answers 400 requests a second, lists in watches: {gives_streams}; at most \
                 {peak} a second, {seconds} s long"
            );
            assert!(cluster.all_watch());
            assert!(peak < NODES / 2, "{peak}");
        }
    }

    #[test]
    fn a_client_at_rest_makes_few_requests_an_hour() {
        for gives_streams in [true, false] {
            let mut cluster = Cluster::started(1, gives_streams, usize::MAX);
            cluster.run(Duration::from_hours(1));
            let requests: usize = cluster.requests.values().sum();
            println!("one client, lists in watches: {gives_streams}; {requests} requests in its first hour");
            assert!((7..=15).contains(&requests), "{requests}");
        }
    }

    #[test]
    fn what_fails_without_end_is_asked_ever_more_seldom() {
        let mut schedule = Schedule::new(Pace::default());
        let mut pause = || schedule.after(End::Failed { after: None }, ZERO).unwrap();
        for most in [1, 2, 4, 8, 16, 30, 30] {
            let full = Duration::from_secs(most);
            let pause = pause();
            assert!(pause >= full / 2 && pause <= full + Pace::default().spread, "{pause:?} for {full:?}");
        }
        let lasted = Pace::default().lasting;
        assert_eq!(schedule.after(End::Watched, lasted), None);
        assert!(schedule.after(End::Watched, ZERO).unwrap() <= Duration::from_secs(1));
    }
}
