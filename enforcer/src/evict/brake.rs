//! The helper thread that throttles a candidate by `memory.high`. Such a write may reclaim and take seconds.
//!
//! The old value is on the intent page while `memory.high` is lowered, so that the next start restores it if this
//! process is killed meanwhile. A failure to restore it is reported and retried.
//!
//! systemd writes the values that it knows when its units are reloaded (`systemctl daemon-reload`), and the pod's slice may be
//! a unit of it. The manager's signal `Reloading(false)` would say when; but a bus that is slow, or restarted with systemd, must
//! be able to delay nothing here, and others write as well. So the file is read again while it is lowered, which sees each
//! reload at most a [`CHECK`] after its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{fs::OFlags, io::Errno};

use super::{
    candidate::Candidate,
    queue::{Next, Receiver},
    report::{Report, Stuck},
};
use crate::{
    cgroup::{Temporary, Throttled},
    clock,
    journal::Slots,
    model::{CgroupValue, Limit},
    policy::engine::{BrakeRefusal, Outcome},
    retry::Retries,
};

/// How often a lowered `memory.high` is read again.
const CHECK: Duration = Duration::from_millis(250);

/// How often it is lowered again for one brake: who insists may have a reason.
const MOST_AGAIN: u32 = 3;

/// A write that took longer has reclaimed: this kernel ignores `O_NONBLOCK`. To write again could keep a release waiting for as
/// long. On a node that is short of memory, a thread may wait for the processor for a good part of that.
const RECLAIMING: Duration = Duration::from_secs(1);

/// When a value whose write took that long is read again; `None` if it is left as it is.
fn check_at(took: Duration, now: Instant) -> Option<Instant> {
    (took < RECLAIMING).then(|| now + CHECK)
}

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
    high: Temporary,
    /// When to read the file again; `None` if it is left as it is.
    check_at: Option<Instant>,
    /// How often it was lowered again.
    again: u32,
}

impl Held {
    /// Lowers `memory.high` again if another has written the old value. Any other value was written on purpose.
    fn check(&mut self) {
        let (dir, mut wrote) = (&self.candidate.dir, Duration::ZERO);
        let lowered = match self.high.is_undone(dir) {
            Ok(false) => Ok(()),
            Ok(true) if self.again == MOST_AGAIN => Err(String::from("it is written again and again")),
            Ok(true) => {
                self.again += 1;
                tracing::info!(cgroup = %dir.path(), "memory.high was put back by another meanwhile, and is lowered again");
                match self.candidate.guard.forbidden(dir, self.candidate.origin) {
                    Ok(None) => {
                        let began = Instant::now();
                        let written = write_without_waiting(&self.candidate, self.high.value().temporary());
                        wrote = began.elapsed();
                        written.map_err(|reason| format!("{reason:?}"))
                    }
                    Ok(Some(reason)) => Err(format!("{reason:?}")),
                    Err(error) => Err(crate::chain(&error)),
                }
            }
            Err(error) => Err(crate::chain(&error)),
        };
        if let Err(why) = &lowered {
            tracing::debug!(cgroup = %dir.path(), "memory.high is left as it is: {why}");
        }
        self.check_at = lowered.ok().and_then(|()| check_at(wrote, Instant::now()));
    }

    /// Reports that the value cannot be restored, or with `None` that it is restored at last.
    fn report(&self, error: Option<String>) -> Report {
        let Self { candidate, high, .. } = self;
        Report::Stuck(Box::new(Stuck {
            candidate: Arc::clone(candidate),
            cgroup: candidate.dir.path().clone(),
            value: high.value().original().clone(),
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
        let check_at = held.as_ref().and_then(|held| held.check_at);
        let work = match queue.next_until(stuck.due().into_iter().chain(check_at).min()) {
            Next::Value(work) => work,
            Next::Late => {
                let is_due = |held: &&mut Held| held.check_at.is_some_and(|at| at <= Instant::now());
                if let Some(held) = held.as_mut().filter(is_due) {
                    held.check();
                }
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
                let now_ns = clock::boottime_ns();
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
                answer(Outcome::Eased { brake, now_ns: clock::boottime_ns(), given_back });
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
    let high = CgroupValue::MemoryHigh(Limit::Amount(high_bytes));
    let value = Temporary::instead_of_present(dir, high.clone())
        .map_err(|error| refusal(&error, BrakeRefusal::Absent))?
        .ok_or(BrakeRefusal::Unwritten)?;
    if !high.is_raised_by(value.original()) {
        return Err(BrakeRefusal::Lower);
    }
    let temporary = Temporary::record(dir, value, &mut book.slots).ok_or(BrakeRefusal::Unwritten)?;
    book.throttled.begin(dir.id());
    let began = Instant::now();
    match write_without_waiting(&candidate, &high) {
        Ok(()) => {
            let now = Instant::now();
            let check_at = check_at(now.duration_since(began), now);
            Ok(Held { brake, candidate, high: temporary, check_at, again: 0 })
        }
        Err(reason) => {
            book.throttled.end(dir.id());
            temporary.forget(&mut book.slots);
            Err(reason)
        }
    }
}

/// With `O_NONBLOCK`, newer kernels leave the reclaim to the tasks that allocate (`memory_high_write`). Older ones
/// reclaim in this write.
fn write_without_waiting(candidate: &Candidate, value: &CgroupValue) -> Result<(), BrakeRefusal> {
    let failed = |errno: Errno| match errno {
        Errno::NODEV | Errno::NOENT => BrakeRefusal::Gone,
        errno => BrakeRefusal::Kernel(errno.raw_os_error()),
    };
    let file = candidate.dir.open_write(&value.file().name());
    let file = file.map_err(|error| refusal(&error, BrakeRefusal::Absent))?;
    rustix::fs::fcntl_setfl(&file, OFlags::NONBLOCK).map_err(failed)?;
    rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, value.to_string().as_bytes(), 0))
        .map_err(failed)?;
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
    let Held { brake, candidate, high, .. } = held;
    let left = high.restore(&candidate.dir, &mut book.slots);
    book.throttled.end(candidate.dir.id());
    let (high, error) = left?;
    Some((Held { brake, candidate, high, check_at: None, again: 0 }, crate::chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_is_slow_to_write_is_not_written_again() {
        let now = Instant::now();
        assert_eq!(check_at(Duration::from_millis(1), now), Some(now + CHECK));
        assert_eq!(check_at(Duration::from_secs(3), now), None);
    }
}
