//! Which programs and maps outlive the daemon, and under which version.
use enforcer_common::{plain::PlainFormat, record};
use zerocopy::IntoBytes as _;

use super::{
    OBJECT,
    plan::{self, Wanted},
};
use crate::sense::Choice;

/// What happens to a program or map when the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// It is pinned, and goes on without the daemon.
    Kept,
    /// It ends when the daemon stops, or when the next one starts if the daemon was killed: its data is about the daemon's
    /// current work, or counted from its start.
    Ours,
}

/// One line a program. A program that is not listed is as those of [`Life::Ours`].
const PROGRAMS: [(&str, Life); 25] = [
    // These report OOM kills.
    ("mark_victim_task", Life::Kept),
    ("mark_victim_pid", Life::Kept),
    ("mark_victim_plain", Life::Kept),
    ("oom_signal", Life::Kept),
    ("process_exit", Life::Kept),
    ("process_freed", Life::Kept),
    ("out_of_memory", Life::Kept),
    ("oom_over", Life::Kept),
    ("memory_back", Life::Kept),
    // The cgroup's name, even if the cgroup is gone when a reader asks.
    ("cgroup_made", Life::Kept),
    ("cgroup_gone", Life::Kept),
    // Stalls and edges: only a running daemon acts on them.
    ("direct_reclaim_begin", Life::Ours),
    ("direct_reclaim_end", Life::Ours),
    ("memcg_reclaim_begin", Life::Ours),
    ("memcg_reclaim_end", Life::Ours),
    ("kswapd_wake", Life::Ours),
    ("memcg_reclaim_entered", Life::Ours),
    ("reclaim_throttled", Life::Ours),
    ("memory_high_begin", Life::Ours),
    ("memory_high_end", Life::Ours),
    // The guard: it reports other writers of what the daemon keeps, and must recognise the daemon.
    ("score_attached", Life::Ours),
    ("score_forked", Life::Ours),
    ("score_executed", Life::Ours),
    ("score_written", Life::Ours),
    ("cgroup_written", Life::Ours),
];

/// One line a map. Every map of a kept program must be kept: the next daemon's programs use the same.
const MAPS: [(&str, Life); 22] = [
    ("EVENTS", Life::Kept),
    ("MARKED", Life::Kept),
    ("KILLS", Life::Kept),
    ("KILL_WATCH", Life::Kept),
    ("OOMS", Life::Kept),
    ("DROPS", Life::Kept),
    ("SEEN", Life::Kept),
    ("RECLAIMING", Life::Kept),
    ("MARKING", Life::Kept),
    ("MEMORIES", Life::Kept),
    ("SHARERS", Life::Kept),
    ("LIFE", Life::Kept),
    ("LIFE_COUNTS", Life::Kept),
    ("LIFE_SCRATCH", Life::Kept),
    // The programs' own diagnostics, in development builds.
    ("AYA_LOGS", Life::Kept),
    ("EDGES", Life::Ours),
    ("GUARD", Life::Ours),
    ("WANTED", Life::Ours),
    ("GUARDED", Life::Ours),
    ("RECLAIM", Life::Ours),
    ("STALLS", Life::Ours),
    ("STALL_RECORDS", Life::Ours),
];

/// Whether a program outlives the daemon.
pub(super) fn is_kept(program: &str) -> bool {
    PROGRAMS.contains(&(program, Life::Kept))
}

/// The maps that outlive the daemon.
pub(super) fn maps() -> impl Iterator<Item = &'static str> {
    MAPS.iter().filter(|(_, life)| *life == Life::Kept).map(|(name, _)| *name)
}

/// What must be equal for a daemon to go on with the programs of another one.
///
/// It is a hash of the eBPF object, the version of its records, its constants for this kernel, and the wanted programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// The version of this build, for this choice of programs.
    #[must_use]
    pub fn of(choice: &Choice) -> Self {
        let plain = choice.plain_format.unwrap_or(PlainFormat::NONE);
        let mut hash = Fnv::default();
        hash.add(OBJECT);
        hash.add(choice.offsets.as_bytes());
        hash.add(plain.as_bytes());
        hash.add(&[u8::from(choice.unified_memory)]);
        for Wanted { program, hook, consequence: _ } in plan::wanted(choice) {
            if is_kept(program) {
                hash.add(program.as_bytes());
                hash.add(hook.to_string().as_bytes());
            }
        }
        Self(hash.0)
    }

    /// The version of another build, by its number.
    #[must_use]
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }

    /// Its name in bpffs.
    pub(super) fn folder(self) -> String {
        format!("v{}-{:016x}", record::VERSION, self.0)
    }
}

/// Whether a folder's name is a version, this one or another.
pub(super) fn is_version(folder: &str) -> bool {
    let Some((records, number)) = folder.strip_prefix('v').and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    records.parse::<u16>().is_ok() && number.len() == 16 && number.bytes().all(hex)
}

/// FNV-1a, 64 bits, with each part's length: it must be equal in every build by every compiler.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, part: &[u8]) {
        for byte in part.len().to_le_bytes().iter().chain(part) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use enforcer_common::offsets::Offsets;

    use super::*;
    use crate::sense::{Facts, MarkProgram, Sight, choose};

    fn choice() -> Choice {
        Choice { mark: Some(MarkProgram::Task), raw: true, ..choose(&Facts::default()) }
    }

    #[test]
    fn every_program_that_can_be_wanted_has_its_line() {
        let all = Choice { limit_owner: true, sight: Sight { scores: true, writes: true }, ..choice() };
        for mark in [MarkProgram::Task, MarkProgram::Pid, MarkProgram::Plain] {
            for wanted in plan::wanted(&Choice { mark: Some(mark), ..all.clone() }) {
                assert!(
                    PROGRAMS.iter().any(|(program, _)| *program == wanted.program),
                    "say in PROGRAMS whether {} outlives the daemon",
                    wanted.program
                );
            }
        }
        assert!(is_kept("process_exit") && !is_kept("score_forked") && !is_kept("unheard_of"));
    }

    #[test]
    fn a_version_is_of_what_the_kept_programs_know() {
        let version = Version::of(&choice());
        assert_eq!(version, Version::of(&choice()));
        assert_eq!(
            version,
            Version::of(&Choice { sight: Sight::default(), ..choice() }),
            "the guard is not kept"
        );
        let moved = Offsets { task_pid: 8, ..choice().offsets };
        let others = [
            Choice { offsets: moved, ..choice() },
            Choice { unified_memory: !choice().unified_memory, ..choice() },
            Choice { mark: Some(MarkProgram::Plain), ..choice() },
            Choice { plain_format: Some(PlainFormat { pid: 12, ..PlainFormat::NONE }), ..choice() },
        ];
        for other in others {
            assert_ne!(version, Version::of(&other), "{other:?}");
        }
    }

    #[test]
    fn folders_of_versions_are_known_by_their_names() {
        assert!(is_version(&Version::numbered(7).folder()));
        assert!(is_version("v12-0123456789abcdef"));
        for other in
            ["v1-0123456789ABCDEF", "v1-0123", "v-0123456789abcdef", "1-0123456789abcdef", "", "maps"]
        {
            assert!(!is_version(other), "{other}");
        }
    }
}
