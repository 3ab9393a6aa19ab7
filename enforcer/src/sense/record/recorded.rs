//! Records of real kernels, as captured by `cargo xtask bench capture`: see `recorded/README.md`.

/// The captured records, by kernel.
pub(crate) const ALL: [(&str, &str); 2] =
    [("6.12", include_str!("recorded/6.12.txt")), ("7.2", include_str!("recorded/7.2.txt"))];

/// The captured records of one kernel.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The cgroups by their ids at that time.
    pub(crate) cgroups: Vec<(u64, String)>,
    /// The records, in their order.
    pub(crate) records: Vec<Vec<u8>>,
}

/// Parses captured records.
pub(crate) fn parse(text: &str) -> Recorded {
    let mut recorded = Recorded::default();
    for line in text.lines() {
        match line.strip_prefix('#') {
            Some(note) => {
                let mut words = note.split_whitespace();
                if words.next() == Some("cgroup") {
                    let id = words.next().unwrap().parse().unwrap();
                    recorded.cgroups.push((id, words.next().unwrap().to_owned()));
                }
            }
            None => recorded.records.push(bytes(line)),
        }
    }
    assert!(recorded.records.len() >= 14, "{} records are left", recorded.records.len());
    recorded
}

fn bytes(line: &str) -> Vec<u8> {
    let (pairs, rest) = line.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "{line}");
    pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
