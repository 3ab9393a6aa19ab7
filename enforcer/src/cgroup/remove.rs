//! Takes cgroups down from the bottom up, and only empty ones: nothing is ever killed here.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
};

use super::{CgroupDir, Error, Permit};
use crate::model::CgroupPath;

/// How many cgroups one removal takes down, at most; the rest goes at the next attempt.
const MAX_REMOVED: usize = 4096;

/// How many times one removal opens a cgroup, at most: a process may make cgroups faster than they are found. Each attempt
/// still gets to some that can go: none is nested as deep, as the kernel keeps for each a list of all above it.
const MAX_OPENED: usize = 262_144;

/// How many cgroups one removal holds open, at most, besides the one above all of them.
const MAX_HELD: usize = 64;

/// The result of removing a cgroup with everything below it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Removal {
    /// It is gone.
    Gone,
    /// It still holds processes, or got some meanwhile.
    Populated,
    /// It holds more cgroups than one attempt removes; some of the deepest are gone already.
    Partial,
}

/// Removes a cgroup and every cgroup below it, from the bottom up, if no process is left in any of them.
///
/// The kernel refuses to remove a cgroup with processes, so nothing is ever killed here. A cgroup that holds processes
/// is not touched at all: `populated` in `cgroup.events` covers the whole subtree.
pub fn remove(root: &CgroupDir, path: &CgroupPath, _permit: &Permit) -> Result<Removal, Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.names().last()) else {
        return Ok(Removal::Populated);
    };
    // What is removed is a pod's or a container's, whose own path is short.
    let found = root.open(&parent).and_then(|above| {
        let is_populated = above.open_below(name)?.is_populated()?;
        Ok((above, is_populated))
    });
    match found {
        Ok((_, true)) => Ok(Removal::Populated),
        Ok((above, false)) => {
            let mut walk = Walk::new(above);
            walk.enter(name.into())?;
            walk.finish()
        }
        Err(error) if error.is_gone() => Ok(Removal::Gone),
        Err(error) => Err(error),
    }
}

/// A walk through a cgroup and all below it, which removes each when it leaves it.
///
/// A pod that manages its own cgroups can nest them deeper than any path leads, and deeper than files may be open. So
/// each is opened below the handle of the one above it, and only the lowest handles are held.
struct Walk {
    /// The cgroup that holds the one to be removed.
    above: CgroupDir,
    /// The cgroups from the one to be removed down to where the walk is.
    way: Vec<Level>,
    /// The handles of the last of them: at least one, unless there are none.
    held: VecDeque<CgroupDir>,
    opened: usize,
    removed: usize,
    is_busy: bool,
}

struct Level {
    name: OsString,
    /// Those right below it that were not entered yet.
    children: Vec<OsString>,
}

impl Walk {
    fn new(above: CgroupDir) -> Self {
        Self { above, way: Vec::new(), held: VecDeque::new(), opened: 0, removed: 0, is_busy: false }
    }

    /// Goes on until it has left all that it entered.
    fn finish(&mut self) -> Result<Removal, Error> {
        while let Some(level) = self.way.last_mut() {
            if self.removed >= MAX_REMOVED || self.opened >= MAX_OPENED {
                return Ok(Removal::Partial);
            }
            match level.children.pop() {
                Some(name) => self.enter(name)?,
                None => self.leave()?,
            }
        }
        Ok(if self.is_busy { Removal::Populated } else { Removal::Gone })
    }

    /// Goes down to a child, unless it is gone.
    fn enter(&mut self, name: OsString) -> Result<(), Error> {
        if !self.open(&name)? {
            return Ok(());
        }
        let children = match self.here().children() {
            Ok(names) => names,
            Err(error) if error.is_gone() => Vec::new(),
            Err(error) => return Err(error),
        };
        self.way.push(Level { name, children });
        Ok(())
    }

