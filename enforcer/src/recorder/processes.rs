//! Reads the processes that the kernel's OOM killer would most readily kill.
//!
//! One short file of every process says how bad the kernel takes it to be; the others are read of the worst only.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    cgroup::{CgroupDir, MOUNT},
    clock,
    model::{CgroupId, CgroupPath},
    policy::flight::{MOST_COMM_BYTES, MOST_PROCESSES, Process, Processes},
    sense::{Meminfo, MeminfoError},
};

/// How long a reading may take: the records of the engine wait for its end, and have room for about so long.
pub(super) const MOST_TIME: Duration = Duration::from_millis(200);

/// Where processes are read.
#[derive(Debug)]
pub(super) struct ProcessReader {
    proc: PathBuf,
    /// `None` if there is no hierarchy: then no process has a pod.
    mount: Option<CgroupDir>,
}

/// The pod that a cgroup belongs to, and the topmost cgroup with `memory.oom.group` above it or itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Belongs {
    pod: Option<CgroupId>,
    group: Option<CgroupId>,
}

/// The end of the time that a reading may take.
#[derive(Debug)]
struct Deadline(Instant);

impl Deadline {
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.0 {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "there are too many processes to read in time"))
    }
}

impl ProcessReader {
    pub(super) fn open() -> Self {
        Self::at(Path::new("/proc"), CgroupDir::mount(Path::new(MOUNT)).ok())
    }

    fn at(proc: &Path, mount: Option<CgroupDir>) -> Self {
        Self { proc: proc.to_owned(), mount }
    }

    /// Reads them once; `pods` are the cgroups of pods.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read, or not within the time.
    pub(super) fn read(&self, pods: &BTreeSet<CgroupId>, most_time: Duration) -> io::Result<Processes> {
        let deadline = Deadline(Instant::now() + most_time);
        let began_ns = clock::boottime_ns();
        let (worst, seen) = self.worst(&deadline)?;
        let of_memory = |error: MeminfoError| io::Error::other(error.to_string());
        let mut meminfo = Meminfo::open(&self.proc.join("meminfo")).map_err(of_memory)?;
        let memory = meminfo.read().map_err(of_memory)?;
        let page_bytes = u64::try_from(rustix::param::page_size()).map_err(io::Error::other)?;
        let mut belonging = BTreeMap::new();
        let mut read = Vec::with_capacity(worst.len());
        for pid in worst {
            deadline.check()?;
            read.extend(self.process(pid, pods, &mut belonging));
        }
        Ok(Processes {
            began_ns,
            read_ns: clock::boottime_ns(),
            page_bytes,
            total_pages: memory.total_bytes.saturating_add(memory.swap_total_bytes) / page_bytes.max(1),
            swap_free_bytes: memory.swap_free_bytes,
            seen,
            worst: read,
        })
    }

