//! A soft eviction whose victim another was asked to end, or may have been asked to end: the next daemon goes on with it.

use enforcer_events::eviction::Decision;

use super::recorded::Recorded;
use crate::{
    evict::InheritedEviction,
    journal::{Intent, Journal},
};

/// What goes on of an eviction that an earlier process began and did not end; `None` if it was hard, or if no one can have
/// been asked to end its victim.
pub(super) fn inherit(intent: &Intent<'_>, journal: &Journal) -> Option<InheritedEviction> {
    let recorded = Recorded::read(intent, journal)?;
    let (_, decision) = recorded.reported.decision.as_ref()?;
    let is_soft = is_soft(decision) && !recorded.facts.shortage.hard;
    // Someone may have been asked even if it is not known yet whether the disk has the decision: after a kill, what an
    // earlier process of this boot wrote counts as durable only once it is synced again. Who asks waits for that, the
    // start does not. No one was asked before a program had run, of which nothing is known now.
    let may_be_asked = recorded.facts.requested_ns.is_some() || decision.hook.is_none();
    if !(is_soft && may_be_asked) {
        return None;
    }
    let killed = recorded.killed();
    Some(recorded.inherited(killed.as_deref()))
}

fn is_soft(decision: &Decision) -> bool {
    let Decision { dry_run, hard, grace_ms, operator, .. } = decision;
    !dry_run && !hard && *grace_ms > 0 && operator.is_none()
}
