//! How fast pods grow, looked at only while it matters.
use std::{
    collections::{HashMap, hash_map::Entry},
    os::fd::OwnedFd,
    sync::Arc,
};

use super::Suspect;
use crate::{
    cgroup::{CgroupDir, Error},
    model::CgroupId,
    policy::engine::Resource,
    sense::snapshot::Slope,
};

/// The most pods that are named.
const MAX_NAMED: usize = 10;

/// A pod that grows by less than this part of what is lost is not its cause.
const CAUSE_SHARE: u64 = 20;

/// The pods, with their files open while it matters.
#[derive(Default)]
pub(super) struct Growth {
    root: Option<Arc<CgroupDir>>,
    suspects: Vec<Suspect>,
    open: HashMap<CgroupId, Counters>,
}

/// A pod's counters, and how they change.
struct Counters {
    current: Counter,
    pids: Option<Counter>,
}

struct Counter {
    file: OwnedFd,
    slope: Slope,
    latest: Option<(u64, Option<i64>)>,
}

/// A pod that grew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grown<'a> {
    pub(super) suspect: &'a Suspect,
    /// What it has, in the resource's base unit.
    pub(super) usage: u64,
    pub(super) per_second: u64,
}

impl Growth {
    pub(super) fn suspect(&mut self, root: Arc<CgroupDir>, suspects: Vec<Suspect>) {
        self.open.retain(|cgroup, _| suspects.iter().any(|suspect| suspect.cgroup == *cgroup));
        self.root = Some(root);
        self.suspects = suspects;
    }

    /// Looks at every pod.
    pub(super) fn look(&mut self, now_ns: u64) {
        let Self { root: Some(root), suspects, open } = self else { return };
        for suspect in suspects {
            let counters = match open.entry(suspect.cgroup) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match Counters::open(root, suspect) {
                    Ok(Some(opened)) => place.insert(opened),
                    // One that is gone, or another by now, is nobody's cause.
                    Ok(None) | Err(_) => continue,
                },
            };
            counters.look(now_ns);
        }
    }

    /// Closes what was open: at rest nothing is held.
    pub(super) fn rest(&mut self) {
        self.open = HashMap::new();
    }

    /// Whose doing it is that so much of the resource is lost a second, the fastest first.
    pub(super) fn causes(&self, resource: Resource, lost_per_second: u64) -> Vec<Grown<'_>> {
        let mut causes: Vec<Grown<'_>> = self
            .suspects
            .iter()
            .filter_map(|suspect| self.grown(suspect, resource))
            .filter(|grown| grown.per_second > lost_per_second / CAUSE_SHARE)
            .collect();
        causes.sort_by_key(|grown| std::cmp::Reverse(grown.per_second));
        causes.truncate(MAX_NAMED);
        causes
    }

    fn grown<'a>(&self, suspect: &'a Suspect, resource: Resource) -> Option<Grown<'a>> {
        let Counters { current, pids } = self.open.get(&suspect.cgroup)?;
        let counter = match resource {
            Resource::Memory => current,
            Resource::Pids => pids.as_ref()?,
        };
        let (usage, per_second) = counter.latest?;
        let per_second = per_second.and_then(|rate| u64::try_from(rate).ok())?;
        Some(Grown { suspect, usage, per_second })
    }
}

impl Counters {
    fn open(root: &CgroupDir, suspect: &Suspect) -> Result<Option<Self>, Error> {
        let dir = root.open(&suspect.path)?;
        if dir.id() != suspect.cgroup {
            return Ok(None);
        }
        let current = Counter::new(dir.open_read("memory.current")?);
        let pids = dir.open_read("pids.current").ok().map(Counter::new);
        Ok(Some(Self { current, pids }))
    }

    fn look(&mut self, now_ns: u64) {
        self.current.look(now_ns);
        if let Some(pids) = &mut self.pids {
            pids.look(now_ns);
        }
    }
}

impl Counter {
    fn new(file: OwnedFd) -> Self {
        Self { file, slope: Slope::default(), latest: None }
    }

    fn look(&mut self, now_ns: u64) {
        let mut buffer = [0; 32];
        let read = rustix::io::pread(&self.file, buffer.as_mut_slice(), 0).ok();
        let number = read
            .and_then(|count| str::from_utf8(buffer.get(..count)?).ok())
            .and_then(|text| text.trim_ascii().parse::<u64>().ok());
        self.latest = number.map(|number| (number, self.slope.observe(now_ns, number)));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::model::{CgroupPath, PodName, PodUid};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn who_grows_most_is_named_first_and_who_does_not_is_not() {
        let temp = tempfile::tempdir().unwrap();
        let root = Arc::new(CgroupDir::unchecked(temp.path()).unwrap());
        let set = |name: &str, bytes: u64| {
            fs::create_dir_all(temp.path().join(name)).unwrap();
            fs::write(temp.path().join(name).join("memory.current"), bytes.to_string()).unwrap();
        };
        let suspects = ["slow", "fast", "still", "tiny", "gone"].map(|name| {
            set(name, 1_000);
            let path = CgroupPath::parse(name).unwrap();
            Suspect {
                pod: PodName { namespace: String::from("default"), name: name.to_owned() },
                uid: PodUid::new(name).unwrap(),
                cgroup: root.open(&path).unwrap().id(),
                path,
                request_bytes: 0,
            }
        });
        let mut growth = Growth::default();
        growth.suspect(root, suspects.to_vec());
        fs::remove_dir_all(temp.path().join("gone")).unwrap();
        growth.look(0);
        assert!(growth.causes(Resource::Memory, 1_000).is_empty(), "one look says nothing");
        for (name, bytes) in [("slow", 1_300), ("fast", 1_900), ("still", 900), ("tiny", 1_010)] {
            set(name, bytes);
        }
        growth.look(SECOND);
        let causes = growth.causes(Resource::Memory, 1_000);
        let named: Vec<_> = causes
            .iter()
            .map(|grown| (grown.suspect.pod.name.as_str(), grown.per_second, grown.usage))
            .collect();
        assert_eq!(named, [("fast", 900, 1_900), ("slow", 300, 1_300)]);
        assert!(growth.causes(Resource::Pids, 1).is_empty());
        growth.rest();
        assert!(growth.causes(Resource::Memory, 1_000).is_empty());
    }
}