    /// Goes up, and removes what it comes from.
    fn leave(&mut self) -> Result<(), Error> {
        let Some(Level { name, .. }) = self.way.pop() else { return Ok(()) };
        self.held.pop_back();
        if self.held.is_empty() && !self.reopen()? {
            return Ok(());
        }
        match self.here().remove_child(&name) {
            Ok(()) => self.removed += 1,
            Err(error) if error.is_gone() => {}
            Err(error) if error.is_busy() => self.is_busy = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Opens the way again, from the top; `false` if a cgroup of it is gone, and so all below that: there it ends now.
    fn reopen(&mut self) -> Result<bool, Error> {
        for level in std::mem::take(&mut self.way) {
            if !self.open(&level.name)? {
                return Ok(false);
            }
            self.way.push(level);
        }
        Ok(true)
    }

    /// Opens a child, and holds it instead of the highest handle; `false` if it is gone.
    fn open(&mut self, name: &OsStr) -> Result<bool, Error> {
        self.opened += 1;
        match self.here().open_below(name) {
            Ok(dir) => {
                if self.held.len() >= MAX_HELD {
                    self.held.pop_front();
                }
                self.held.push_back(dir);
                Ok(true)
            }
            Err(error) if error.is_gone() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn here(&self) -> &CgroupDir {
        self.held.back().unwrap_or(&self.above)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::ffi::OsStrExt as _};

    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    /// A pod's cgroup that holds no process.
    fn empty() -> (tempfile::TempDir, CgroupDir) {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("pod")).unwrap();
        fs::write(temp.path().join("pod/cgroup.events"), "populated 0\n").unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        (temp, root)
    }

    /// Removes everything in the pod's cgroup but its file, which no kernel keeps in the way of a removal.
    fn remove_all_but_the_file(temp: &tempfile::TempDir, root: &CgroupDir) {
        let error = remove(root, &path("/pod"), &Permit::for_enforce_mode()).unwrap_err();
        assert_eq!(error.path(), "/pod", "{error}");
        assert_eq!(fs::read_dir(temp.path().join("pod")).unwrap().count(), 1, "all but the file");
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
        let (temp, root) = empty();
        let inner = temp.path().join("pod").join(OsStr::from_bytes(b"x\xff")).join("inner");
        fs::create_dir_all(inner).unwrap();
        remove_all_but_the_file(&temp, &root);
    }

    #[test]
    fn what_is_too_deep_for_a_path_or_for_the_open_handles_goes() {
        for (levels, length) in [(40, 200), (5 * MAX_HELD, 1)] {
            let (temp, root) = empty();
            let mut dir = root.open(&path("/pod")).unwrap();
            for _ in 0..levels {
                // One is entered before the way goes down, and one after it came back.
                dir.create_child("a").unwrap();
                dir.create_child("z").unwrap();
                dir = dir.create_child(&"x".repeat(length)).unwrap();
            }
            remove_all_but_the_file(&temp, &root);
        }
    }

    #[test]
    fn what_one_attempt_leaves_goes_at_the_next() {
        let (temp, root) = empty();
        let pod = temp.path().join("pod");
        for number in 0..MAX_REMOVED / 2 + 2 {
            fs::create_dir_all(pod.join(format!("{number}/inner"))).unwrap();
        }
        let permit = Permit::for_enforce_mode();
        assert_eq!(remove(&root, &path("/pod"), &permit).unwrap(), Removal::Partial);
        assert_eq!(fs::read_dir(&pod).unwrap().count(), 3, "two cgroups and the file");
        remove_all_but_the_file(&temp, &root);
    }

    #[test]
    fn the_way_ends_above_what_is_gone_meanwhile() {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let mut dir = root.create_child("pod").unwrap();
        for _ in 0..2 * MAX_HELD {
            dir = dir.create_child("x").unwrap();
        }
        let mut walk = Walk::new(root);
        walk.enter("pod".into()).unwrap();
        while let Some(name) = walk.way.last_mut().and_then(|level| level.children.pop()) {
            walk.enter(name).unwrap();
        }
        assert_eq!((walk.way.len(), walk.held.len()), (1 + 2 * MAX_HELD, MAX_HELD));
        fs::rename(temp.path().join("pod/x"), temp.path().join("elsewhere")).unwrap();
        assert_eq!(walk.finish().unwrap(), Removal::Gone);
        assert!(!temp.path().join("pod").exists());
        assert!(temp.path().join("elsewhere/x").exists());
        // The pod's cgroup, and those below a handle that was held.
        assert_eq!(walk.removed, 1 + MAX_HELD - 1);
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
