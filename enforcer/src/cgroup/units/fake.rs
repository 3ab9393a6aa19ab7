//! A systemd for tests: it makes and removes directories where the real one has its cgroups.
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::{Property, UnitError, UnitName, Units};

/// What was asked of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Call {
    Start(String),
    Set(String, Vec<Property>),
    Settle,
    Stop(String),
}

#[derive(Clone, Debug)]
pub(crate) struct Fake {
    root: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
}

impl Fake {
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), calls: Arc::default() }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    fn folder(&self, slice: &UnitName) -> PathBuf {
        let name = slice.as_str().strip_suffix(".slice").unwrap();
        let parts: Vec<_> = name.split('-').collect();
        (1..=parts.len()).fold(self.root.clone(), |folder, depth| {
            folder.join(format!("{}.slice", parts[..depth].join("-")))
        })
    }

    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Units for Fake {
    fn start_slice(&self, slice: &UnitName) -> Result<(), UnitError> {
        fs::create_dir_all(self.folder(slice)).unwrap();
        self.note(Call::Start(slice.to_string()));
        Ok(())
    }

    fn set(&self, unit: &UnitName, properties: &[Property]) -> Result<(), UnitError> {
        self.note(Call::Set(unit.to_string(), properties.to_vec()));
        Ok(())
    }

    fn settle(&self) -> Result<(), UnitError> {
        self.note(Call::Settle);
        Ok(())
    }

    fn stop_slice(&self, slice: &UnitName) -> Result<(), UnitError> {
        fs::remove_dir_all(self.folder(slice)).unwrap();
        self.note(Call::Stop(slice.to_string()));
        Ok(())
    }
}
