//! The helper thread that holds a candidate back by `memory.high`: such a write may reclaim, and take seconds.
//!
//! What the file held is on the intent page for as long as it is lowered, so that the next start gives it back if this
//! process is killed meanwhile.

use std::sync::Arc;

use rustix::{fs::OFlags, io::Errno, time::ClockId};

use super::{candidate::Candidate, queue::Receiver, turn::now_ns};
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

/// Works until the reflex is gone, and then lets go.
pub(super) fn run(queue: &Receiver<Braking>, mut book: Option<BrakeBook>, mut answer: impl FnMut(Outcome)) {
    let mut held: Option<Held> = None;
    while let Some(work) = queue.next() {
        match work {
            Braking::Hold { brake, candidate, high_bytes } => {
                if let (Some(before), Some(book)) = (held.take(), &mut book) {
                    // The engine lets go of one before it asks for another.
                    ease(before, book);
                }
                let outcome = match book.as_mut().ok_or(BrakeRefusal::Unwritten) {
                    Ok(book) => hold(brake, candidate, high_bytes, book),
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
                let given_back = match (of_brake, &mut book) {
                    (Some(held), Some(book)) => ease(held, book),
                    (None, _) | (_, None) => true,
                };
                answer(Outcome::Eased { brake, now_ns: now_ns(ClockId::Boottime), given_back });
            }
        }
    }
    if let (Some(held), Some(book)) = (held, &mut book) {
        ease(held, book);
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

/// Writes the old value, if the file still holds ours: whoever wrote another since means it. Answers whether nothing of
/// ours is left; if something is, it stays on the intent page.
fn ease(held: Held, book: &mut BrakeBook) -> bool {
    let Held { brake: _, candidate, old, new, slot } = held;
    let (dir, page) = (&candidate.dir, PageSize::of_this_machine());
    let given_back = dir.read(HIGH).and_then(|now| {
        let is_ours = Knob::parse(HIGH, &now, page) == Knob::parse(HIGH, &new, page);
        if is_ours { dir.write(HIGH, &old) } else { Ok(()) }
    });
    book.throttled.end(dir.id());
    match given_back {
        Ok(()) => book.slots.release(slot),
        Err(error) if error.is_gone() => book.slots.release(slot),
        Err(error) => {
            tracing::error!("memory.high stays at {new}: {}", crate::chain(&error));
            return false;
        }
    }
    true
}
