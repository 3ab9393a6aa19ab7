//! Values that were written to cgroups and processes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Process, Word};

/// The payload of `limits.applied` and `limits.restored`: files of one cgroup that were written for one reason.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitsWritten {
    /// The owner, if it is a pod or a container.
    #[serde(flatten)]
    pub owner: Owner,
    /// The cgroup.
    pub cgroup: String,
    /// Why: `initial`, `planChanged`, `released`, `ranked`, `drifted`, `moved`, or `interrupted`: an earlier process of the
    /// daemon had changed it for a while, and ended.
    pub reason: Word,
    /// The files.
    pub files: Vec<FileWritten>,
    /// How many processes were moved; with the reason `moved`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    /// The process, if it is of one of the node's own components.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub component: Option<Component>,
}

/// The pod, and the container, that a cgroup belongs to.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// The pod's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The pod's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// A process of one of the node's own components.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Its id.
    pub pid: u32,
    /// The file name of its program.
    pub executable: String,
}

/// A file that was written.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileWritten {
    /// The file; `oom_score_adj` is that of a process.
    pub file: String,
    /// What it held; null for a cgroup that was just made.
    pub old: Option<String>,
    /// What was written.
    pub new: String,
    /// Who had written another value, as far as the kernel reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Process>,
    /// The process whose score it is.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub of: Option<Process>,
}

/// The payload of `limits.drifted`: another process wrote one of our values.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitsDrifted {
    /// The owner, if it is a pod or a container.
    #[serde(flatten)]
    pub owner: Owner,
    /// The cgroup.
    pub cgroup: String,
    /// The cgroup's id; absent for a component's score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_id: Option<u64>,
    /// The file.
    pub file: String,
    /// The planned value.
    pub old: String,
    /// The value that was found.
    pub new: String,
    /// The response: `restored`, `delayed`, `reported`, `audited` or `left`.
    pub action: Word,
    /// Who wrote it, as far as the kernel reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Process>,
    /// The id of the process whose score it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The name of its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// The file name of its program, for the node's own components.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executable: Option<String>,
}
