//! Takes cgroups down from the bottom up, and only empty ones: nothing is ever killed here.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{CgroupDir, Error, Permit};
use crate::model::CgroupPath;

/// How many cgroups one removal takes down, at most; the rest goes at the next attempt.
const MAX_REMOVED: usize = 4096;

/// The result of removing a cgroup with everything below it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// It is gone.
    Gone,
    /// It still holds processes, or got some meanwhile.
    Populated,
    /// It holds more cgroups than one attempt removes; the deepest are gone already.
    Partial,
}

/// Removes a cgroup and every cgroup below it, from the bottom up, if no process is left in any of them.
///
/// The kernel refuses to remove a cgroup with processes, so nothing is ever killed here. A cgroup that holds processes
/// is not touched at all: `populated` in `cgroup.events` covers the whole subtree.
pub fn remove(root: &CgroupDir, path: &CgroupPath, _permit: &Permit) -> Result<Removal, Error> {
    if path.is_root() {
        return Ok(Removal::Populated);
    }
    let dir = match root.open(path) {
        Ok(dir) => dir,
        Err(error) if error.is_gone() => return Ok(Removal::Gone),
        Err(error) => return Err(error),
    };
    match dir.is_populated() {
        Ok(true) => return Ok(Removal::Populated),
        Ok(false) => {}
        Err(error) if error.is_gone() => return Ok(Removal::Gone),
        Err(error) => return Err(error),
    }
    let mut stack = vec![(PathBuf::from(path.as_str().trim_start_matches('/')), false)];
    let (mut removed, mut busy) = (0, false);
    while let Some((next, expanded)) = stack.pop() {
        let children = if expanded { Vec::new() } else { children(root, &next)? };
        if !children.is_empty() {
            stack.push((next.clone(), true));
            stack.extend(children.iter().map(|name| (next.join(name), false)));
            continue;
        }
        match rmdir(root, &next) {
            Ok(()) => removed += 1,
            Err(error) if error.is_gone() => {}
            Err(error) if error.is_busy() => busy = true,
            Err(error) => return Err(error),
        }
        if removed >= MAX_REMOVED && !stack.is_empty() {
            return Ok(Removal::Partial);
        }
    }
    Ok(if busy { Removal::Populated } else { Removal::Gone })
}

fn children(root: &CgroupDir, path: &Path) -> Result<Vec<OsString>, Error> {
    match root.open_below(path).and_then(|dir| dir.children()) {
        Ok(names) => Ok(names),
        Err(error) if error.is_gone() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn rmdir(root: &CgroupDir, path: &Path) -> Result<(), Error> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => root.open_below(parent)?.remove_child(name),
        (None, _) | (_, None) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    #[test]
    fn nothing_is_removed_while_a_process_is_left() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("pod/app")).unwrap();
        fs::write(temp.path().join("pod/cgroup.events"), "populated 1\nfrozen 0\n").unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let permit = Permit::for_enforce_mode();
        assert_eq!(remove(&root, &path("/pod"), &permit).unwrap(), Removal::Populated);
        assert!(temp.path().join("pod/app").exists());
        assert_eq!(remove(&root, &path("/gone"), &permit).unwrap(), Removal::Gone);
        assert_eq!(remove(&root, &path("/"), &permit).unwrap(), Removal::Populated);
    }

    #[test]
    fn what_is_below_goes_whatever_its_name() {
        let temp = tempfile::tempdir().unwrap();
        let inner = temp.path().join("pod").join(OsStr::from_bytes(b"x\xff")).join("inner");
        fs::create_dir_all(inner).unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        // No kernel keeps this file in the way of a removal.
        fs::write(temp.path().join("pod/cgroup.events"), "populated 0\n").unwrap();
        let permit = Permit::for_enforce_mode();
        assert!(remove(&root, &path("/pod"), &permit).is_err(), "the file is left");
        assert_eq!(fs::read_dir(temp.path().join("pod")).unwrap().count(), 1, "all but the file");
    }

    #[test]
    fn the_state_of_a_cgroup_that_cannot_be_reported_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("pod")).unwrap();
        fs::write(temp.path().join("pod/cgroup.events"), [0xff, 0xfe]).unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        assert!(remove(&root, &path("/pod"), &Permit::for_enforce_mode()).is_err());
        assert!(temp.path().join("pod").exists());
    }
}