    /// The ids of the worst, the worst first, and how many there are.
    fn worst(&self, deadline: &Deadline) -> io::Result<(Vec<u32>, u32)> {
        let (mut seen, mut worst) = (0, BinaryHeap::with_capacity(MOST_PROCESSES + 1));
        for entry in fs::read_dir(&self.proc)? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            deadline.check()?;
            seen += 1;
            // 0 if the kernel never kills it, as its own threads; nothing if it has ended meanwhile.
            let badness = self.text(pid, "oom_score").and_then(|text| text.trim_ascii().parse::<i64>().ok());
            if let Some(badness) = badness.filter(|badness| *badness > 0) {
                worst.push(Reverse((badness, pid)));
                if worst.len() > MOST_PROCESSES {
                    worst.pop();
                }
            }
        }
        Ok((worst.into_sorted_vec().into_iter().map(|Reverse((_, pid))| pid).collect(), seen))
    }

    /// `None` if it has ended, or holds no memory.
    fn process(
        &self,
        pid: u32,
        pods: &BTreeSet<CgroupId>,
        belonging: &mut BTreeMap<String, Belongs>,
    ) -> Option<Process> {
        let (comm, start_ticks) = identity(&self.text(pid, "stat")?)?;
        let status = self.text(pid, "status")?;
        let of = |key| bytes(&status, key);
        let (anon, shared) = (of("RssAnon:")?, of("RssShmem:")?);
        let unbacked_bytes = anon.saturating_add(shared);
        let oom_score_adj = self.text(pid, "oom_score_adj")?.trim_ascii().parse().ok()?;
        let cgroup = self.text(pid, "cgroup")?;
        let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
        let Belongs { pod, group } = cgroup.map_or_else(Belongs::default, |path| {
            *belonging.entry(path.to_owned()).or_insert_with(|| self.belongs(path, pods))
        });
        // The id may have been given to another process meanwhile.
        let (_, again) = identity(&self.text(pid, "stat")?)?;
        (again == start_ticks).then_some(Process {
            pid,
            start_ticks,
            comm,
            resident_bytes: unbacked_bytes.saturating_add(of("RssFile:")?),
            unbacked_bytes,
            swap_bytes: of("VmSwap:")?,
            page_table_bytes: of("VmPTE:")?,
            oom_score_adj,
            pod,
            group,
        })
    }

    fn belongs(&self, path: &str, pods: &BTreeSet<CgroupId>) -> Belongs {
        let mut belongs = Belongs::default();
        let Some(mount) = &self.mount else { return belongs };
        let mut above = CgroupPath::root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            // A path outside our cgroup namespace, or a cgroup that is gone.
            let Ok(below) = above.child(name) else { return Belongs::default() };
            let Ok(dir) = mount.open(&below) else { return belongs };
            if pods.contains(&dir.id()) {
                belongs.pod = Some(dir.id());
            }
            let dies_as_one = dir.read("memory.oom.group").is_ok_and(|text| text.trim_ascii() == "1");
            if dies_as_one {
                belongs.group.get_or_insert(dir.id());
            }
            above = below;
        }
        belongs
    }

    fn text(&self, pid: u32, file: &str) -> Option<String> {
        let content = fs::read(self.proc.join(pid.to_string()).join(file)).ok()?;
        Some(String::from_utf8_lossy(&content).into_owned())
    }
}

/// The name and the start of a process, of its `stat`: fields 2 and 22. The name, in brackets, may hold anything.
fn identity(stat: &str) -> Option<(String, u64)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, comm) = before.split_once('(')?;
    let start_ticks = after.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let end = comm.floor_char_boundary(MOST_COMM_BYTES);
    Some((comm.get(..end)?.to_owned(), start_ticks))
}

