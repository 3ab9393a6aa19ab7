//! The helper thread that throttles a candidate by `memory.high`. Such a write may reclaim and take seconds.
//!
//! The old value is on the intent page while `memory.high` is lowered, so that the next start restores it if this
//! process is killed meanwhile. A failure to restore it is reported and retried.

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
    cgroup::{Throttled, holds},
    journal::{Intent, Slot, Slots},
    model::Limit,
    policy::engine::{BrakeRefusal, Outcome},
};

const HIGH: &str = "memory.high";

/// A request of the reflex.
#[derive(Debug)]
pub(super) enum Braking {
    /// Lowers `memory.high`.
    Hold { brake: u64, candidate: Arc<Candidate>, high_bytes: u64 },
    /// Restores it.
    Ease { brake: u64 },
}

/// What the brake thread needs.
#[derive(Debug)]
pub struct BrakeBook {
    slots: Slots,
    throttled: Throttled,
}

impl BrakeBook {
    /// `slots` hold the intents; `throttled` records the cgroups whose `memory.high` is lowered on purpose.
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
    /// Reports that the value cannot be restored, or with `None` that it is restored at last.
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

/// Works until the reflex is gone, then restores every value. Reports failures to restore and later successes.
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
                    stuck.attempt(Instant::now(), |held| retry_restore(held, book, &mut emit));
                }
                continue;
            }
            Next::End => break,
        };
        match work {
            Braking::Hold { brake, candidate, high_bytes } => {
                if let (Some(before), Some(book)) = (held.take(), &mut book)
                    // The engine eases one brake before it asks for another.
                    && let Some(left) = restore(before, book, &mut emit)
                {
                    stuck.add(left, Instant::now());
                }
                let outcome = match book.as_mut().ok_or(BrakeRefusal::Unwritten) {
                    Ok(book) => {
                        // The current value must be its owner's before it is saved as the old one.
                        let is_stuck = stuck.attempt_those(
                            |held| held.is_of(&candidate),
                            |held| retry_restore(held, book, &mut emit),
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
                    (Some(held), Some(book)) => restore(held, book, &mut emit),
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
            let _left = retry_restore(held, book, &mut emit);
        }
        if let Some(held) = held {
            let _left = restore(held, book, &mut emit);
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

/// With `O_NONBLOCK`, newer kernels leave the reclaim to the tasks that allocate (`memory_high_write`). Older ones
/// reclaim in this write.
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

/// Writes the old value if the file still holds ours; any other value was written on purpose since. On failure it
/// reports the error, leaves the intent on the page, and returns `held`.
fn restore(held: Held, book: &mut BrakeBook, emit: &mut impl FnMut(Report)) -> Option<Held> {
    let (held, error) = ease(held, book)?;
    emit(held.report(Some(error)));
    Some(held)
}

/// Tries again to restore what is already reported as stuck; reports only success.
fn retry_restore(held: Held, book: &mut BrakeBook, emit: &mut impl FnMut(Report)) -> Option<Held> {
    let done = held.report(None);
    let left = ease(held, book).map(|(held, _)| held);
    if left.is_none() {
        emit(done);
    }
    left
}

/// Tries to restore the old value; on failure returns `held` with the error.
fn ease(held: Held, book: &mut BrakeBook) -> Option<(Held, String)> {
    let dir = &held.candidate.dir;
    let given_back = dir
        .read(HIGH)
        .and_then(|now| if holds(HIGH, &now, &held.new) { dir.write(HIGH, &held.old) } else { Ok(()) });
    book.throttled.end(dir.id());
    match given_back {
        Err(error) if !error.is_gone() => Some((held, crate::chain(&error))),
        Ok(()) | Err(_) => {
            book.slots.release(held.slot);
            None
        }
    }
}
