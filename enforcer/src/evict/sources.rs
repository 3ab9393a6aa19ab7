//! The edge sources that the reflex waits on; they come and go while it runs.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{reap::Work, reflex::Reaper};
use crate::sense::{Edge, EdgeSource, Readiness, SourceState};

/// How many there can be: the ring of the programs, pressure of the node and of kubepods, limits breached below it, and
/// as many again for those that replace them.
const PLACES: usize = 8;

/// A place for a source.
#[derive(Default)]
enum Place {
    #[default]
    Free,
    Live(Box<dyn EdgeSource>),
    /// Not waited on any more, and not yet handed to who closes it: that may be slow.
    Gone(Box<dyn EdgeSource>),
}

/// The sources by their places. Nothing here allocates.
#[derive(Default)]
pub(super) struct Sources([Place; PLACES]);

impl Sources {
    /// Waits on that source too; gives it back where the kernel refuses, or where there is no place.
    pub(super) fn add(
        &mut self,
        epoll: &OwnedFd,
        first_token: u64,
        source: Box<dyn EdgeSource>,
    ) -> Result<(), (Box<dyn EdgeSource>, rustix::io::Errno)> {
        let free = (first_token..).zip(&mut self.0).find(|(_, place)| matches!(place, Place::Free));
        let Some((token, place)) = free else { return Err((source, rustix::io::Errno::NOSPC)) };
        let flags = if source.is_priority() { EventFlags::PRI } else { EventFlags::IN };
        match epoll::add(epoll, source.fd(), EventData::new_u64(token), flags) {
            Ok(()) => {
                *place = Place::Live(source);
                Ok(())
            }
            Err(errno) => Err((source, errno)),
        }
    }

    /// Takes what is waiting at that place; one that is gone is waited on no more.
    pub(super) fn drain(
        &mut self,
        epoll: &OwnedFd,
        place: u64,
        ready: Readiness,
        emit: &mut dyn FnMut(Edge),
    ) {
        let Some(place) = usize::try_from(place).ok().and_then(|place| self.0.get_mut(place)) else { return };
        let Place::Live(source) = place else { return };
        match source.drain(ready, emit) {
            SourceState::Live => {}
            SourceState::Gone => {
                let _unwatched = epoll::delete(epoll, source.fd());
                if let Place::Live(source) = std::mem::take(place) {
                    *place = Place::Gone(source);
                }
            }
        }
    }

    /// Hands over those that are gone, as far as there is room.
    pub(super) fn retire(&mut self, reaper: &Reaper) {
        for place in &mut self.0 {
            match std::mem::take(place) {
                Place::Gone(source) => {
                    if let Err(Work::Close(source)) = reaper.offer(Work::Close(source)) {
                        *place = Place::Gone(source);
                    }
                }
                other => *place = other,
            }
        }
    }

    /// How many are waited on.
    pub(super) fn live(&self) -> u64 {
        self.0.iter().fold(0, |count, place| count + u64::from(matches!(place, Place::Live(_))))
    }

    /// Whether one more could be taken.
    pub(super) fn has_room(&self) -> bool {
        self.0.iter().any(|place| matches!(place, Place::Free))
    }
}
