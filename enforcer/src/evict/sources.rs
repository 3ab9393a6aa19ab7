//! The edge sources that the reflex waits on. They come and go while it runs.

use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{close::Work, reflex::Closer};
use crate::sense::{Edge, EdgeSource, Readiness, SourceState};

/// The most sources: the ring of the programs, pressure of the node and of kubepods, limits breached below it, and as
/// many again for those that replace them.
const PLACES: usize = 8;

/// A place for a source.
#[derive(Default)]
enum Place {
    #[default]
    Free,
    Live(Box<dyn EdgeSource>),
    /// No longer waited on, and not yet handed to the thread that closes it, which may be slow.
    Gone(Box<dyn EdgeSource>),
}

/// The sources by place. Nothing here allocates.
#[derive(Default)]
pub(super) struct Sources([Place; PLACES]);

impl Sources {
    /// Adds a source to wait on; returns it if the kernel refuses or no place is free.
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

    /// Takes the edges of the source at that place; stops waiting on a source that is gone.
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

    /// Hands sources that are gone to the thread that closes them, as far as its queue has room.
    pub(super) fn retire(&mut self, closer: &Closer) {
        for place in &mut self.0 {
            match std::mem::take(place) {
                Place::Gone(source) => {
                    if let Err(Work::Close(source)) = closer.offer(Work::Close(source)) {
                        *place = Place::Gone(source);
                    }
                }
                other => *place = other,
            }
        }
    }

    /// The number of sources waited on.
    pub(super) fn live(&self) -> u64 {
        self.0.iter().fold(0, |count, place| count + u64::from(matches!(place, Place::Live(_))))
    }

    /// Whether one more fits.
    pub(super) fn has_room(&self) -> bool {
        self.0.iter().any(|place| matches!(place, Place::Free))
    }
}
