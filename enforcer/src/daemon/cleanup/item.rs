//! One line of what was undone.

use std::{fmt, path::Path};

use serde::Serialize;

use crate::cgroup::{Temporarily, Undo};

/// Something that was undone, or would be.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// What it is: `limit`, `score`, `cgroup`, `mark`, `sysctl`, `pin`, `drop-in` or `file`.
    pub what: &'static str,
    /// The cgroup, file or folder; empty for a process outside of containers.
    pub path: String,
    /// The file of the cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// What was there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// What is there now; `None` if it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
}

impl Item {
    /// A step on the hierarchy.
    pub(super) fn of(undo: &Undo) -> Self {
        let bare = |what, path: &dyn fmt::Display| Self {
            what,
            path: path.to_string(),
            file: None,
            pid: None,
            old: None,
            new: None,
        };
        let limit = |path: &dyn fmt::Display, file: String, old: String, new: String| Self {
            file: Some(file),
            old: Some(old),
            new: Some(new),
            ..bare("limit", path)
        };
        match undo {
            Undo::Temporary(Temporarily { path, id: _, value }) => limit(
                path,
                value.file().to_string(),
                value.temporary().to_string(),
                value.original().to_string(),
            ),
            Undo::Value { path, id: _, old, new } => {
                limit(path, new.file().to_string(), old.to_string(), new.to_string())
            }
            Undo::Score { path, pid, start_ticks: _, old, new } => Self {
                path: path.as_ref().map(ToString::to_string).unwrap_or_default(),
                pid: Some(*pid),
                old: Some(old.to_string()),
                new: Some(new.to_string()),
                ..bare("score", &"")
            },
            Undo::Remove { path, id: _ } => bare("cgroup", path),
            Undo::Forget { path, id: _, stays_ours: _ } => bare("mark", path),
        }
    }

    /// The cgroup with the file, if it is about one.
    pub(super) fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("{}/{file}", self.path),
            None => self.path.clone(),
        }
    }

    /// A file or folder that was removed.
    pub(super) fn removed(what: &'static str, path: &Path) -> Self {
        Self { what, path: path.display().to_string(), file: None, pid: None, old: None, new: None }
    }

    /// A file whose content was changed.
    pub(super) fn changed(what: &'static str, path: &Path, old: &str, new: &str) -> Self {
        Self { old: Some(old.to_owned()), new: Some(new.to_owned()), ..Self::removed(what, path) }
    }
}

impl fmt::Display for Item {
    /// Without what it is.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what: _, path, file, pid, old, new } = self;
        match pid {
            Some(pid) if path.is_empty() => write!(formatter, "process {pid}")?,
            Some(pid) => write!(formatter, "process {pid} in {path}")?,
            None => formatter.write_str(path)?,
        }
        if let Some(file) = file {
            write!(formatter, "/{file}")?;
        }
        match (old, new) {
            (Some(old), Some(new)) => write!(formatter, ": {old} -> {new}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::Held,
        model::{CgroupId, CgroupPath},
        sample::value,
    };

    #[test]
    fn each_is_a_line_that_says_what_was_and_what_is() {
        let (path, id) = (CgroupPath::parse("/kubepods/pod1").unwrap(), CgroupId(7));
        let shown = |undo: &Undo| {
            let item = Item::of(undo);
            format!("{} {item}", item.what)
        };
        let old = Held::Value(value("memory.max", "4096"));
        let limit = Undo::Value { path: path.clone(), id, old, new: value("memory.max", "max") };
        assert_eq!(shown(&limit), "limit /kubepods/pod1/memory.max: 4096 -> max");
        let score = |path| Undo::Score { path, pid: 12, start_ticks: 3, old: -997, new: 0 };
        assert_eq!(shown(&score(Some(path.clone()))), "score process 12 in /kubepods/pod1: -997 -> 0");
        assert_eq!(shown(&score(None)), "score process 12: -997 -> 0");
        assert_eq!(shown(&Undo::Remove { path: path.clone(), id }), "cgroup /kubepods/pod1");
        assert_eq!(shown(&Undo::Forget { path, id, stays_ours: true }), "mark /kubepods/pod1");
    }
}
