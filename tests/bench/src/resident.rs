//! What a process holds in memory, and which processes a daemon has.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
};

use anyhow::Context as _;

/// What the daemon may hold that no file backs.
pub(crate) const BAR_MIB: f64 = 12.0;
/// The same for a process that speaks to others for it.
pub(crate) const HELPER_BAR_MIB: f64 = 8.0;

/// What a process holds now.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_field_names, reason = "the unit is part of a name")]
pub(crate) struct Resident {
    pub(crate) anon_bytes: u64,
    /// Without the program itself.
    pub(crate) shmem_bytes: u64,
    pub(crate) program_bytes: u64,
    /// Of all resident memory since the start, with the program.
    pub(crate) peak_bytes: u64,
}

impl Resident {
    pub(crate) fn of(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let of = |key: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let kib: u64 = line
                .and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
                .with_context(|| format!("no {key}"))?;
            Ok(kib << 10)
        };
        let program = fs::read_link(format!("/proc/{pid}/exe"))?.display().to_string();
        let part = parts(pid)?.remove(&program).unwrap_or_default();
        let program_bytes = part.resident_bytes - part.anonymous_bytes;
        // In a guest the program is on a tmpfs, whose pages count as shared memory. On a disk they count as the file's.
        let (shmem_bytes, is_on_tmpfs) = (of("RssShmem")?, of("RssFile")? < program_bytes);
        let shmem_bytes = if is_on_tmpfs { shmem_bytes.saturating_sub(program_bytes) } else { shmem_bytes };
        Ok(Self { anon_bytes: of("RssAnon")?, shmem_bytes, program_bytes, peak_bytes: of("VmHWM")? })
    }

    /// What no file backs.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.anon_bytes + self.shmem_bytes
    }
}

/// What is resident of mappings of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) resident_bytes: u64,
    /// The part of it that no file has.
    pub(crate) anonymous_bytes: u64,
}

/// What is resident, by what it is.
pub(crate) fn parts(pid: u32) -> anyhow::Result<BTreeMap<String, Part>> {
    let smaps = fs::File::open(format!("/proc/{pid}/smaps"))?;
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    let mut name = String::new();
    for line in BufReader::new(smaps).lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [range, _rights, _offset, _device, _inode, ref file @ ..] if range.contains('-') => {
                name = name_of(range, file.first().copied());
            }
            ["Rss:", kib, "kB"] => {
                parts.entry(name.clone()).or_default().resident_bytes += kib.parse::<u64>()? << 10;
            }
            ["Anonymous:", kib, "kB"] => {
                parts.entry(name.clone()).or_default().anonymous_bytes += kib.parse::<u64>()? << 10;
            }
            _ => {}
        }
    }
    Ok(parts)
}

/// What a mapping is: a file by its name; memory of no file by its size, as stacks of one kind are alike.
fn name_of(range: &str, name: Option<&str>) -> String {
    if let Some(name) = name {
        return name.to_owned();
    }
    let bytes = range.split_once('-').and_then(|(start, end)| {
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
    });
    format!("no file, mappings of {} KiB", bytes.unwrap_or(0) >> 10)
}

/// The processes that a daemon has started with that verb.
pub(crate) fn helpers(daemon: u32, verb: &str) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<u32> = children
        .flat_map(|pids| {
            pids.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .collect();
    let is_one = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(verb.as_bytes())
    };
    pids.into_iter().filter(is_one).collect()
}
