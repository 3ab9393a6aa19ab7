//! Reads kernel text without allocation.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Reads a file from its start into the buffer, in one system call; what does not fit is ignored.
pub(crate) fn read_into<'a>(fd: &OwnedFd, buffer: &'a mut [u8]) -> rustix::io::Result<&'a [u8]> {
    let count = rustix::io::retry_on_intr(|| rustix::io::pread(fd, &mut *buffer, 0))?;
    buffer.get(..count).ok_or(Errno::INVAL)
}

/// The number in a file with one number.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

/// The value after `key` in a file of `key value` lines.
pub(crate) fn keyed(text: &[u8], key: &[u8]) -> Option<u64> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(b" ")?;
        number(value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_whole_word() {
        assert_eq!(keyed(b"inactive_anon 8\nanon 5\n", b"anon"), Some(5));
        assert_eq!(keyed(b"anonymous 5\n", b"anon"), None);
        assert_eq!(keyed(b"anon x\n", b"anon"), None);
    }

    #[test]
    fn a_word_is_no_number() {
        assert_eq!(number(b"max\n"), None);
        assert_eq!(number(b"12\n"), Some(12));
    }
}
