//! The processors of a guest: a number, or sockets with cores and threads, each socket a NUMA node.
use std::str::FromStr;

/// The most processors of a guest.
const MOST: u32 = 64;

/// The processors of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cpus {
    /// That many, in one NUMA node.
    Count(u32),
    /// Sockets, each of them a NUMA node with its part of the memory.
    Topology(Topology),
}

impl Default for Cpus {
    fn default() -> Self {
        Self::Count(2)
    }
}

/// Sockets with cores and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topology {
    pub(crate) sockets: u32,
    /// In each socket.
    pub(crate) cores: u32,
    /// On each core.
    pub(crate) threads: u32,
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("`{text}` is not sockets=N,cores=N,threads=N, at most {MOST} processors");
        let (mut sockets, mut cores, mut threads) = (None, None, None);
        for pair in text.split(',') {
            let (name, number) = pair.split_once('=').ok_or_else(expected)?;
            let place = match name {
                "sockets" => &mut sockets,
                "cores" => &mut cores,
                "threads" => &mut threads,
                _ => return Err(expected()),
            };
            let number = number.parse().ok().filter(|number| (1..=MOST).contains(number));
            if place.replace(number.ok_or_else(expected)?).is_some() {
                return Err(expected());
            }
        }
        let one = |number: Option<u32>| number.unwrap_or(1);
        let topology = Self { sockets: one(sockets), cores: one(cores), threads: one(threads) };
        if topology.sockets * topology.cores * topology.threads > MOST {
            return Err(expected());
        }
        Ok(topology)
    }
}

impl Cpus {
    /// QEMU's arguments for these processors and that much memory.
    ///
    /// Memory is resident from the start: a guest's page fault must not be a fault of the host as well.
    pub(crate) fn arguments(self, memory_mib: u32) -> Vec<String> {
        let memory = |id: &str, size_mib: u32| {
            [String::from("-object"), format!("memory-backend-memfd,id={id},size={size_mib}M,prealloc=on")]
        };
        let mut arguments = vec![String::from("-m"), format!("{memory_mib}M"), String::from("-smp")];
        match self {
            Self::Count(cpus) => {
                arguments.push(cpus.to_string());
                arguments.extend(memory("ram", memory_mib));
                arguments.extend(["-machine", "memory-backend=ram"].map(str::to_owned));
            }
            Self::Topology(Topology { sockets, cores, threads }) => {
                let cpus = sockets * cores * threads;
                arguments.push(format!("{cpus},sockets={sockets},cores={cores},threads={threads}"));
                let part_mib = memory_mib / sockets;
                for socket in 0..sockets {
                    // The first node has what division leaves.
                    let rest_mib = if socket == 0 { memory_mib % sockets } else { 0 };
                    arguments.extend(memory(&format!("ram{socket}"), part_mib + rest_mib));
                    arguments.extend([
                        String::from("-numa"),
                        format!("node,nodeid={socket},memdev=ram{socket}"),
                        String::from("-numa"),
                        format!("cpu,node-id={socket},socket-id={socket}"),
                    ]);
                }
            }
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_names_what_is_not_one() {
        let topology = |text: &str| text.parse::<Topology>();
        let two = Topology { sockets: 2, cores: 2, threads: 2 };
        assert_eq!(topology("sockets=2,cores=2,threads=2"), Ok(two));
        assert_eq!(topology("threads=2,cores=4"), Ok(Topology { sockets: 1, cores: 4, threads: 2 }));
        for wrong in ["", "2", "sockets=0", "dies=2", "cores=2,cores=2", "sockets=8,cores=8,threads=2"] {
            assert!(topology(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_socket_is_a_node_with_its_part_of_the_memory() {
        let topology = Topology { sockets: 2, cores: 2, threads: 2 };
        let arguments = Cpus::Topology(topology).arguments(2049).join(" ");
        for part in [
            "-smp 8,sockets=2,cores=2,threads=2",
            "memory-backend-memfd,id=ram0,size=1025M",
            "memory-backend-memfd,id=ram1,size=1024M",
            "node,nodeid=1,memdev=ram1 -numa cpu,node-id=1,socket-id=1",
        ] {
            assert!(arguments.contains(part), "{arguments}");
        }
        let plain = Cpus::Count(2).arguments(2048).join(" ");
        assert!(plain.contains("-smp 2 ") && plain.contains("memory-backend=ram"), "{plain}");
    }
}
