//! Resources that are not for pods: what another scheduler on the machine has reserved, and what the system's own
//! parts use of what is reserved for them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Word;

/// The payload of `reservation.made`: resources are reserved for others than pods.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationMade {
    /// Its name.
    pub name: String,
    /// The amounts as quantities, by resource: `2Gi`, `500m`.
    pub resources: BTreeMap<String, String>,
    /// What it is for.
    pub reason: String,
    /// The user id of who made it.
    pub uid: u32,
    /// The process that made it, which may have ended.
    pub pid: u32,
    /// When it was made (RFC 3339).
    pub given: String,
    /// Until when it holds (RFC 3339).
    pub until: String,
    /// How long it holds.
    pub left_ms: u64,
    /// It replaces one of the same name that was in force.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub replaced: bool,
    /// The same in words.
    pub message: String,
}

/// The payload of `reservation.ended`: pods may request these resources again.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationEnded {
    /// Its name.
    pub name: String,
    /// The amounts as quantities, by resource.
    pub resources: BTreeMap<String, String>,
    /// Why it ended: `released` or `expired`.
    pub reason: Word,
    /// The user id of who made it.
    pub uid: u32,
    /// When it was made (RFC 3339).
    pub given: String,
    /// Until when it was to hold (RFC 3339).
    pub until: String,
    /// Who released it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<Releaser>,
    /// The same in words.
    pub message: String,
}

/// Who released a reservation.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Releaser {
    /// The user id, from the kernel.
    pub uid: u32,
    /// The process, which may have ended.
    pub pid: u32,
}

/// The payload of `reservation.exceeded`: a part of the system uses more than is reserved for it.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservationExceeded {
    /// Whose reservation: `system` (`systemReserved`) or `kube` (`kubeReserved`).
    pub scope: Word,
    /// The resource: `memory` or `pid`.
    pub resource: Word,
    /// The cgroup that was measured; absent if it was processes one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The memory in use, without page cache that is idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The memory reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_bytes: Option<u64>,
    /// The number of tasks; with `pid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_count: Option<u64>,
    /// The number of tasks reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_count: Option<u64>,
    /// The same in words.
    pub message: String,
}
