//! Compares `enforcer plan` with the kernel's files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::{cgroup::ROOT, daemon::Daemon, wait::TIMEOUT};

/// The files that a plan may name, except those of huge pages, with the kernel's default in a new cgroup.
const KNOBS: [(&str, &str); 9] = [
    ("cpu.max", "max 100000"),
    ("cpu.weight", "100"),
    ("memory.high", "max"),
    ("memory.low", "0"),
    ("memory.max", "max"),
    ("memory.min", "0"),
    ("memory.oom.group", "0"),
    ("memory.swap.max", "max"),
    ("pids.max", "max"),
];

/// A page of every machine that guests are.
const PAGE_BYTES: u64 = 4096;

/// The plan of a daemon's manifests under its configuration, on this machine.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The files by cgroup, of every planned cgroup.
    pub cgroups: BTreeMap<String, BTreeMap<String, String>>,
    /// The scores by container's cgroup.
    pub scores: BTreeMap<String, i64>,
    /// The cgroups of the pods that are not admitted.
    pub rejected: BTreeSet<String>,
    kubepods: String,
}

impl Planned {
    /// Runs `enforcer plan -o json` on the daemon's manifests.
    pub fn of(daemon: &Daemon) -> anyhow::Result<Self> {
        let mut plan = daemon.verb(&["-o", "json", "plan", "-f"]);
        let output = plan.arg(daemon.pods()).output().context("cannot run enforcer plan")?;
        let reported = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "enforcer plan ended with {}: {reported}", output.status);
        Self::read(&serde_json::from_slice(&output.stdout).context("the plan is no JSON")?)
    }

    fn read(document: &Value) -> anyhow::Result<Self> {
        let kubepods = text(&document["node"]["cgroup"]["path"])?.to_owned();
        let mut planned =
            Self { cgroups: BTreeMap::new(), scores: BTreeMap::new(), rejected: BTreeSet::new(), kubepods };
        planned.add(&document["node"]["cgroup"])?;
        let reserved = document["node"]["reservedCgroups"].as_array();
        for cgroup in reserved.into_iter().flatten().chain(list(&document["qosCgroups"])?) {
            planned.add(cgroup)?;
        }
        for pod in list(&document["pods"])? {
            if pod["admission"]["admitted"] != true {
                planned.rejected.insert(text(&pod["cgroup"]["path"])?.to_owned());
                continue;
            }
            planned.add(&pod["cgroup"])?;
            for container in list(&pod["containers"])? {
                let path = planned.add(&container["cgroup"])?;
                let score = container["oomScoreAdj"].as_i64().context("a container without a score")?;
                planned.scores.insert(path, score);
            }
        }
        Ok(planned)
    }

    fn add(&mut self, cgroup: &Value) -> anyhow::Result<String> {
        let path = text(&cgroup["path"])?.to_owned();
        let files = cgroup["files"].as_object().context("a cgroup without files")?;
        let files = files.iter().map(|(file, value)| Ok((file.clone(), text(value)?.to_owned())));
        self.cgroups.insert(path.clone(), files.collect::<anyhow::Result<_>>()?);
        Ok(path)
    }

    /// Waits until the kernel holds all planned values.
    pub fn wait_until_held(&self) -> anyhow::Result<()> {
        self.wait_until_held_beside(&[])
    }

    /// The same, with cgroups below kubepods that are not the daemon's, given by their paths.
    pub fn wait_until_held_beside(&self, strangers: &[&str]) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let differences = self.differences(strangers)?;
            if differences.is_empty() {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!("after {TIMEOUT:?} this is not as planned:\n  {}", differences.join("\n  "));
            }
            // A look reads every file.
            sleep(Duration::from_millis(300));
        }
    }

    /// Every file of every cgroup that is not as planned (a file that the plan does not name must hold the kernel's
    /// default); every process with another score; and every cgroup below kubepods that is in no plan.
    pub fn differences(&self, strangers: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut differences = Vec::new();
        for (path, files) in &self.cgroups {
            let folder = folder(path);
            if !folder.is_dir() {
                differences.push(format!("{path} is not there"));
                continue;
            }
            for (file, wanted) in wanted(&folder, files)? {
                let held = match fs::read_to_string(folder.join(&file)) {
                    Ok(held) => held.trim_end().to_owned(),
                    // It or its cgroup is gone.
                    Err(error) => format!("({error})"),
                };
                if held != wanted {
                    differences.push(format!("{path}/{file} holds {held:?}, planned is {wanted:?}"));
                }
            }
        }
        for (path, score) in &self.scores {
            for pid in pids_below(&folder(path)) {
                let held = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap_or_default();
                // An ended process has none.
                if !held.is_empty() && held.trim_end() != score.to_string() {
                    differences.push(format!(
                        "process {pid} of {path} has score {}, planned is {score}",
                        held.trim_end()
                    ));
                }
            }
        }
        let mut found = Vec::new();
        walk(&folder(&self.kubepods), &mut |folder| {
            let path = format!("/{}", folder.strip_prefix(ROOT).unwrap_or(folder).display());
            let is_container = self.scores.contains_key(&path);
            let skip = is_container || strangers.contains(&path.as_str());
            if !skip && !self.cgroups.contains_key(&path) {
                found.push(format!("{path} is in no plan"));
            }
            !skip
        });
        differences.extend(found);
        Ok(differences)
    }
}

