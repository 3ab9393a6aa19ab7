//! Who has which CPUs: the content of the kubelet's checkpoint `cpu_manager_state`, and what can be wrong with it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{set::CpuSet, topology::Topology};
use crate::model::PodUid;

/// The name of the policy that these rules are.
pub const POLICY_NAME: &str = "static";

/// The CPUs of containers that have some of their own, and those that all others share.
///
/// The keys are those of `CPUManagerCheckpointV2` in `pkg/kubelet/cm/cpumanager/state/checkpoint.go`, which the kubelet
/// writes from 1.18 to 1.35, and reads later on. Later ones (`podEntries`, `data`, `dataChecksum`) and unknown ones are
/// ignored; from 1.36 on, the kubelet writes these four beside them.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Assignments {
    /// The policy that made them; [`POLICY_NAME`].
    pub policy_name: String,
    /// The shared pool.
    pub default_cpu_set: CpuSet,
    /// The CPUs of each container that has some of its own, by pod and name.
    #[serde(default, with = "by_uid")]
    pub entries: BTreeMap<PodUid, BTreeMap<String, CpuSet>>,
    /// [`Self::expected_checksum`], or 0 for none.
    #[serde(default)]
    pub checksum: u64,
}

/// A container that has CPUs of its own.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Owner {
    /// Its pod.
    pub pod: PodUid,
    /// Its name.
    pub container: String,
}

