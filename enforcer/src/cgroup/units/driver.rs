//! Who makes cgroups and keeps their values, as `cgroupDriver` says: files alone, or systemd.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use super::{Property, UnitError, UnitKind, UnitName, Units};
use crate::{
    cgroup::{
        CgroupDir, CgroupsRs, Controller, Error, Held, LimitWriter, PageSize, Permit, Removal, Step,
        drift::ROUNDS, remove::remove,
    },
    model::{CgroupFile, CgroupId, CgroupPath, CgroupValue},
};

/// How long systemd may take to make the cgroup of a slice that it started.
const APPEAR: Duration = Duration::from_secs(5);

/// How long to wait for a stopped slice; one that takes longer is seen gone at the next look.
const VANISH: Duration = Duration::from_millis(300);

const POLL: Duration = Duration::from_millis(1);

/// Makes and removes cgroups, and keeps their values: the field `cgroupDriver`.
///
/// The default methods are the cgroupfs driver: files alone.
pub trait Driver: LimitWriter {
    /// Keeps the steps that are this driver's, in an order in which the effect of each lasts.
    fn arrange(&self, steps: Vec<Step>) -> Vec<Step> {
        steps
    }

    /// Makes a cgroup below an existing one, or takes the one that exists.
    fn create(&self, root: &CgroupDir, path: &CgroupPath) -> Result<CgroupId, Error> {
        let (Some(parent), Some(name)) = (path.parent(), path.names().last()) else {
            return Ok(root.id());
        };
        Ok(root.open(&parent)?.create_child(name)?.id())
    }

    /// Announces the values of a cgroup's files to any other writer of them. They are written after that.
    fn emit(&self, _dir: &CgroupDir, _values: &[CgroupValue]) -> Result<(), Error> {
        Ok(())
    }

    /// Waits until no value that was announced before can overwrite a file's value.
    fn settle(&self, _dir: &CgroupDir, _value: &CgroupValue) -> Result<(), Error> {
        Ok(())
    }

    /// How often within a minute a file is restored before another process counts as insisting on its value.
    fn rounds(&self, _file: CgroupFile) -> usize {
        ROUNDS
    }

    /// Whether this driver removes a cgroup: files alone do not remove a unit's, which another driver made.
    fn removes(&self, path: &CgroupPath) -> bool {
        UnitName::of(path).is_none()
    }

    /// Removes a cgroup and everything below it if no process is left there.
    fn remove(&self, root: &CgroupDir, path: &CgroupPath, permit: &Permit) -> Result<Removal, Error> {
        remove(root, path, permit)
    }
}

impl Driver for CgroupsRs {}

/// The systemd driver: it asks systemd for slices, leaves scopes to it, and sets every value that systemd has a
/// property for.
///
/// Each value is also written to its file: systemd writes it only after it has replied, and does not report what the
/// kernel refuses. Cgroups that are no units, such as those within a container's scope, are handled as by cgroupfs.
#[derive(Debug)]
pub struct SystemdDriver<U> {
    units: U,
    /// Whether systemd may still be writing values that were set.
    is_unsettled: AtomicBool,
}

impl<U: Units> SystemdDriver<U> {
    /// Uses that systemd.
    pub fn new(units: U) -> Self {
        Self { units, is_unsettled: AtomicBool::new(false) }
    }
}

impl<U: Units> Driver for SystemdDriver<U> {
    /// systemd makes the slices above one that it starts, hands its own controllers on wherever a unit has a property
    /// of theirs, and takes back what others have handed on. Whenever a memory value is set, it also writes
    /// `memory.oom.group`; so files without a property come last.
    fn arrange(&self, mut steps: Vec<Step>) -> Vec<Step> {
        steps.retain_mut(|step| match step {
            Step::Enable { path: _, controllers } => {
                controllers.retain(|controller| !is_systemds(*controller));
                !controllers.is_empty()
            }
            Step::Create(_) | Step::Write(_) | Step::Move { .. } => true,
        });
        // The order within each kind stays.
        steps.sort_by_key(|step| match step {
            Step::Create(_) => 0,
            Step::Enable { .. } => 1,
            Step::Write(write) => {
                if Property::of(&write.value).is_empty() {
                    3
                } else {
                    2
                }
            }
            Step::Move { .. } => 4,
        });
        steps
    }

