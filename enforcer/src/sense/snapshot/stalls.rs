//! Parses pressure files (PSI), the node's and cgroups' alike.

use super::{Missing, ReadResult};

/// Memory pressure stall information at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stalls {
    /// At least one task stalled.
    pub some: Stall,
    /// All tasks that could run stalled.
    pub full: Stall,
}

/// How long tasks stalled.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stall {
    /// Share of the last ten seconds, in hundredths of a per cent: 0 to 10,000.
    pub avg10_centipercent: u32,
    /// Total since the start of counting, in µs.
    pub total_us: u64,
}

impl Stalls {
    /// From the text of a pressure file.
    pub(crate) fn parse(text: &[u8]) -> ReadResult<Self> {
        parse(text)
    }
}

/// Parses a pressure file.
pub(super) fn parse(text: &[u8]) -> ReadResult<Stalls> {
    let text = str::from_utf8(text).or(Err(Missing::Malformed))?;
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(stall).ok_or(Missing::Malformed)
    };
    Ok(Stalls { some: line("some")?, full: line("full")? })
}

/// Parses `avg10=1.25 avg60=0.40 avg300=0.09 total=123456`.
fn stall(line: &str) -> Option<Stall> {
    let value = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let (whole, hundredths) = value("avg10")?.split_once('.')?;
    if hundredths.len() != 2 {
        return None;
    }
    let whole: u32 = whole.parse().ok()?;
    let avg10_centipercent = whole.checked_mul(100)?.checked_add(hundredths.parse().ok()?)?;
    Some(Stall { avg10_centipercent, total_us: value("total")?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let text = b"some avg10=1.25 avg60=0.40 avg300=0.09 total=123456\nfull avg10=100.00 avg60=0.00 avg300=0.00 total=7\n";
        let stalls = parse(text).unwrap();
        assert_eq!(stalls.some, Stall { avg10_centipercent: 125, total_us: 123_456 });
        assert_eq!(stalls.full, Stall { avg10_centipercent: 10_000, total_us: 7 });
    }

    #[test]
    fn anything_else_is_malformed() {
        for text in [
            "",
            "some avg10=1.2 total=1\n",
            "some avg10=x total=1\nfull avg10=0.00 total=1\n",
            "some avg10=1.25 avg60=0.40 avg300=0.09 total=123456\n",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(Missing::Malformed), "{text}");
        }
    }
}