/// Something wrong with assignments. Nothing in them is changed for it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Problem {
    /// Another policy made them.
    #[error("policy {name:?} made the assignments, not {POLICY_NAME:?}")]
    Policy {
        /// Its name.
        name: String,
    },
    /// The shared pool is empty.
    #[error("no CPU is left in the shared pool")]
    SharedPoolEmpty,
    /// The shared pool has CPUs that are offline or do not exist.
    #[error("CPUs {cpus} of the shared pool are not online")]
    SharedPoolOffline {
        /// The CPUs.
        cpus: CpuSet,
    },
    /// Reserved CPUs are not in the shared pool.
    #[error("reserved CPUs {cpus} are not in the shared pool")]
    ReservedNotShared {
        /// The CPUs.
        cpus: CpuSet,
    },
    /// Online CPUs are neither in the shared pool nor those of a container.
    #[error("CPUs {cpus} are online, and neither in the shared pool nor those of a container")]
    Unassigned {
        /// The CPUs.
        cpus: CpuSet,
    },
    /// A container has CPUs that are offline or do not exist.
    #[error("CPUs {cpus} of {owner} are not online")]
    Offline {
        /// The container.
        owner: Owner,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// A container has CPUs that are reserved.
    #[error("CPUs {cpus} of {owner} are reserved")]
    Reserved {
        /// The container.
        owner: Owner,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// A container has CPUs that are also in the shared pool.
    #[error("CPUs {cpus} of {owner} are in the shared pool, too")]
    Shared {
        /// The container.
        owner: Owner,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// Two containers have the same CPUs. Those of one pod may in the kubelet's checkpoint, if one is an init container.
    #[error("CPUs {cpus} are those of both {first} and {second}")]
    TwoOwners {
        /// The one container.
        first: Owner,
        /// The other one.
        second: Owner,
        /// The CPUs.
        cpus: CpuSet,
    },
    /// A container has another number of CPUs than it wants by now.
    #[error("{owner} has CPUs {cpus} and wants {wanted}: the number does not change while it runs")]
    Resized {
        /// The container.
        owner: Owner,
        /// The CPUs that it has.
        cpus: CpuSet,
        /// How many it wants.
        wanted: u32,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "container {} of pod {}", self.container, self.pod)
    }
}

/// None yet: the kubelet takes an empty shared pool without entries for a new node.
impl Default for Assignments {
    fn default() -> Self {
        let policy_name = POLICY_NAME.to_owned();
        Self { policy_name, default_cpu_set: CpuSet::new(), entries: BTreeMap::new(), checksum: 0 }
    }
}

impl Assignments {
    /// The CPUs of a container; `None` if it runs in the shared pool.
    #[must_use]
    pub fn get(&self, pod: &PodUid, container: &str) -> Option<&CpuSet> {
        self.entries.get(pod)?.get(container)
    }

    /// Every container with its CPUs, by pod and name.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, &CpuSet)> {
        self.entries.iter().flat_map(|(pod, containers)| {
            containers
                .iter()
                .map(|(container, cpus)| (Owner { pod: pod.clone(), container: container.clone() }, cpus))
        })
    }

    /// All CPUs that containers have of their own.
    #[must_use]
    pub fn exclusive(&self) -> CpuSet {
        let all = self.entries.values().flat_map(BTreeMap::values);
        all.fold(CpuSet::new(), |union, cpus| union.union(cpus))
    }

    /// What is wrong with them on that machine; nothing if the shared pool is empty and no container has CPUs (upstream
    /// `validateState`, which also refuses the state if the reserved CPUs or the online ones have changed).
    #[must_use]
    pub fn valid_for(&self, topology: &Topology, reserved: &CpuSet) -> Vec<Problem> {
        if self.default_cpu_set.is_empty() && self.entries.is_empty() {
            return Vec::new();
        }
        let (online, shared) = (topology.cpus(), &self.default_cpu_set);
        let mut problems = Vec::new();
        if self.policy_name != POLICY_NAME {
            problems.push(Problem::Policy { name: self.policy_name.clone() });
        }
        if shared.is_empty() {
            problems.push(Problem::SharedPoolEmpty);
        }
        let mut found = |cpus: CpuSet, problem: &dyn Fn(CpuSet) -> Problem| {
            if !cpus.is_empty() {
                problems.push(problem(cpus));
            }
        };
        found(shared.difference(online), &|cpus| Problem::SharedPoolOffline { cpus });
        let reserved_online = reserved.intersection(online);
        found(reserved_online.difference(shared), &|cpus| Problem::ReservedNotShared { cpus });
        let unassigned = online.difference(shared).difference(&self.exclusive());
        found(unassigned, &|cpus| Problem::Unassigned { cpus });
        for (owner, cpus) in self.owners() {
            let owner = || owner.clone();
            found(cpus.difference(online), &|cpus| Problem::Offline { owner: owner(), cpus });
            found(cpus.intersection(reserved), &|cpus| Problem::Reserved { owner: owner(), cpus });
            found(cpus.intersection(shared), &|cpus| Problem::Shared { owner: owner(), cpus });
        }
        problems.extend(self.two_owners());
        problems
    }

    /// The CPUs that two containers have.
    fn two_owners(&self) -> Vec<Problem> {
        let owners: Vec<(Owner, &CpuSet)> = self.owners().collect();
        let mut first_of = BTreeMap::new();
        let mut pairs: BTreeMap<(usize, usize), CpuSet> = BTreeMap::new();
        let mut seen = CpuSet::new();
        for (second, (_, cpus)) in owners.iter().enumerate() {
            for cpu in cpus.intersection(&seen).iter() {
                if let Some(&first) = first_of.get(&cpu) {
                    pairs.entry((first, second)).or_default().insert(cpu);
                }
            }
            for cpu in cpus.difference(&seen).iter() {
                first_of.insert(cpu, second);
            }
            seen = seen.union(cpus);
        }
        let owner = |place: usize| owners.get(place).map(|(owner, _)| owner.clone());
        let problem = |((first, second), cpus)| {
            Some(Problem::TwoOwners { first: owner(first)?, second: owner(second)?, cpus })
        };
        pairs.into_iter().filter_map(problem).collect()
    }

    /// The checksum that the kubelet gives this content: FNV-1a over the text by which `go-spew` dumps the structure
    /// (`checksum.New`, `dump.ForHash`).
    #[must_use]
    pub fn expected_checksum(&self) -> u64 {
        self.checksum_as("CPUManagerCheckpoint", "")
    }

    /// Whether [`Self::checksum`] belongs to the content. As in the kubelet, 0 stands for none.
    ///
    /// Kubelets of 1.36 hash a structure of another name and with another field, which is empty unless pods have CPUs as
    /// a whole (`PodLevelResourceManagers`); checksums over such pods are not recognised.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let names = ["CPUManagerCheckpoint", "CPUManagerCheckpointV2", "CPUManagerCheckpointV3"];
        let fields = ["", " PodEntries:(state.PodCPUAssignments)map[]"];
        let is_of = |name| fields.iter().any(|field| self.checksum == self.checksum_as(name, field));
        self.checksum == 0 || names.into_iter().any(is_of)
    }

    /// The checksum of the structure of that name, with that field before the checksum's.
    fn checksum_as(&self, name: &str, field: &str) -> u64 {
        let containers = |of: &BTreeMap<String, CpuSet>| {
            of.iter().map(|(name, cpus)| format!("{name}:{cpus}")).collect::<Vec<_>>().join(" ")
        };
        let pods = self.entries.iter().map(|(pod, of)| format!("{pod}:map[{}]", containers(of)));
        let text = format!(
            "(*state.{name}){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}]{field} Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            pods.collect::<Vec<_>>().join(" "),
        );
        u64::from(fnv_1a(text.as_bytes()))
    }
}

/// The 32-bit hash of Fowler, Noll and Vo in its variant 1a.
fn fnv_1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Maps by pod, in files by the uid's text.
mod by_uid {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::{CpuSet, PodUid};

    type Entries = BTreeMap<PodUid, BTreeMap<String, CpuSet>>;

    pub(super) fn serialize<S: Serializer>(entries: &Entries, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(entries.iter().map(|(pod, containers)| (pod.as_str(), containers)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Entries, D::Error> {
        let entries = BTreeMap::<String, BTreeMap<String, CpuSet>>::deserialize(deserializer)?;
        let checked = entries.into_iter().map(|(pod, containers)| match PodUid::new(&pod) {
            Some(uid) => Ok((uid, containers)),
            None => Err(D::Error::custom(format_args!(
                "{:?} is not a pod's uid: it has 1 to {} letters, digits and hyphens",
                pod.chars().take(PodUid::MAX_BYTES).collect::<String>(),
                PodUid::MAX_BYTES,
            ))),
        });
        checked.collect()
    }
}