    fn create(&self, root: &CgroupDir, path: &CgroupPath) -> Result<CgroupId, Error> {
        let slice = UnitName::of(path).filter(|unit| unit.kind() == UnitKind::Slice);
        // Only a caller that has a process for it can make a scope.
        let slice = slice.ok_or_else(|| UnitError::NoUnit { path: path.clone() })?;
        self.units.start_slice(&slice)?;
        let start = Instant::now();
        loop {
            match root.open(path) {
                Ok(dir) => return Ok(dir.id()),
                Err(error) if !error.is_gone() => return Err(error),
                Err(_) if start.elapsed() < APPEAR => sleep(POLL),
                Err(_) => {
                    let waited_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(UnitError::NoCgroup { unit: slice, path: path.clone(), waited_ms }.into());
                }
            }
        }
    }

    fn emit(&self, dir: &CgroupDir, values: &[CgroupValue]) -> Result<(), Error> {
        let Some(unit) = UnitName::of(dir.path()) else { return Ok(()) };
        let properties: Vec<_> = values.iter().flat_map(Property::of).collect();
        if !properties.is_empty() {
            self.units.set(&unit, &properties)?;
            self.is_unsettled.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A file that systemd has a property for gets the same value from both, in either order. That of CPUs may only come with
    /// the property.
    fn settle(&self, _dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error> {
        let waits = Property::of(value).is_empty() || matches!(value, CgroupValue::CpusetCpus(_));
        if self.is_unsettled.load(Ordering::Relaxed) && waits {
            self.units.settle()?;
            self.is_unsettled.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// systemd resets `memory.oom.group` whenever units are reloaded, which happens again and again while packages are
    /// installed. No process insists on that value.
    fn rounds(&self, file: CgroupFile) -> usize {
        if file == CgroupFile::MemoryOomGroup { 20 * ROUNDS } else { ROUNDS }
    }

    fn removes(&self, _path: &CgroupPath) -> bool {
        true
    }

    fn remove(&self, root: &CgroupDir, path: &CgroupPath, permit: &Permit) -> Result<Removal, Error> {
        let Some(unit) = UnitName::of(path) else { return remove(root, path, permit) };
        let is_populated = match root.open(path).and_then(|dir| dir.is_populated()) {
            Ok(is_populated) => is_populated,
            Err(error) if error.is_gone() => return Ok(Removal::Gone),
            Err(error) => return Err(error),
        };
        // systemd removes other units by itself once they are empty. Stopping a slice ends what runs in it.
        if is_populated || unit.kind() != UnitKind::Slice {
            return Ok(Removal::Populated);
        }
        self.units.stop_slice(&unit)?;
        let start = Instant::now();
        loop {
            match root.open(path) {
                Err(error) if error.is_gone() => return Ok(Removal::Gone),
                Err(error) => return Err(error),
                Ok(_) if start.elapsed() < VANISH => sleep(POLL),
                Ok(_) => return Ok(Removal::Partial),
            }
        }
    }
}

/// Writes each value as the cgroupfs driver does, unless systemd was quicker.
impl<U: Units> LimitWriter for SystemdDriver<U> {
    fn set(&self, dir: &CgroupDir, value: &CgroupValue) -> Result<(), Error> {
        if is_memory_limit(value) && is_in_force(dir, value) { Ok(()) } else { CgroupsRs.set(dir, value) }
    }
}

/// Whether it limits or protects memory. Writing such a value again is not free: the kernel may reclaim for it.
fn is_memory_limit(value: &CgroupValue) -> bool {
    matches!(
        value,
        CgroupValue::MemoryMin(_)
            | CgroupValue::MemoryLow(_)
            | CgroupValue::MemoryHigh(_)
            | CgroupValue::MemoryMax(_)
    )
}

/// Whether systemd knows the controller (`CGroupController` in `src/basic/cgroup-util.h`).
fn is_systemds(controller: Controller) -> bool {
    match controller {
        Controller::Cpu | Controller::Cpuset | Controller::Io | Controller::Memory | Controller::Pids => true,
        Controller::Hugetlb => false,
    }
}

/// Whether its file holds the value already.
fn is_in_force(dir: &CgroupDir, value: &CgroupValue) -> bool {
    let (file, page) = (value.file(), PageSize::of_this_machine());
    dir.read(&file.name()).is_ok_and(|content| Held::read(file, &content).is(value, page))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;
    use crate::cgroup::{
        Making, Outcome, Reason, Write, apply,
        units::fake::{Call, Fake},
    };
    use crate::sample::value;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn scene() -> (tempfile::TempDir, CgroupDir, SystemdDriver<Fake>) {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let driver = SystemdDriver::new(Fake::at(temp.path()));
        (temp, root, driver)
    }

    #[test]
    fn slices_are_asked_for_and_nothing_else_is_made() {
        let (temp, root, driver) = scene();
        let slice = path("/kubepods.slice");
        let id = driver.create(&root, &slice).unwrap();
        assert_eq!(root.open(&slice).unwrap().id(), id);
        assert_eq!(driver.units.calls(), [Call::Start(String::from("kubepods.slice"))]);
        for no_slice in ["/kubepods.slice/enforcer-u-app.scope", "/kubepods.slice/plain", "/other-a.slice"] {
            let error = driver.create(&root, &path(no_slice)).unwrap_err();
            assert!(matches!(&error, Error::Unit(UnitError::NoUnit { .. })), "{error}");
            assert!(!temp.path().join(no_slice.trim_start_matches('/')).exists());
        }
    }

    #[test]
    fn what_systemd_has_a_property_for_is_reported_to_it() {
        let (temp, root, driver) = scene();
        fs::create_dir_all(temp.path().join("kubepods.slice/plain")).unwrap();
        let slice = root.open(&path("/kubepods.slice")).unwrap();
        let group = value("memory.oom.group", "1");
        driver.settle(&slice, &group).unwrap();
        let values = [value("cpu.weight", "79"), group.clone(), value("pids.max", "64")];
        driver.emit(&slice, &values).unwrap();
        driver.emit(&slice, &values[1..2]).unwrap();
        let plain = root.open(&path("/kubepods.slice/plain")).unwrap();
        driver.emit(&plain, &values).unwrap();
        driver.settle(&slice, &values[0]).unwrap();
        for _ in 0..2 {
            driver.settle(&slice, &group).unwrap();
        }
        let reported = vec![Property::number("CPUWeight", 79), Property::number("TasksMax", 64)];
        assert_eq!(driver.units.calls(), [Call::Set(String::from("kubepods.slice"), reported), Call::Settle]);
    }

    #[test]
    fn what_systemd_does_is_left_to_it_and_what_it_would_undo_comes_last() {
        let (_temp, _root, driver) = scene();
        let at = path("/kubepods.slice");
        let write = |file: &str, text: &str| {
            let (path, value) = (at.clone(), value(file, text));
            Step::Write(Write { path, value, old: None, reason: Reason::Initial })
        };
        let enable =
            |controllers: &[Controller]| Step::Enable { path: at.clone(), controllers: controllers.into() };
        let steps = vec![
            enable(&[Controller::Cpu, Controller::Hugetlb]),
            Step::Create(at.clone()),
            enable(&[Controller::Cpuset]),
            write("memory.oom.group", "1"),
            write("memory.max", "8192"),
        ];
        let expected = [
            Step::Create(at.clone()),
            enable(&[Controller::Hugetlb]),
            write("memory.max", "8192"),
            write("memory.oom.group", "1"),
        ];
        assert_eq!(driver.arrange(steps), expected);
    }

    #[test]
    fn values_of_one_cgroup_are_reported_at_once_but_for_the_one_that_may_wait() {
        let (temp, root, driver) = scene();
        let folder = temp.path().join("kubepods.slice");
        fs::create_dir(&folder).unwrap();
        let write = |file: &str, text: &str| {
            let (path, value) = (path("/kubepods.slice"), value(file, text));
            Step::Write(Write { path, value, old: None, reason: Reason::Initial })
        };
        for (file, content) in [
            ("cpu.weight", "100"),
            ("memory.max", "max"),
            ("memory.current", "16384"),
            ("pids.max", "max"),
            ("memory.low", "0"),
            ("memory.oom.group", "0"),
        ] {
            fs::write(folder.join(file), content).unwrap();
        }
        let steps = [
            write("cpu.weight", "79"),
            write("memory.max", "8192"),
            write("pids.max", "64"),
            write("memory.low", "4096"),
            write("memory.oom.group", "1"),
        ];
        let permit = Permit::for_enforce_mode();
        let page = PageSize::new(4096);
        let mut making = Making::default();
        let (outcomes, _) = apply(&root, &driver, steps.into(), &BTreeMap::new(), &mut making, page, &permit);
        let withheld: Vec<_> = outcomes.iter().filter_map(Outcome::withheld).collect();
        assert_eq!(withheld.len(), 1, "{outcomes:?}");
        assert_eq!(withheld[0].write.file(), CgroupFile::MemoryMax);
        let reported = [("CPUWeight", 79), ("TasksMax", 64), ("MemoryLow", 4096)]
            .map(|(name, number)| Property::number(name, number));
        let reported = reported.to_vec();
        assert_eq!(driver.units.calls(), [Call::Set(String::from("kubepods.slice"), reported), Call::Settle]);
        assert_eq!(fs::read_to_string(folder.join("memory.oom.group")).unwrap(), "1");
        assert_eq!(fs::read_to_string(folder.join("memory.max")).unwrap(), "max");
    }

    #[test]
    fn a_slice_is_stopped_only_when_it_is_empty_and_a_scope_never() {
        let (temp, root, driver) = scene();
        let permit = Permit::for_enforce_mode();
        let pod = temp.path().join("kubepods.slice/kubepods-podu.slice");
        let scope = pod.join("enforcer-u-app.scope");
        fs::create_dir_all(&scope).unwrap();
        let pod_path = path("/kubepods.slice/kubepods-podu.slice");
        let events = |populated: u8| fs::write(pod.join("cgroup.events"), format!("populated {populated}\n"));
        events(1).unwrap();
        assert_eq!(driver.remove(&root, &pod_path, &permit).unwrap(), Removal::Populated);
        fs::write(scope.join("cgroup.events"), "populated 0\n").unwrap();
        let scope_path = pod_path.child("enforcer-u-app.scope").unwrap();
        assert_eq!(driver.remove(&root, &scope_path, &permit).unwrap(), Removal::Populated);
        assert_eq!(driver.units.calls(), []);
        events(0).unwrap();
        assert_eq!(driver.remove(&root, &pod_path, &permit).unwrap(), Removal::Gone);
        assert_eq!(driver.units.calls(), [Call::Stop(String::from("kubepods-podu.slice"))]);
        assert_eq!(driver.remove(&root, &pod_path, &permit).unwrap(), Removal::Gone);
    }

    #[test]
    fn a_value_that_systemd_has_written_is_not_written_again() {
        let (temp, root, driver) = scene();
        let folder = temp.path().join("kubepods.slice");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("memory.max"), "209715200\n").unwrap();
        let slice = root.open(&path("/kubepods.slice")).unwrap();
        driver.set(&slice, &value("memory.max", "209715201")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("memory.max")).unwrap(), "209715200\n");
        driver.set(&slice, &value("memory.max", "4096")).unwrap();
        assert_eq!(fs::read_to_string(folder.join("memory.max")).unwrap(), "4096");
    }
}