/// The folder of a cgroup.
#[must_use]
pub fn folder(path: &str) -> PathBuf {
    Path::new(ROOT).join(path.trim_start_matches('/'))
}

/// Every file to compare, with its text after the planned value was written.
fn wanted(folder: &Path, planned: &BTreeMap<String, String>) -> anyhow::Result<BTreeMap<String, String>> {
    let exists = |file: &str| folder.join(file).exists();
    let mut wanted: BTreeMap<String, String> = KNOBS
        .iter()
        .filter(|(file, _)| exists(file))
        .map(|(file, default)| ((*file).to_owned(), (*default).to_owned()))
        .collect();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if huge_page_bytes(&name).is_some() {
            wanted.insert(name, String::from("max"));
        }
    }
    for (file, value) in planned {
        wanted.insert(file.clone(), as_read(file, value)?);
    }
    Ok(wanted)
}

/// What the kernel shows after a value was written to a file: limits of memory in whole pages, those of huge pages in
/// whole huge pages.
pub fn as_read(file: &str, value: &str) -> anyhow::Result<String> {
    let unit = match huge_page_bytes(file) {
        Some(bytes) => bytes,
        None if file.starts_with("memory.") && file != "memory.oom.group" => PAGE_BYTES,
        None => return Ok(value.to_owned()),
    };
    if value == "max" {
        return Ok(value.to_owned());
    }
    let bytes: u64 = value.parse().with_context(|| format!("{file}: {value:?} is no number"))?;
    Ok((bytes - bytes % unit).to_string())
}

/// The page's size in `hugetlb.2MB.max`.
fn huge_page_bytes(file: &str) -> Option<u64> {
    let size = file.strip_prefix("hugetlb.")?.strip_suffix(".max")?;
    let (number, unit) = size.split_at_checked(size.len().checked_sub(2)?)?;
    let unit = match unit {
        "KB" => 1 << 10,
        "MB" => 1 << 20,
        "GB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// The processes in a cgroup and in all below it; none where it is gone.
#[must_use]
pub fn pids_below(folder: &Path) -> Vec<u32> {
    let mut pids = Vec::new();
    walk(folder, &mut |folder| {
        // A threaded cgroup has no list of processes: they stand in the one above it.
        let procs = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        pids.extend(procs.lines().filter_map(|line| line.parse::<u32>().ok()));
        true
    });
    pids
}

/// Visits a folder and, where that says so, all below it.
fn walk(folder: &Path, visit: &mut impl FnMut(&Path) -> bool) {
    if !folder.is_dir() || !visit(folder) {
        return;
    }
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
}

fn text(value: &Value) -> anyhow::Result<&str> {
    value.as_str().with_context(|| format!("the plan has {value} where a text belongs"))
}

fn list(value: &Value) -> anyhow::Result<&Vec<Value>> {
    value.as_array().with_context(|| format!("the plan has {value} where a list belongs"))
}

#[cfg(test)]
mod tests {
    use super::{as_read, huge_page_bytes};

    #[test]
    fn values_read_as_the_kernel_rounds_them() {
        for (file, written, read) in [
            ("memory.max", "209715201", "209715200"),
            ("memory.high", "4095", "0"),
            ("memory.max", "max", "max"),
            ("memory.oom.group", "1", "1"),
            ("hugetlb.2MB.max", "3145728", "2097152"),
            ("cpu.max", "20001 100000", "20001 100000"),
            ("pids.max", "4097", "4097"),
        ] {
            assert_eq!(as_read(file, written).unwrap(), read, "{file}");
        }
        assert!(as_read("memory.max", "-1").is_err());
        assert_eq!(huge_page_bytes("hugetlb.1GB.max"), Some(1 << 30));
        assert_eq!(huge_page_bytes("hugetlb.2MB.rsvd.max"), None);
    }
}
