//! Archives in the "newc" format, which the kernel unpacks as its first root.
//!
//! The format: Documentation/driver-api/early-userspace/buffer-format.rst.
use std::io::{self, Write};

use anyhow::Context as _;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// Writes one archive. Names are relative to the root.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    out: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) -> anyhow::Result<()> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[])
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        self.entry(name, REGULAR | (mode & 0o7777), (0, 0), content)
    }

    pub(crate) fn link(&mut self, name: &str, target: &str) -> anyhow::Result<()> {
        self.entry(name, LINK | 0o777, (0, 0), target.as_bytes())
    }

    pub(crate) fn device(&mut self, name: &str, major: u32, minor: u32) -> anyhow::Result<()> {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> anyhow::Result<W> {
        self.entry("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.out)
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> anyhow::Result<()> {
        self.inode += 1;
        let size = u32::try_from(content.len()).with_context(|| format!("{name} is larger than 4 GiB"))?;
        let name_size = u32::try_from(name.len() + 1).context("a name longer than 4 GiB")?;
        let fields = [
            self.inode, mode, 0, // uid
            0, // gid
            1, // links
            0, // mtime: the same content is the same archive
            size, 0, // device of the file itself
            0, device.0, device.1, name_size, 0, // checksum, which this variant leaves out
        ];
        let mut header = Vec::from(b"070701");
        for field in fields {
            write!(header, "{field:08x}")?;
        }
        let write = |out: &mut W| -> io::Result<()> {
            out.write_all(&header)?;
            out.write_all(name.as_bytes())?;
            out.write_all(&[0])?;
            // Content and headers begin at multiples of four.
            out.write_all(padding(header.len() + name.len() + 1))?;
            out.write_all(content)?;
            out.write_all(padding(content.len()))
        };
        write(&mut self.out).with_context(|| format!("cannot write {name} to an archive"))
    }
}

fn padding(length: usize) -> &'static [u8] {
    match length % 4 {
        0 => &[],
        1 => &[0; 3],
        2 => &[0; 2],
        _ => &[0; 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_to_four() {
        let mut archive = Archive::new(Vec::new());
        archive.file("ab", 0o644, b"12345").unwrap();
        let bytes = archive.finish().unwrap();
        // 110 of header, "ab\0", 3 of padding, then the content.
        assert_eq!(bytes.get(116..121), Some(&b"12345"[..]));
        assert_eq!(bytes.get(124..130), Some(&b"070701"[..]));
        assert_eq!(bytes.len() % 4, 0);
        assert!(bytes.ends_with(b"TRAILER!!!\0\0\0\0"));
    }

    #[test]
    fn header_says_kind_mode_and_size() {
        let mut archive = Archive::new(Vec::new());
        archive.device("dev/console", 5, 1).unwrap();
        let bytes = archive.finish().unwrap();
        let field = |index: usize| {
            let begin = 6 + 8 * index;
            u32::from_str_radix(std::str::from_utf8(&bytes[begin..begin + 8]).unwrap(), 16).unwrap()
        };
        assert_eq!(field(1), 0o020_600);
        assert_eq!((field(6), field(9), field(10), field(11)), (0, 5, 1, 12));
    }
}
