//! What thresholds measure, and the condition of the node that each brings about.

use std::fmt;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::ThresholdValue;

/// A quantity that thresholds apply to (upstream `Signal` in `pkg/kubelet/eviction/api/types.go`).
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Schema, Serialize)]
pub enum Signal {
    /// `memory.available`: of the node.
    MemoryAvailable,
    /// `allocatableMemory.available`: of kubepods' limit. It cannot be configured; it follows from `memory.available`.
    AllocatableMemoryAvailable,
    /// `nodefs.available`.
    NodefsAvailable,
    /// `nodefs.inodesFree`.
    NodefsInodesFree,
    /// `imagefs.available`.
    ImagefsAvailable,
    /// `imagefs.inodesFree`.
    ImagefsInodesFree,
    /// `containerfs.available`.
    ContainerfsAvailable,
    /// `containerfs.inodesFree`.
    ContainerfsInodesFree,
    /// `pid.available`.
    PidAvailable,
}

impl Signal {
    /// All signals.
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    /// Its name in configuration, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The signal of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// The resource that runs short, as in the kubelet's messages (upstream `signalToResource`).
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => {
                "ephemeral-storage"
            }
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }

    /// The node's condition while one of its thresholds is met (upstream `signalToNodeCondition`).
    #[must_use]
    pub fn condition(self) -> NodeCondition {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => NodeCondition::MemoryPressure,
            Self::NodefsAvailable
            | Self::NodefsInodesFree
            | Self::ImagefsAvailable
            | Self::ImagefsInodesFree
            | Self::ContainerfsAvailable
            | Self::ContainerfsInodesFree => NodeCondition::DiskPressure,
            Self::PidAvailable => NodeCondition::PidPressure,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A shortage of the node, as admission and the scheduler see it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum NodeCondition {
    /// Memory.
    MemoryPressure,
    /// Disk space or inodes.
    DiskPressure,
    /// Process ids.
    PidPressure,
}

impl NodeCondition {
    /// All conditions.
    pub const ALL: [Self; 3] = [Self::MemoryPressure, Self::DiskPressure, Self::PidPressure];

    /// The reason and message of the node's condition, as in the kubelet (`pkg/kubelet/nodestatus/setters.go`).
    #[must_use]
    pub fn status(self, has: bool) -> (&'static str, &'static str) {
        match (self, has) {
            (Self::MemoryPressure, true) => {
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available")
            }
            (Self::MemoryPressure, false) => {
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available")
            }
            (Self::DiskPressure, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
            (Self::DiskPressure, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            (Self::PidPressure, true) => {
                ("KubeletHasInsufficientPID", "kubelet has insufficient PID available")
            }
            (Self::PidPressure, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        }
    }

    /// Its name as Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MemoryPressure => "MemoryPressure",
            Self::DiskPressure => "DiskPressure",
            Self::PidPressure => "PIDPressure",
        }
    }
}

impl fmt::Display for NodeCondition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// A threshold: met while less of the signal's resource is available than its value.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Schema, Serialize)]
pub struct Threshold {
    /// The signal.
    pub signal: Signal,
    /// It is met below this value.
    pub value: ThresholdValue,
    /// How long it must have been met before pods are evicted, in milliseconds; 0 makes it hard.
    pub grace_period_ms: u64,
    /// `evictionMinimumReclaim`: once met, it stays met until this much more is available.
    pub min_reclaim: Option<ThresholdValue>,
}

impl Threshold {
    /// A hard threshold without a minimum reclaim.
    #[must_use]
    pub fn hard(signal: Signal, value: ThresholdValue) -> Self {
        Self { signal, value, grace_period_ms: 0, min_reclaim: None }
    }

    /// Whether pods are evicted as soon as it is met, with next to no grace.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace_period_ms == 0
    }
}