/// An amount of `status`, which is in kB.
fn bytes(status: &str, key: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim_ascii().strip_suffix(" kB")?.trim_ascii().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       4194304 kB\nMemFree:        1000 kB\nMemAvailable:   2000 kB\n\
                           SwapTotal:      1048576 kB\nSwapFree:       500 kB\n";

    /// A folder like `/proc`, and one like a hierarchy with a pod of two containers; the first dies as one.
    struct Host {
        temp: tempfile::TempDir,
    }

    impl Host {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            for container in ["a", "b"] {
                let path = temp.path().join("cgroup/kubepods/podx").join(container);
                fs::create_dir_all(&path).unwrap();
                let group = if container == "a" { "1\n" } else { "0\n" };
                fs::write(path.join("memory.oom.group"), group).unwrap();
            }
            fs::create_dir(temp.path().join("proc")).unwrap();
            fs::write(temp.path().join("proc/meminfo"), MEMINFO).unwrap();
            Self { temp }
        }

        fn add(&self, pid: u32, badness: i64, anon_kb: u64, cgroup: &str) {
            let dir = self.temp.path().join("proc").join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            let words = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18";
            fs::write(dir.join("stat"), format!("{pid} (a b) c) {words} 77{pid} 0 0\n")).unwrap();
            let status = format!(
                "Name:\tx\nRssAnon:\t{anon_kb} kB\nRssFile:\t      30 kB\nRssShmem:\t 4 kB\nVmPTE:\t 8 kB\nVmSwap:\t 2 kB\n"
            );
            fs::write(dir.join("status"), status).unwrap();
            fs::write(dir.join("oom_score"), format!("{badness}\n")).unwrap();
            fs::write(dir.join("oom_score_adj"), "-997\n").unwrap();
            fs::write(dir.join("cgroup"), format!("1:name=systemd:/x\n0::{cgroup}\n")).unwrap();
        }

        fn id(&self, path: &str) -> CgroupId {
            let mount = CgroupDir::unchecked(&self.temp.path().join("cgroup")).unwrap();
            mount.open(&CgroupPath::parse(path).unwrap()).unwrap().id()
        }

        fn read(&self) -> Processes {
            let mount = CgroupDir::unchecked(&self.temp.path().join("cgroup")).unwrap();
            let pods = BTreeSet::from([self.id("/kubepods/podx")]);
            ProcessReader::at(&self.temp.path().join("proc"), Some(mount))
                .read(&pods, Duration::from_hours(1))
                .unwrap()
        }
    }

    #[test]
    fn a_process_is_read_with_its_pod_and_its_group() {
        let host = Host::new();
        host.add(7, 800, 100, "/kubepods/podx/a");
        host.add(8, 700, 100, "/kubepods/podx/b");
        host.add(9, 600, 100, "/../elsewhere");
        let read = host.read();
        assert_eq!((read.seen, read.swap_free_bytes), (3, 500 * 1024));
        assert_eq!(read.total_pages * read.page_bytes, 5 << 30);
        let [a, b, elsewhere] = &read.worst[..] else { panic!("{read:?}") };
        let expected = Process {
            pid: 7,
            start_ticks: 777,
            comm: "a b) c".into(),
            resident_bytes: 134 * 1024,
            unbacked_bytes: 104 * 1024,
            swap_bytes: 2 * 1024,
            page_table_bytes: 8 * 1024,
            oom_score_adj: -997,
            pod: Some(host.id("/kubepods/podx")),
            group: Some(host.id("/kubepods/podx/a")),
        };
        assert_eq!(*a, expected);
        assert_eq!((b.pod, b.group), (a.pod, None));
        assert_eq!((elsewhere.pod, elsewhere.group), (None, None));
    }

    #[test]
    fn of_many_the_worst_are_read_and_the_exempt_are_not() {
        let host = Host::new();
        for pid in 1..=100 {
            host.add(pid, i64::from(pid) * 5, 100, "/");
        }
        host.add(200, 0, 1_000_000, "/");
        let read = host.read();
        let pids: Vec<_> = read.worst.iter().map(|process| process.pid).collect();
        assert_eq!(read.seen, 101);
        assert_eq!(pids, (37..=100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn who_ends_meanwhile_or_holds_no_memory_is_left_out() {
        let host = Host::new();
        host.add(7, 800, 100, "/");
        host.add(8, 700, 100, "/");
        fs::remove_file(host.temp.path().join("proc/7/cgroup")).unwrap();
        fs::write(host.temp.path().join("proc/8/status"), "Name:\tx\n").unwrap();
        assert_eq!(host.read().worst, []);
    }

    #[test]
    fn a_reading_that_takes_too_long_is_none() {
        let host = Host::new();
        host.add(7, 800, 100, "/");
        let late =
            ProcessReader::at(&host.temp.path().join("proc"), None).read(&BTreeSet::new(), Duration::ZERO);
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn only_whole_lines_are_read() {
        assert_eq!(identity("7 (x) S 1"), None);
        assert_eq!(identity(""), None);
        assert_eq!(bytes("VmPTE:\t12 kB\n", "VmPTE:"), Some(12 << 10));
        assert_eq!(bytes("VmPTE:\t12\n", "VmPTE:"), None);
        assert_eq!(bytes("VmPTE:\tx kB\n", "VmPTE:"), None);
    }
}
