//! A map that the programs read, kept equal to the wanted entries.
use std::{collections::BTreeMap, fmt};

use aya::{
    Pod,
    maps::{HashMap, MapData, MapError},
};

use super::GuardError;
use crate::model::CgroupId;

/// Replaces a value without creating one (`BPF_EXIST`, linux/bpf.h).
const ONLY_IF_THERE: u64 = 2;

/// The guarded cgroups as the kernel has them.
pub(super) struct Table<R, V> {
    name: &'static str,
    map: HashMap<MapData, u64, R>,
    max: usize,
    have: BTreeMap<CgroupId, V>,
    /// Whether it holds all that was wanted last.
    is_whole: bool,
}

/// The changes to make to a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changes<V> {
    pub(super) remove: Vec<CgroupId>,
    pub(super) put: Vec<(CgroupId, V)>,
}

/// The changes from one table to another.
pub(super) fn diff<V: Copy + PartialEq>(
    have: &BTreeMap<CgroupId, V>,
    want: &BTreeMap<CgroupId, V>,
) -> Changes<V> {
    Changes {
        remove: have.keys().filter(|id| !want.contains_key(id)).copied().collect(),
        put: want
            .iter()
            .filter(|(id, value)| have.get(id) != Some(value))
            .map(|(id, value)| (*id, *value))
            .collect(),
    }
}

impl<R: Pod, V: Copy + PartialEq> Table<R, V> {
    pub(super) const fn new(name: &'static str, map: HashMap<MapData, u64, R>, max: usize) -> Self {
        Self { name, map, max, have: BTreeMap::new(), is_whole: true }
    }

    /// Updates the kernel's table. If there are more than `max` entries, takes the first; the error counts the rest.
    pub(super) fn set(
        &mut self,
        want: &BTreeMap<CgroupId, V>,
        record: impl Fn(V) -> R,
    ) -> Result<(), GuardError> {
        if self.have == *want {
            self.is_whole = true;
            return Ok(());
        }
        let too_many = want.len().checked_sub(self.max).filter(|more| *more > 0);
        let fitting: BTreeMap<_, _>;
        let want = if too_many.is_some() {
            fitting = want.iter().take(self.max).map(|(id, value)| (*id, *value)).collect();
            &fitting
        } else {
            want
        };
        let Changes { remove, put } = diff(&self.have, want);
        let mut first_error = None;
        // Removing first makes room.
        for id in remove {
            match self.map.remove(&id.0) {
                Ok(()) | Err(MapError::KeyNotFound) => drop(self.have.remove(&id)),
                Err(source) => first_error = first_error.or(Some(source)),
            }
        }
        for (id, value) in put {
            match self.map.insert(id.0, record(value), 0) {
                Ok(()) => drop(self.have.insert(id, value)),
                Err(source) => first_error = first_error.or(Some(source)),
            }
        }
        self.is_whole = first_error.is_none() && too_many.is_none();
        match (first_error, too_many) {
            (Some(source), _) => Err(GuardError::Map { map: self.name, source }),
            (None, Some(more)) => Err(GuardError::TooMany { map: self.name, max: self.max, more }),
            (None, None) => Ok(()),
        }
    }

    /// Whether the kernel's table holds all that was wanted last.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The wanted value of a cgroup.
    pub(super) fn get(&self, id: CgroupId) -> Option<V> {
        self.have.get(&id).copied()
    }

    /// The cgroups in the table.
    pub(super) fn ids(&self) -> Vec<CgroupId> {
        self.have.keys().copied().collect()
    }

    /// The kernel's record of a cgroup.
    pub(super) fn record(&self, id: CgroupId) -> Option<R> {
        self.map.get(&id.0, 0).ok()
    }

    /// Overwrites the kernel's record, if it exists.
    pub(super) fn renew(&mut self, id: CgroupId, record: R) {
        if let Err(error) = self.map.insert(id.0, record, ONLY_IF_THERE) {
            tracing::debug!(%id, %error, "cannot restore a cgroup's credit of records");
        }
    }
}

impl<R, V> fmt::Debug for Table<R, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, map: _, max, have, is_whole: _ } = self;
        formatter
            .debug_struct("Table")
            .field("name", name)
            .field("max", max)
            .field("entries", &have.len())
            .finish_non_exhaustive()
    }
}
