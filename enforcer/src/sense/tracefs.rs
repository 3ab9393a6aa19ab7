//! The record formats in tracefs.
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use enforcer_common::{offsets::ABSENT, plain::PlainFormat};

/// Mount points of tracefs, the newer one first.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// A format file is about 1 KiB.
const MAX_BYTES: u64 = 64 * 1024;

/// The mount point of tracefs, if it is one of the two.
#[must_use]
pub(super) fn mount() -> Option<PathBuf> {
    MOUNTS.iter().map(PathBuf::from).find(|path| path.join("events/oom").is_dir())
}

/// The format of `oom:mark_victim` under this mount.
pub(super) fn mark_victim(mount: &Path) -> io::Result<Option<PlainFormat>> {
    let file = fs::File::open(mount.join("events/oom/mark_victim/format"))?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, MAX_BYTES), &mut text)?;
    Ok(parse_mark_victim(&text))
}

/// Parses a format file. Returns `None` without a four-byte `pid`, as the tracepoint is useless then. Other fields
/// must have the size that the program reads.
#[must_use]
pub(super) fn parse_mark_victim(text: &str) -> Option<PlainFormat> {
    let field = |name: &str, size_bytes: u32| {
        text.lines()
            .filter_map(parse_field)
            .find(|field| field.name == name && field.size_bytes == size_bytes)
            .map_or(ABSENT, |field| field.offset_bytes)
    };
    let format = PlainFormat {
        pid: field("pid", 4),
        uid: field("uid", 4),
        anon_rss: field("anon_rss", 8),
        file_rss: field("file_rss", 8),
        shmem_rss: field("shmem_rss", 8),
        pgtables: field("pgtables", 8),
        oom_score_adj: field("oom_score_adj", 2),
        comm: field("comm", 4),
    };
    (format.pid != ABSENT).then_some(format)
}

struct Field<'a> {
    name: &'a str,
    offset_bytes: u32,
    size_bytes: u32,
}

/// One line, its parts separated by tabs: `field:unsigned long anon_rss; offset:24; size:8; signed:0;`
fn parse_field(line: &str) -> Option<Field<'_>> {
    let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
    let name = parts.next()?.split_whitespace().next_back()?;
    let name = name.split('[').next()?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<u32>().ok();
    let offset_bytes = number("offset:")?;
    let size_bytes = number("size:")?;
    // A record is smaller than a page; a larger offset would make the program read elsewhere.
    (offset_bytes < 4096).then_some(Field { name, offset_bytes, size_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RICH: &str = "name: mark_victim
ID: 609
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] comm;\toffset:12;\tsize:4;\tsigned:0;
\tfield:unsigned long total_vm;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long anon_rss;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long file_rss;\toffset:32;\tsize:8;\tsigned:0;
\tfield:unsigned long shmem_rss;\toffset:40;\tsize:8;\tsigned:0;
\tfield:uid_t uid;\toffset:48;\tsize:4;\tsigned:0;
\tfield:unsigned long pgtables;\toffset:56;\tsize:8;\tsigned:0;
\tfield:short oom_score_adj;\toffset:64;\tsize:2;\tsigned:1;

print fmt: \"pid=%d comm=%s\", REC->pid, __get_str(comm)
";

    #[test]
    fn reads_the_rich_format() {
        let format = parse_mark_victim(RICH).unwrap();
        let expected = PlainFormat {
            pid: 8,
            uid: 48,
            anon_rss: 24,
            file_rss: 32,
            shmem_rss: 40,
            pgtables: 56,
            oom_score_adj: 64,
            comm: 12,
        };
        assert_eq!(format, expected);
    }

    #[test]
    fn reads_the_format_that_has_only_a_pid() {
        let format = parse_mark_victim("\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;\n").unwrap();
        assert_eq!(format, PlainFormat { pid: 8, ..PlainFormat::NONE });
    }

    #[test]
    fn fields_of_another_size_do_not_count() {
        let format = parse_mark_victim(
            "field:int pid; offset:8; size:4; signed:1;\nfield:u32 anon_rss; offset:12; size:4; signed:0;",
        )
        .unwrap();
        assert_eq!(format.anon_rss, ABSENT);
    }

    #[test]
    fn nonsense_is_no_format() {
        for text in ["", "field:", "field:int pid;", "field:int pid; offset:x; size:4;", "field:;;;;"] {
            assert_eq!(parse_mark_victim(text), None, "{text:?}");
        }
        assert_eq!(parse_mark_victim("field:int pid; offset:4294967295; size:4; signed:1;"), None);
    }
}
