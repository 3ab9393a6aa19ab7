use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sense::snapshot::MOST_BELOW;

/// What is open beside pods' files: sockets and their readers, eBPF programs, the journal, what a sweep opens at a time.
const OWN: u64 = 1_024;

/// What evicting a pod of three containers takes, each with two brakes, a directory, and its counters if it took a
/// cgroup of its own with it; weighing it; seeing how fast it grows; and the two counters of as many cgroups below it as are
/// looked at, for each of the three.
const PER_POD: u64 = 30 + 3 * 2 * MOST_BELOW as u64;

/// Fewer files may be open than pods take.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{allowed} files may be open, and {pods} pods take up to {needed}: pods beyond that can be neither evicted nor scored; \
     raise LimitNOFILE of the service, or lower maxPods"
)]
pub(super) struct TooFew {
    allowed: u64,
    needed: u64,
    pods: u64,
}

/// Has as many files allowed as that many pods take: shells and services start with 1,024.
///
/// The hard limit is raised too where it is lower, which takes `CAP_SYS_RESOURCE`; never is either lowered.
pub(super) fn allow(pods: u64) -> Result<(), TooFew> {
    let needed = needed(pods);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(current) {
        return Ok(());
    }
    let raised = |limit: Option<u64>| limit.map(|limit| limit.max(needed));
    let wanted = Rlimit { current: raised(current), maximum: raised(maximum) };
    if setrlimit(Resource::Nofile, wanted).is_ok() {
        return Ok(());
    }
    // Not allowed, or more than fs.nr_open: then as far as it goes without asking for more.
    let allowed = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) if enough(maximum) => return Ok(()),
        Ok(()) => maximum,
        Err(_) => current,
    };
    Err(TooFew { allowed: allowed.unwrap_or(u64::MAX), needed, pods })
}

fn needed(pods: u64) -> u64 {
    pods.saturating_mul(PER_POD).saturating_add(OWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One after the other: the limits are the whole process's.
    #[test]
    fn as_many_are_allowed_as_pods_take_and_what_no_kernel_allows_is_told() {
        let before = getrlimit(Resource::Nofile);
        // So few that any machine's hard limit allows them.
        allow(100).unwrap();
        let after = getrlimit(Resource::Nofile);
        assert!(after.current.is_none_or(|limit| limit >= needed(100)), "{after:?}");
        assert_eq!(after.maximum, before.maximum);
        allow(1).unwrap();
        assert_eq!(getrlimit(Resource::Nofile).current, after.current, "it is not lowered");
        let error = allow(u64::MAX).unwrap_err();
        assert_eq!(error.needed, u64::MAX);
        assert!(error.to_string().contains("LimitNOFILE"), "{error}");
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
