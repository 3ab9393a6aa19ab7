//! Gets the daemon enough descriptors to hold every candidate's files open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sense::snapshot::{Budget, FILES_BELOW, SHARE_BELOW};

/// Files beside those of pods: sockets and their readers, eBPF programs, the journal, the files of a sweep.
const OWN: u64 = 1_024;

/// The files for evicting a pod of three containers (each has two throttle files, a directory, and its counters if it
/// is in a cgroup of its own), for weighing it, and for measuring its growth.
const PER_POD: u64 = 30;

/// The cgroups below a pod's own that are read for each of the three purposes.
const BELOW_PER_POD: u64 = 3 * SHARE_BELOW as u64;

/// Fewer files may be open than pods need.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{allowed} files may be open, and {pods} pods take up to {needed}: {}; raise LimitNOFILE of the service, or lower maxPods",
    consequence(*allowed, *pods)
)]
pub(super) struct TooFew {
    allowed: u64,
    needed: u64,
    pods: u64,
}

fn consequence(allowed: u64, pods: u64) -> &'static str {
    if allowed < least(pods) {
        "pods beyond that can be neither evicted nor scored"
    } else {
        "some pods' memory is read by the pod's own counters alone, which follow its containers' late"
    }
}

/// Raises the limit of open files to what that many pods need: shells and services start with 1,024. Cgroups below
/// pods' own get the files that evicting all pods leaves.
///
/// A lower hard limit is raised too, which needs `CAP_SYS_RESOURCE`; neither limit is ever lowered.
pub(super) fn allow(pods: u64, budget: &Budget) -> Result<(), TooFew> {
    let needed = needed(pods);
    let allowed = raise(needed);
    budget.allow(below(allowed, pods));
    if allowed >= needed { Ok(()) } else { Err(TooFew { allowed, needed, pods }) }
}

/// Raises the limit to that, or as far as possible; returns how many files may be open then.
fn raise(needed: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(current) {
        return current.unwrap_or(u64::MAX);
    }
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(needed));
    let wanted = Rlimit { current: raised(current), maximum: raised(maximum) };
    if setrlimit(Resource::Nofile, wanted).is_ok() {
        return needed;
    }
    // Not permitted, or more than fs.nr_open: then up to the hard limit.
    let allowed = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    allowed.unwrap_or(u64::MAX)
}

/// How many cgroups below pods' own may be open at once.
fn below(allowed: u64, pods: u64) -> u64 {
    (allowed.saturating_sub(least(pods)) / FILES_BELOW).min(pods.saturating_mul(BELOW_PER_POD))
}

/// The files for evicting so many pods.
fn least(pods: u64) -> u64 {
    pods.saturating_mul(PER_POD).saturating_add(OWN)
}

fn needed(pods: u64) -> u64 {
    least(pods).saturating_add(pods.saturating_mul(BELOW_PER_POD * FILES_BELOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_gets_what_evicting_leaves() {
        assert_eq!(needed(100), 1_024 + 100 * 126);
        assert_eq!(below(needed(100), 100), 4_800);
        assert_eq!(below(u64::MAX, 100), 4_800);
        assert_eq!(below(least(100) + 7, 100), 3);
        assert_eq!(below(1_024, 100), 0);
        let message = |allowed| TooFew { allowed, needed: needed(100), pods: 100 }.to_string();
        assert!(message(4_000).contains("can be neither evicted"), "{}", message(4_000));
        assert!(message(5_000).contains("follow its containers' late"), "{}", message(5_000));
    }

    /// One after the other: the limits are the whole process's.
    #[test]
    fn as_many_are_allowed_as_pods_take_and_what_no_kernel_allows_is_reported() {
        let (before, budget) = (getrlimit(Resource::Nofile), Budget::of(0));
        // So few that any machine's hard limit allows them.
        allow(100, &budget).unwrap();
        let after = getrlimit(Resource::Nofile);
        assert!(after.current.is_none_or(|limit| limit >= needed(100)), "{after:?}");
        assert_eq!(after.maximum, before.maximum);
        allow(1, &budget).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, after.current, "it is not lowered");
        let error = allow(u64::MAX, &budget).unwrap_err();
        assert_eq!(error.needed, u64::MAX);
        assert!(error.to_string().contains("LimitNOFILE"), "{error}");
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
