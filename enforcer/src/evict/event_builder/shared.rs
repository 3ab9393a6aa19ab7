//! Finds shared memory that no process maps.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use enforcer_events::eviction::{Charged, Mount, SharedMemory};

use super::super::candidate::Candidate;
use crate::{render::human_bytes, sense::snapshot::Split};

/// The most cgroups and mounts to list, the largest first.
const SHOWN: usize = 5;

/// Smaller ones are not listed.
const LEAST_BYTES: u64 = 1 << 20;

/// File systems on which `statvfs` may hang; mounts below one of them are skipped.
const MAY_HANG: [&str; 9] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "autofs", "glusterfs"];

/// Where to look.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Usually `/proc`.
    pub(super) proc: PathBuf,
    /// The cgroup folder that holds all pods.
    pub(super) kubepods: PathBuf,
}

/// The locations of shared memory that no process maps.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    cgroups: Vec<Charged>,
    removed_bytes: u64,
    mounts: Vec<Mount>,
}

impl Places {
    /// Looks at the pods' cgroups and at the mounts of this process's mount namespace. Reads a few small files per pod.
    pub(super) fn look(&self, members: &[Arc<Candidate>]) -> Held {
        let mut known_bytes: u64 = 0;
        let mut cgroups = Vec::new();
        for member in members {
            let Some(usage) = member.charged().usage().copied() else { continue };
            let populated = member.is_populated();
            known_bytes = known_bytes.saturating_add(usage.shmem_bytes);
            let bytes = if populated { usage.unmapped_shmem_bytes() } else { usage.shmem_bytes };
            let identity = member.identity();
            let (pod, cgroup) = (identity.pod.to_string(), identity.cgroup.to_string());
            cgroups.push(Charged { pod, cgroup, bytes, populated });
        }
        let stat = fs::read(self.kubepods.join("memory.stat")).ok();
        let all_bytes = stat.and_then(|stat| Split::parse(&stat).ok()).map_or(0, |split| split.shmem_bytes);
        cgroups.retain(|charged| charged.bytes >= LEAST_BYTES);
        cgroups.sort_by_key(|charged| std::cmp::Reverse(charged.bytes));
        cgroups.truncate(SHOWN);
        Held { cgroups, removed_bytes: all_bytes.saturating_sub(known_bytes), mounts: self.mounts() }
    }

    fn mounts(&self) -> Vec<Mount> {
        let text = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let mut mounts: Vec<_> = tmpfs(&text)
            .into_iter()
            .filter_map(|path| {
                let found = rustix::fs::statvfs(path.as_path()).ok()?;
                let bytes = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize);
                (bytes >= LEAST_BYTES).then(|| Mount { path: path.to_string_lossy().into_owned(), bytes })
            })
            .collect();
        mounts.sort_by_key(|mount| std::cmp::Reverse(mount.bytes));
        mounts.truncate(SHOWN);
        mounts
    }
}

impl Held {
    /// The value of the key `sharedMemory`.
    pub(super) fn data(self, unmapped_bytes: u64) -> SharedMemory {
        let Self { cgroups, removed_bytes, mounts } = self;
        SharedMemory { unmapped_bytes, cgroups, removed_cgroups_bytes: removed_bytes, mounts }
    }

    /// The message for administrators: how much, where, and what to do.
    pub(super) fn message(&self, unmapped_bytes: u64, limit_bytes: u64) -> String {
        let mut places = Vec::new();
        for Charged { pod, bytes, populated, .. } in &self.cgroups {
            let state = if *populated { "running" } else { "without a process" };
            places.push(format!("{} charged to {pod} ({state})", human_bytes(*bytes)));
        }
        if self.removed_bytes >= LEAST_BYTES {
            places.push(format!("{} charged to cgroups that were removed", human_bytes(self.removed_bytes)));
        }
        for Mount { path, bytes } in &self.mounts {
            places.push(format!("{} in {path}", human_bytes(*bytes)));
        }
        let places = if places.is_empty() { String::new() } else { format!(": {}", places.join(", ")) };
        format!(
            "no process maps {} of shared memory, more than the threshold of {}, and no eviction frees it{places}; \
             remove the files or unmount the tmpfs",
            human_bytes(unmapped_bytes),
            human_bytes(limit_bytes),
        )
    }
}

/// One mount point of each tmpfs, from the text of a `mountinfo` (`show_mountinfo` in `fs/proc_namespace.c`): id,
/// parent, device, root, mount point, options, any number of optional fields, `-`, type, source, options.
fn tmpfs(mountinfo: &str) -> Vec<PathBuf> {
    let parse = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let (device, _root, path) = (before.next()?, before.next()?, before.next()?);
        let kind = after.split(' ').next()?;
        Some((device.to_owned(), unescape(path), kind.to_owned()))
    };
    let all: Vec<_> = mountinfo.lines().filter_map(parse).collect();
    let may_hang = |path: &Path| {
        all.iter().any(|(_, mounted, kind)| {
            let kind = kind.as_str();
            (MAY_HANG.contains(&kind) || kind.starts_with("fuse")) && path.starts_with(mounted)
        })
    };
    let mut devices: Vec<&str> = Vec::new();
    let mut paths = Vec::new();
    for (device, path, kind) in &all {
        if kind == "tmpfs" && !devices.contains(&device.as_str()) && !may_hang(path) {
            devices.push(device);
            paths.push(path.clone());
        }
    }
    paths
}

/// The kernel escapes blanks, tabs, line ends and backslashes as three octal digits (`mangle_path`).
fn unescape(path: &str) -> PathBuf {
    let mut plain = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let digits = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) if byte.is_ascii() => {
                plain.push(char::from(byte));
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                plain.push('\\');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tmpfs_is_found_once_and_none_behind_a_network() {
        let text = "\
25 1 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=403264k
26 1 0:24 / / rw - ext4 /dev/vda rw
27 1 0:23 / /var/run rw - tmpfs tmpfs rw
28 1 0:30 / /srv rw shared:1 master:2 - nfs4 server:/ rw
29 28 0:31 / /srv/cache rw - tmpfs tmpfs rw
30 1 0:32 / /mnt/a\\040b rw - tmpfs none rw
31 1 0:33 / /odd rw - fuse.x none rw
not a line
";
        assert_eq!(tmpfs(text), [PathBuf::from("/run"), PathBuf::from("/mnt/a b")]);
        assert_eq!(unescape("/a\\134b\\9"), PathBuf::from("/a\\b\\9"));
    }

    #[test]
    fn the_message_says_how_much_where_and_what_to_do() {
        let charged = |pod: &str, mib: u64, populated| Charged {
            pod: pod.into(),
            cgroup: String::new(),
            bytes: mib << 20,
            populated,
        };
        let held = Held {
            cgroups: vec![charged("default/filler", 1_200, false), charged("default/db", 3, true)],
            removed_bytes: 8 << 20,
            mounts: vec![Mount { path: "/mnt/data".into(), bytes: 1_211 << 20 }],
        };
        assert_eq!(
            held.message(1_250 << 20, 200 << 20),
            "no process maps 1.2Gi of shared memory, more than the threshold of 200Mi, and no eviction frees it: 1.1Gi \
             charged to default/filler (without a process), 3Mi charged to default/db (running), 8Mi charged to \
             cgroups that were removed, 1.1Gi in /mnt/data; remove the files or unmount the tmpfs"
        );
    }
}
