//! What OOM kills are learned from, where it may be missing: what is not there never comes.

use std::{future, io, time::Duration};

use super::watch::{Changed, CounterWatch};
use crate::sense::{LifeWatch, RecordRing};

/// Stands in where there is no ring.
pub(super) struct NoRing;

impl RecordRing for NoRing {
    async fn readable(&mut self) -> io::Result<()> {
        future::pending().await
    }

    fn next<T>(&mut self, _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }
}

pub(super) async fn lives(life: &mut Option<LifeWatch>, rest: tokio::time::Instant) -> io::Result<()> {
    match life {
        Some(life) => {
            tokio::time::sleep_until(rest).await;
            life.readable().await
        }
        None => future::pending().await,
    }
}

pub(super) async fn changes(watch: &mut Option<CounterWatch>) -> io::Result<Changed> {
    match watch {
        Some(watch) => watch.changed().await,
        None => future::pending().await,
    }
}

pub(super) async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => future::pending().await,
    }
}
