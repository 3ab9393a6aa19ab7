//! The helper thread that holds a candidate back by `memory.high`: such a write may reclaim, and take seconds.
//!
//! What the file held is on the intent page for as long as it is lowered, so that the next start gives it back if this
//! process is killed meanwhile. Where it cannot be given back at once, that is reported, and tried again.

use std::{sync::Arc, time::Instant};

use rustix::{fs::OFlags, io::Errno, time::ClockId};

use super::{
    candidate::Candidate,
    eviction_loop::now_ns,
    queue::{Next, Receiver},
    report::{Report, Stuck},
    retry::Retries,
};
use crate::{
    cgroup::{Knob, PageSize, Throttled},
    journal::{Intent, Slot, Slots},
    model::Limit,
    policy::engine::{BrakeRefusal, Outcome},
};

const HIGH: &str = "memory.high";

/// What the reflex hands over.
#[derive(Debug)]
pub(super) enum Braking {
    /// Hold it back.
    Hold { brake: u64, candidate: Arc<Candidate>, high_bytes: u64 },
    /// Let go of it.
    Ease { brake: u64 },
}

/// What braking takes.
#[derive(Debug)]
pub struct BrakeBook {
    slots: Slots,
    throttled: Throttled,
}

impl BrakeBook {
    /// With slots for the intents, and where it is known that a file is held down on purpose.
    #[must_use]
    pub fn new(slots: Slots, throttled: Throttled) -> Self {
        Self { slots, throttled }
    }
}

struct Held {
    brake: u64,
    candidate: Arc<Candidate>,
    old: String,
    new: String,
    slot: Slot,
}

impl Held {
    /// That it cannot be given back, or is at last.
    fn report(&self, error: Option<String>) -> Report {
        let Self { candidate, old, .. } = self;
        Report::Stuck(Box::new(Stuck {
            candidate: Arc::clone(candidate),
            cgroup: candidate.dir.path().clone(),
            file: HIGH,
            value: old.clone(),
            error,
        }))
    }

    fn is_of(&self, candidate: &Candidate) -> bool {
        self.candidate.dir.id() == candidate.dir.id()
    }
}

/// Works until the reflex is gone, and then lets go. What cannot be given back, and what can at last, is told.
pub(super) fn run(
    queue: &Receiver<Braking>,
    mut book: Option<BrakeBook>,
    mut answer: impl FnMut(Outcome),
    mut emit: impl FnMut(Report),
) {
    let mut held: Option<Held> = None;
    let mut stuck: Retries<Held> = Retries::new();
    loop {
        let work = match queue.next_until(stuck.due()) {
            Next::Value(work) => work,
            Next::Late => {
                if let Some(book) = &mut book {
                    stuck.attempt(Instant::now(), |held| give_back_at_last(held, book, &mut emit));
                }
                continue;
            }
            Next::End => break,
        };
        match work {
            Braking::Hold { brake, candidate, high_bytes } => {
                if let (Some(before), Some(book)) = (held.take(), &mut book)
                    // The engine lets go of one before it asks for another.
                    && let Some(left) = give_back(before, book, &mut emit)
                {
                    stuck.add(left, Instant::now());
                }
                let outcome = match book.as_mut().ok_or(BrakeRefusal::Unwritten) {
                    Ok(book) => {
                        // What the file holds now must be its owner's.
                        let is_stuck = stuck.attempt_those(
                            |held| held.is_of(&candidate),
                            |held| give_back_at_last(held, book, &mut emit),
                        );
                        if is_stuck {
                            Err(BrakeRefusal::Lower)
                        } else {
                            hold(brake, candidate, high_bytes, book)
                        }
                    }
                    Err(reason) => Err(reason),
                };
                let now_ns = now_ns(ClockId::Boottime);
                answer(match outcome {
                    Ok(new) => {
                        held = Some(new);
                        Outcome::Contained { brake, now_ns }
                    }
                    Err(reason) => Outcome::Uncontained { brake, now_ns, reason },
                });
            }
            Braking::Ease { brake } => {
                let of_brake = held.take_if(|held| held.brake == brake);
                let left = match (of_brake, &mut book) {
                    (Some(held), Some(book)) => give_back(held, book, &mut emit),
                    (None, _) | (_, None) => None,
                };
                let given_back = left.is_none();
                if let Some(left) = left {
                    stuck.add(left, Instant::now());
                }
                answer(Outcome::Eased { brake, now_ns: now_ns(ClockId::Boottime), given_back });
            }
        }
    }
    if let Some(book) = &mut book {
        for held in stuck.into_all() {
            let _left = give_back_at_last(held, book, &mut emit);
        }
        if let Some(held) = held {
            let _left = give_back(held, book, &mut emit);
        }
    }
}

