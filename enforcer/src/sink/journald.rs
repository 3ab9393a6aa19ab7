//! Sends events to systemd's journal by its native protocol: one datagram with all fields for each entry.

mod catalog;
mod entry;
mod fields;
mod socket;

use std::{
    io,
    time::{Duration, Instant},
};

use self::socket::Socket;
use super::{
    JournaldSettings,
    feed::Item,
    run::{Outlet, Trouble},
};
use crate::{journal::Journal, network::Bounds};

/// journald drops entries of a unit above 10,000 in 30 s (its `RateLimitBurst`), and does not notify the sender in
/// time. The daemon's own log lines count too.
const MOST_ENTRIES: usize = 8_000;
const WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Journald {
    socket: Socket,
    journal: Journal,
    since: Instant,
    sent: usize,
}

impl Journald {
    pub(super) fn new(settings: &JournaldSettings, journal: &Journal) -> io::Result<Self> {
        let socket = Socket::new(&settings.socket)?;
        Ok(Self { socket, journal: journal.clone(), since: Instant::now(), sent: 0 })
    }

    /// How long to wait before the next entry.
    fn pace(&mut self) -> Option<Duration> {
        let passed = self.since.elapsed();
        if passed >= WITHIN {
            (self.since, self.sent) = (Instant::now(), 0);
        }
        (self.sent >= MOST_ENTRIES).then(|| WITHIN.saturating_sub(passed))
    }

    /// The cursor of an item, the same as for other readers of the log.
    fn cursor(&self, item: &Item) -> String {
        self.journal.cursor(item.last).to_string()
    }
}

impl Outlet for Journald {
    const BACK_OFF: Bounds = Bounds { least: Duration::from_millis(50), most: Duration::from_secs(10) };

    fn limits(&self) -> (usize, usize) {
        (64, usize::MAX)
    }

    async fn deliver(&mut self, items: &[Item]) -> Result<usize, Trouble> {
        if let Some(wait) = self.pace() {
            tokio::time::sleep(wait).await;
            (self.since, self.sent) = (Instant::now(), 0);
        }
        for (taken, item) in items.iter().enumerate() {
            let entry = entry::entry(&item.line, &self.cursor(item));
            if let Err(error) = self.socket.send(&entry) {
                let why = format!("{}: {error}", self.socket.path().display());
                return if taken > 0 { Ok(taken) } else { Err(Trouble::Later { why, after: None }) };
            }
            self.sent += 1;
        }
        Ok(items.len())
    }
}

#[cfg(test)]
mod tests;
