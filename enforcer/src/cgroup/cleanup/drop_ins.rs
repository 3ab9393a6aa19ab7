//! The files in which systemd keeps properties that were set until the next boot.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::Marked;
use crate::{
    cgroup::{Property, UnitName},
    model::{CgroupFile, CgroupPath},
};

/// Where systemd keeps them, for units that have a file of their own. Those of transient units go with the unit.
pub const DROP_INS: &str = "/run/systemd/system.control";

/// How systemd begins each of them (`unit_write_setting` in `src/core/unit.c`).
const HEADER: &str = "# This is a drop-in unit file extension, created via \"systemctl set-property\"";

/// Those in `control` of the properties that were set for the files of marked cgroups, and that held nothing before. One whose
/// cgroup had a value of its own keeps that.
#[must_use]
pub fn drop_ins(control: &Path, marked: &[Marked]) -> Vec<(CgroupPath, PathBuf)> {
    let mut found = Vec::new();
    for one in marked {
        let (Some(mark), Some(unit)) = (&one.mark, UnitName::of(&one.path)) else { continue };
        let folder = control.join(format!("{unit}.d"));
        for (file, before) in &mark.files {
            if before.as_ref().is_some_and(|before| *before != file.default_value()) {
                continue;
            }
            let paths = names(*file).map(|name| folder.join(format!("50-{name}.conf")));
            found.extend(paths.filter(|path| is_systemds(path)).map(|path| (one.path.clone(), path)));
        }
    }
    found
}

/// The names of a file's properties in unit files, which differ from those on the bus where the unit of time does.
fn names(file: CgroupFile) -> impl Iterator<Item = &'static str> {
    Property::of(&file.default_value()).into_iter().map(|property| match property.name {
        "CPUQuotaPerSecUSec" => "CPUQuota",
        "CPUQuotaPeriodUSec" => "CPUQuotaPeriodSec",
        name => name,
    })
}

fn is_systemds(path: &Path) -> bool {
    if !fs::symlink_metadata(path).is_ok_and(|file| file.is_file()) {
        return false;
    }
    let mut begin = vec![0_u8; HEADER.len()];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == HEADER.as_bytes()
}
