//! Reads a candidate outside the reflex, through separately opened files.
use super::{Candidate, Target, charge, open_charge, open_count, stat};
use crate::{
    cgroup::{self, CgroupDir},
    model::CgroupPath,
    policy::engine::{Reading, Usage},
    sense::snapshot::ChargeFiles,
};

impl Candidate {
    /// Reads its current usage, including its task count, through files opened for this call.
    ///
    /// The kernel locks an open file while it is read. A thread that stalls while it reads the candidate's own files
    /// stalls the reflex too; without locked memory that can happen when memory is short.
    #[must_use]
    pub fn usage_apart(&self) -> Reading {
        match self.read_apart() {
            Ok(reading) => reading,
            Err(error) if error.is_gone() => Reading::Gone,
            Err(_) => Reading::Missing,
        }
    }

    /// The current working set of each container, read through files opened for this call. Skips containers that cannot
    /// be read, such as those that are gone.
    pub(in crate::evict) fn containers_apart(&self) -> Vec<(String, u64)> {
        self.containers
            .iter()
            .filter_map(|(name, path)| Some((name.clone(), self.working_set_bytes(path)?)))
            .collect()
    }

    /// Whether it has several containers, so that usage is reported per container.
    pub(in crate::evict) fn has_several_containers(&self) -> bool {
        self.containers.len() > 1
    }

    fn working_set_bytes(&self, container: &CgroupPath) -> Option<u64> {
        let within = container.as_str().strip_prefix(self.dir.path().as_str());
        let opened;
        let dir = match within.map(|within| within.strip_prefix('/')) {
            Some(Some(within)) => {
                opened = self.dir.open(&CgroupPath::parse(within).ok()?).ok()?;
                &opened
            }
            Some(None) if container == self.dir.path() => &self.dir,
            Some(None) | None => &self.targets.iter().find(|target| target.dir.path() == container)?.dir,
        };
        let usage = ChargeFiles::open(dir).ok()?.usage(&mut [0; stat::BUFFER_BYTES]);
        usage.ok().map(|usage| usage.working_set_bytes)
    }

    fn read_apart(&self) -> Result<Reading, cgroup::Error> {
        let mut is_empty = true;
        for target in &self.targets {
            is_empty &= !is_populated(&target.dir)?;
        }
        if is_empty {
            return Ok(Reading::Usage(Usage { process_count: Some(0), ..Usage::default() }));
        }
        let elsewhere = |target: &&Target| self.elsewhere.contains(&target.dir.id());
        let elsewhere = self.targets.iter().filter(elsewhere).map(|target| &target.dir);
        let (mut charged, mut counted) = (Some(Vec::new()), Vec::new());
        for (number, dir) in std::iter::once(&self.dir).chain(elsewhere).enumerate() {
            match open_charge(dir, &mut charged) {
                Ok(()) => open_count(dir, &mut counted)?,
                // An adopted cgroup may go on its own; the pod's comes first.
                Err(error) if error.is_gone() && number > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(charge(charged.as_deref(), Some(&counted), &mut [0; stat::BUFFER_BYTES]))
    }
}

/// Whether the cgroup holds a process; `false` if it is gone.
fn is_populated(dir: &CgroupDir) -> Result<bool, cgroup::Error> {
    match dir.read("cgroup.events") {
        Ok(text) => Ok(stat::keyed(text.as_bytes(), b"populated") == Some(1)),
        Err(error) if error.is_gone() => Ok(false),
        Err(error) => Err(error),
    }
}
