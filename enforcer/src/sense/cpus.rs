//! The machine's CPUs from `/sys/devices/system`: which are online, and what they share.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use crate::policy::cpus::{CpuSet, CpuSetError, LogicalCpu, Topology, TopologyError};

/// Where the kernel describes CPUs and NUMA nodes.
pub const ROOT: &str = "/sys/devices/system";

/// The largest file that is read: a list of 8192 single CPUs has fewer bytes.
const MAX_BYTES: u64 = 1 << 16;

/// The most NUMA nodes (`MAX_NUMNODES` with `CONFIG_NODES_SHIFT=10`).
const MAX_NODES: usize = 1 << 10;

/// Why the machine's CPUs are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpusUnknown {
    /// A file or folder could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// A file has no list of CPUs.
    #[error("{}", path.display())]
    List {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: CpuSetError,
    },
    /// A file has no number that names a socket.
    #[error("{} holds {text:?}, which is not a socket's number", path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// A CPU is not among the threads of its own core.
    #[error("{} does not name CPU {cpu} itself", path.display())]
    NoSibling {
        /// The file.
        path: PathBuf,
        /// The CPU.
        cpu: u16,
    },
    /// An online CPU is in no NUMA node, or in two.
    #[error("CPU {cpu} is in {} below {}", if *.several { "two NUMA nodes" } else { "no NUMA node" }, folder.display())]
    Node {
        /// The folder of the nodes.
        folder: PathBuf,
        /// The CPU.
        cpu: u16,
        /// Whether it is in two.
        several: bool,
    },
    /// There are too many NUMA nodes.
    #[error("{} has more than {MAX_NODES} NUMA nodes", folder.display())]
    TooManyNodes {
        /// The folder of the nodes.
        folder: PathBuf,
    },
    /// The parts do not make up a machine.
    #[error("the CPUs below {}", root.display())]
    Topology {
        /// The folder.
        root: PathBuf,
        /// Why not.
        #[source]
        source: TopologyError,
    },
}

/// The online CPUs.
pub fn online(root: &Path) -> Result<CpuSet, CpusUnknown> {
    list(&root.join("cpu/online"))
}

/// The CPUs that exist, online or not.
pub fn present(root: &Path) -> Result<CpuSet, CpusUnknown> {
    list(&root.join("cpu/present"))
}

/// The online CPUs, and which of them share a core, a socket and a NUMA node.
///
/// Threads are on one core if `thread_siblings_list` says so: `core_id` counts anew in every socket, and on some machines
/// in every die. A kernel without NUMA has no folder `node`, and its memory is one node.
pub fn topology(root: &Path) -> Result<Topology, CpusUnknown> {
    let nodes = nodes(&root.join("node"))?;
    let mut cpus = Vec::new();
    for cpu in online(root)?.iter() {
        let folder = root.join(format!("cpu/cpu{cpu}/topology"));
        let siblings_path = folder.join("thread_siblings_list");
        let siblings = list(&siblings_path)?;
        let core = siblings.first().filter(|_| siblings.contains(cpu));
        let core = core.ok_or(CpusUnknown::NoSibling { path: siblings_path, cpu })?;
        let socket_path = folder.join("physical_package_id");
        let text = text(&socket_path)?;
        // Unknown is -1 (`topology_physical_package_id` in include/linux/topology.h).
        let socket = text.trim().parse().map_err(|_error| CpusUnknown::Socket {
            path: socket_path,
            text: text.trim().chars().take(64).collect(),
        })?;
        let mut of = nodes.iter().flatten().filter(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node);
        let numa_node = match (&nodes, of.next(), of.next()) {
            (None, ..) => 0,
            (Some(_), Some(node), None) => node,
            (Some(_), first, _) => {
                return Err(CpusUnknown::Node { folder: root.join("node"), cpu, several: first.is_some() });
            }
        };
        cpus.push(LogicalCpu { cpu, core: u32::from(core), socket, numa_node });
    }
    Topology::new(cpus).map_err(|source| CpusUnknown::Topology { root: root.to_owned(), source })
}

/// The NUMA nodes with their CPUs; `None` if the kernel knows none.
fn nodes(folder: &Path) -> Result<Option<Vec<(u32, CpuSet)>>, CpusUnknown> {
    let failed = |source| CpusUnknown::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut nodes = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let Some(number) = number else { continue };
        if nodes.len() == MAX_NODES {
            return Err(CpusUnknown::TooManyNodes { folder: folder.to_owned() });
        }
        nodes.push((number, list(&folder.join(name).join("cpulist"))?));
    }
    Ok(Some(nodes))
}

fn list(path: &Path) -> Result<CpuSet, CpusUnknown> {
    text(path)?.parse().map_err(|source| CpusUnknown::List { path: path.to_owned(), source })
}

fn text(path: &Path) -> Result<String, CpusUnknown> {
    let failed = |source| CpusUnknown::Read { path: path.to_owned(), source };
    let mut text = String::new();
    File::open(path).map_err(failed)?.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Two sockets of two cores of two threads each, whose siblings have consecutive numbers.
    fn tree() -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = temp.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        write("cpu/online", "0-7");
        for cpu in 0..8 {
            let first = cpu / 2 * 2;
            let topology = format!("cpu/cpu{cpu}/topology");
            write(&format!("{topology}/thread_siblings_list"), &format!("{first}-{}", first + 1));
            write(&format!("{topology}/physical_package_id"), &(cpu / 4).to_string());
        }
        write("node/online", "0-1");
        write("node/node0/cpulist", "0-3");
        write("node/node1/cpulist", "4-7");
        temp
    }

    #[test]
    fn cpus_and_what_they_share_are_read() {
        let temp = tree();
        let topology = topology(temp.path()).unwrap();
        assert_eq!(topology.cpus().to_string(), "0-7");
        let shown = |groups: &std::collections::BTreeMap<u32, CpuSet>| {
            groups.values().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(topology.cores()), "0-1 2-3 4-5 6-7");
        assert_eq!(shown(topology.sockets()), "0-3 4-7");
        assert_eq!(shown(topology.numa_nodes()), "0-3 4-7");
    }

    #[test]
    fn what_is_offline_is_left_out_and_without_numa_there_is_one_node() {
        let temp = tree();
        fs::write(temp.path().join("cpu/online"), "0-2,4").unwrap();
        fs::remove_dir_all(temp.path().join("cpu/cpu7")).unwrap();
        fs::remove_dir_all(temp.path().join("node")).unwrap();
        let topology = topology(temp.path()).unwrap();
        assert_eq!((topology.cpus().to_string().as_str(), topology.numa_nodes().len()), ("0-2,4", 1));
    }

    #[rstest]
    #[case("cpu/online", "", "no CPU is online")]
    #[case("cpu/online", "0-8", "cpu8/topology/thread_siblings_list")]
    #[case("cpu/online", "x", "cpu/online")]
    #[case("cpu/cpu3/topology/thread_siblings_list", "4-5", "does not name CPU 3 itself")]
    #[case("cpu/cpu3/topology/physical_package_id", "-1", "\"-1\", which is not a socket's number")]
    #[case("node/node1/cpulist", "5-7", "CPU 4 is in no NUMA node")]
    #[case("node/node1/cpulist", "3-7", "CPU 3 is in two NUMA nodes")]
    fn what_is_not_known_is_named_and_never_guessed(
        #[case] file: &str,
        #[case] text: &str,
        #[case] says: &str,
    ) {
        let temp = tree();
        fs::write(temp.path().join(file), text).unwrap();
        let error = crate::chain(&topology(temp.path()).unwrap_err());
        assert!(error.contains(says), "{error}");
    }
}
