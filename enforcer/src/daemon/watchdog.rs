//! systemd's watchdog (`WatchdogSec=`): notified while the daemon's own thread and the eviction thread do their work.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    time::Duration,
};

use super::emit;
use crate::{evict::Observer, journal::Journal};

/// The environment variable with the supervisor's socket (`sd_notify(3)`).
const SOCKET: &str = "NOTIFY_SOCKET";

/// The sign of life.
const ALIVE: &[u8] = b"WATCHDOG=1";

/// The connection to a supervisor that expects signs of life.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// Opened once, so that a later lack of descriptors does not end the daemon.
    socket: UnixDatagram,
    every: Duration,
}

impl Watchdog {
    /// Sends signs of life from now on, if a supervisor expects them. Must be called inside a tokio runtime: a stuck
    /// runtime sends none.
    pub(super) fn start(evictor: Observer, journal: &Journal) {
        let (Some(patience), Some(address)) = (sd_notify::watchdog_enabled(), env::var_os(SOCKET)) else {
            return;
        };
        match Self::open(&address, patience) {
            Ok(watchdog) => drop(tokio::spawn(watchdog.run(evictor))),
            Err(error) => {
                let message = format!(
                    "the supervisor gets no signs of life, and ends the daemon after {} s: {error}",
                    patience.as_secs_f32()
                );
                emit::degraded(journal, "watchdog", &message);
            }
        }
    }

    fn open(address: &OsStr, patience: Duration) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(address)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect_addr(&address)?;
        // A third, not half as in sd_watchdog_enabled(3): one sign may find the supervisor's queue full.
        Ok(Self { socket, every: patience / 3 })
    }

    async fn run(self, evictor: Observer) {
        let mut is_reported = false;
        let mut next = tokio::time::interval(self.every);
        next.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            next.tick().await;
            if evictor.is_alive() {
                is_reported = false;
                self.give_sign();
            } else if !std::mem::replace(&mut is_reported, true) {
                tracing::error!("the eviction thread is stuck: the supervisor should restart the daemon");
            }
        }
    }

    fn give_sign(&self) {
        if let Err(error) = self.socket.send(ALIVE) {
            tracing::warn!(%error, "cannot send a sign of life to the supervisor");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_of_life_reaches_a_path_and_an_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("enforcer-watchdog-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let supervisors = [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{name}").into(), UnixDatagram::bind_addr(&abstract_name).unwrap()),
        ];
        for (address, supervisor) in supervisors {
            let watchdog = Watchdog::open(&address, Duration::from_secs(30)).unwrap();
            assert_eq!(watchdog.every, Duration::from_secs(10));
            watchdog.give_sign();
            let mut sign = [0; 64];
            let length = supervisor.recv(&mut sign).unwrap();
            assert_eq!(&sign[..length], b"WATCHDOG=1");
        }
        assert!(Watchdog::open(OsStr::new("/nowhere/notify"), Duration::from_secs(30)).is_err());
    }
}
