//! Reads kernel text without allocation.

pub(super) use crate::sense::text::{keyed, number, read_into};

use crate::policy::engine::Usage;

/// `memory.stat` has some 3 KiB on current kernels, and what is read of it stands in its first half.
pub(super) const BUFFER_BYTES: usize = 8192;

/// What `memory.current` and `memory.stat` say together.
pub(super) fn usage(current_bytes: u64, stat: &[u8]) -> Option<Usage> {
    Some(Usage {
        current_bytes,
        working_set_bytes: current_bytes.saturating_sub(keyed(stat, b"inactive_file")?),
        anon_bytes: keyed(stat, b"anon")?,
        file_bytes: keyed(stat, b"file")?,
        shmem_bytes: keyed(stat, b"shmem")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &[u8] =
        b"anon 1000\nfile 500\nkernel 70\nfile_mapped 9\nshmem 100\ninactive_anon 8\ninactive_file 300\n";

    #[test]
    fn usage_is_split_and_less_what_is_easily_reclaimed() {
        let usage = usage(1600, STAT).unwrap();
        assert_eq!((usage.current_bytes, usage.working_set_bytes), (1600, 1300));
        assert_eq!((usage.anon_bytes, usage.file_bytes, usage.shmem_bytes), (1000, 500, 100));
        assert_eq!(super::usage(200, STAT).unwrap().working_set_bytes, 0);
    }

    #[test]
    fn what_is_missing_or_malformed_is_no_usage() {
        assert_eq!(usage(1600, b""), None);
        assert_eq!(usage(1600, b"anon x\nfile 1\nshmem 1\ninactive_file 1\n"), None);
    }
}