fn hold(
    brake: u64,
    candidate: Arc<Candidate>,
    high_bytes: u64,
    book: &mut BrakeBook,
) -> Result<Held, BrakeRefusal> {
    let dir = &candidate.dir;
    match candidate.guard.forbidden(dir, candidate.origin) {
        Ok(None) => {}
        Ok(Some(_)) => return Err(BrakeRefusal::Forbidden),
        Err(error) => return Err(refusal(&error, BrakeRefusal::Gone)),
    }
    let old = dir.read(HIGH).map_err(|error| refusal(&error, BrakeRefusal::Absent))?.trim_ascii().to_owned();
    if matches!(Limit::parse(&old), Some(Limit::Bytes(old)) if old <= high_bytes) {
        return Err(BrakeRefusal::Lower);
    }
    let new = high_bytes.to_string();
    let intent = Intent::Knob {
        path: dir.path().as_str().into(),
        cgroup: dir.id(),
        file: HIGH.into(),
        old: old.as_str().into(),
        new: new.as_str().into(),
    };
    let slot = book.slots.hold(&intent).ok_or(BrakeRefusal::Unwritten)?;
    book.throttled.begin(dir.id());
    match write_without_waiting(&candidate, &new) {
        Ok(()) => Ok(Held { brake, candidate, old, new, slot }),
        Err(reason) => {
            book.throttled.end(dir.id());
            book.slots.release(slot);
            Err(reason)
        }
    }
}

/// Newer kernels leave the reclaiming to those who grow if the file is open without blocking (`memory_high_write`); older
/// ones do it here.
fn write_without_waiting(candidate: &Candidate, value: &str) -> Result<(), BrakeRefusal> {
    let failed = |errno: Errno| match errno {
        Errno::NODEV | Errno::NOENT => BrakeRefusal::Gone,
        errno => BrakeRefusal::Kernel(errno.raw_os_error()),
    };
    let file = candidate.dir.open_write(HIGH).map_err(|error| refusal(&error, BrakeRefusal::Absent))?;
    rustix::fs::fcntl_setfl(&file, OFlags::NONBLOCK).map_err(failed)?;
    rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, value.as_bytes(), 0)).map_err(failed)?;
    Ok(())
}

fn refusal(error: &crate::cgroup::Error, gone: BrakeRefusal) -> BrakeRefusal {
    if error.is_gone() {
        return gone;
    }
    tracing::debug!("{}", crate::chain(error));
    BrakeRefusal::Kernel(Errno::IO.raw_os_error())
}

/// Writes the old value, if the file still holds ours: whoever wrote another since means it. What cannot be given back is
/// told, stays on the intent page, and is the answer.
fn give_back(held: Held, book: &mut BrakeBook, emit: &mut impl FnMut(Report)) -> Option<Held> {
    let (held, error) = ease(held, book)?;
    emit(held.report(Some(error)));
    Some(held)
}

/// The same of what is told already: that it is given back at last is told too.
fn give_back_at_last(held: Held, book: &mut BrakeBook, emit: &mut impl FnMut(Report)) -> Option<Held> {
    let done = held.report(None);
    let left = ease(held, book).map(|(held, _)| held);
    if left.is_none() {
        emit(done);
    }
    left
}

/// Tries to give it back; what cannot be is the answer, with the reason.
fn ease(held: Held, book: &mut BrakeBook) -> Option<(Held, String)> {
    let (dir, page) = (&held.candidate.dir, PageSize::of_this_machine());
    let given_back = dir.read(HIGH).and_then(|now| {
        let is_ours = Knob::parse(HIGH, &now, page) == Knob::parse(HIGH, &held.new, page);
        if is_ours { dir.write(HIGH, &held.old) } else { Ok(()) }
    });
    book.throttled.end(dir.id());
    match given_back {
        Err(error) if !error.is_gone() => Some((held, crate::chain(&error))),
        Ok(()) | Err(_) => {
            book.slots.release(held.slot);
            None
        }
    }
}
