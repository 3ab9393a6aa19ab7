use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The sinks that events are pushed to, by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SinkName {
    /// systemd's journal.
    Journald,
    /// An HTTP endpoint.
    Webhook,
}

impl SinkName {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Journald, Self::Webhook];

    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Journald => "journald",
            Self::Webhook => "webhook",
        }
    }
}

/// How each sink does; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Sinks(Arc<[State; SinkName::ALL.len()]>);

#[derive(Debug, Default)]
struct State {
    is_on: AtomicBool,
    lag_records: AtomicU64,
    last_success_ms: AtomicU64,
    lost: AtomicU64,
}

/// One sink's handle, for the sink to fill.
#[derive(Clone, Debug)]
pub struct Sink {
    sinks: Sinks,
    name: SinkName,
}

/// What is known of a sink.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Seen {
    pub(super) name: SinkName,
    pub(super) lag_records: u64,
    /// In milliseconds since 1970; 0 is never.
    pub(super) last_success_ms: u64,
    pub(super) lost: u64,
}

impl Sinks {
    /// Switches a sink on, so that it is told of; there is one handle for all who ask.
    #[must_use]
    pub fn switch_on(&self, name: SinkName) -> Sink {
        self.state(name).is_on.store(true, Ordering::Relaxed);
        Sink { sinks: self.clone(), name }
    }

    /// Those that are on.
    pub(super) fn read(&self) -> Vec<Seen> {
        let seen = |name: SinkName| {
            let State { is_on, lag_records, last_success_ms, lost } = self.state(name);
            is_on.load(Ordering::Relaxed).then(|| Seen {
                name,
                lag_records: lag_records.load(Ordering::Relaxed),
                last_success_ms: last_success_ms.load(Ordering::Relaxed),
                lost: lost.load(Ordering::Relaxed),
            })
        };
        SinkName::ALL.into_iter().filter_map(seen).collect()
    }

    fn state(&self, name: SinkName) -> &State {
        let [journald, webhook] = &*self.0;
        match name {
            SinkName::Journald => journald,
            SinkName::Webhook => webhook,
        }
    }
}

impl Sink {
    /// So many events are in the journal that it has not delivered.
    pub fn set_lag_records(&self, records: u64) {
        self.sinks.state(self.name).lag_records.store(records, Ordering::Relaxed);
    }

    /// It delivered something at that time, in milliseconds since 1970.
    pub fn delivered_at_ms(&self, now_ms: u64) {
        self.sinks.state(self.name).last_success_ms.store(now_ms, Ordering::Relaxed);
    }

    /// So many events went from the journal before it had delivered them.
    pub fn lost(&self, records: u64) {
        self.sinks.state(self.name).lost.fetch_add(records, Ordering::Relaxed);
    }

    /// It is switched off, and told of no longer.
    pub fn switch_off(self) {
        self.sinks.state(self.name).is_on.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sink_is_told_of_while_it_is_on() {
        let sinks = Sinks::default();
        assert_eq!(sinks.read(), []);
        let webhook = sinks.switch_on(SinkName::Webhook);
        webhook.set_lag_records(7);
        webhook.delivered_at_ms(1_500);
        webhook.lost(2);
        let seen = Seen { name: SinkName::Webhook, lag_records: 7, last_success_ms: 1_500, lost: 2 };
        assert_eq!(sinks.read(), [seen]);
        webhook.switch_off();
        assert_eq!(sinks.read(), []);
    }
}
