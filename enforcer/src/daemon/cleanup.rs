//! `enforcer cleanup`: gives back everything that a daemon has changed on this machine, while none runs.

mod claim;
mod files;
mod item;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use serde::Serialize;
use tokio::runtime::Handle;

pub use self::{claim::Refused, item::Item};
use super::{handover, ownership};
use crate::{
    cgroup::{
        self, Absent, CgroupDir, CgroupsRs, Driver, Left, Mark, Marked, PageSize, Permit, Survey, Systemd,
        SystemdDriver, Temporarily, Trouble, Undo, Undone, UnitName,
    },
    config::Config,
    evict,
    journal::{Intent, Intents},
    model::CgroupPath,
    policy::CgroupDriver,
    sense::{self, Unpinned},
    threads, trust,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether nothing is done.
    pub dry_run: bool,
    /// Whether the state directory is removed too.
    pub state: bool,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CleanedUp {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// The daemon that runs, if nothing is to be done; otherwise none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon: Option<String>,
    /// What was undone, or would be.
    pub done: Vec<Item>,
    /// What stays on purpose, or of which the value before is not known.
    pub left: Vec<Left>,
    /// What could not be undone.
    pub failed: Vec<Trouble>,
}

/// Undoes everything, or only finds out what there is. Fails without the right to look, and if a daemon runs and
/// anything is to be undone.
pub async fn cleanup(config: &Config, options: Options) -> anyhow::Result<CleanedUp> {
    let patience = if options.dry_run { Duration::ZERO } else { handover::TIMEOUT };
    let (claim, daemon) = match claim::take(config, patience).await {
        Ok(claim) => (Some(claim), None),
        Err(Refused::Runs { holder }) if options.dry_run => (None, Some(holder)),
        Err(refused) => return Err(refused.into()),
    };
    let boot_id =
        fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read this boot's id")?;
    let (config, runtime) = (config.clone(), Handle::current());
    let boot_id = boot_id.trim().to_owned();
    let work = move || {
        // Held until all is done: a daemon that starts meanwhile waits.
        let _claim = claim;
        Work { config, options, boot_id, runtime, all: CleanedUp { daemon, ..CleanedUp::default() } }.run()
    };
    Ok(threads::blocking(work).await)
}

struct Work {
    config: Config,
    options: Options,
    boot_id: String,
    /// Where systemd is asked.
    runtime: Handle,
    all: CleanedUp,
}

impl Work {
    fn run(mut self) -> CleanedUp {
        self.all.dry_run = self.options.dry_run;
        let is_trusted = self.check_run_dir();
        let intents = if is_trusted { self.intents() } else { Some(Vec::new()) };
        let keeps_intents = !self.undo_cgroups(intents.as_deref().unwrap_or_default()) || intents.is_none();
        self.undo_sysctl();
        self.undo_pins();
        if is_trusted {
            self.remove_run_dir(keeps_intents);
        }
        self.remove_state_dir();
        self.all
    }

    /// What comes from a folder that others may change is not acted on.
    fn check_run_dir(&mut self) -> bool {
        let run_dir = &self.config.run_dir;
        let Ok(metadata) = fs::metadata(run_dir) else { return true };
        match trust::check(run_dir, metadata.uid(), metadata.mode()) {
            Ok(()) => true,
            Err(trust::Untrusted { why, remedy }) => {
                let remedy = format!("{remedy}, and run enforcer cleanup again");
                self.all.failed.push(Trouble { path: run_dir.display().to_string(), error: why, remedy });
                false
            }
        }
    }

    /// What a killed daemon was about to do; `None` if that cannot be read.
    fn intents(&mut self) -> Option<Vec<Intent<'static>>> {
        match Intents::look(&self.config.run_dir, &self.boot_id) {
            Ok(intents) => Some(intents),
            Err(error) => {
                self.all.failed.push(Trouble::again(self.config.run_dir.display().to_string(), &error));
                None
            }
        }
    }

    /// Returns whether every temporary value is restored.
    fn undo_cgroups(&mut self, intents: &[Intent<'static>]) -> bool {
        let mount = Path::new(cgroup::MOUNT);
        let root = match CgroupDir::mount(mount) {
            Ok(root) => root,
            Err(error) => {
                self.all.failed.push(Trouble::again(cgroup::MOUNT, &error));
                return false;
            }
        };
        let is_kubelets = ownership::kubelet_owns_cgroups(&self.config, &self.boot_id);
        let (temporary, unmarked) = of_intents(intents);
        let proc = Path::new("/proc");
        let is_hooks = |name: &str| evict::is_hook_left(name, proc);
        let mut survey = match cgroup::survey(&root, proc, &temporary, &unmarked, &is_hooks) {
            Ok(survey) => survey,
            Err(error) => {
                self.all.failed.push(Trouble::again("/proc", &error));
                return false;
            }
        };
        self.all.left.extend(claim::spare_others(&root, &mut survey));
        let page = PageSize::of_this_machine();
        let cgroup::Cleanup { steps, left, troubles } = cgroup::cleanup(&survey, is_kubelets, page);
        self.all.left.extend(left);
        self.all.failed.extend(troubles);
        let by_systemd = is_systemds(&self.config, &survey) && self.is_systemd_there();
        let drop_ins = if by_systemd && !is_kubelets {
            cgroup::drop_ins(Path::new(cgroup::DROP_INS), &survey.marked)
        } else {
            Vec::new()
        };
        let done = if self.options.dry_run {
            steps.into_iter().map(Undone::Done).collect()
        } else {
            let driver = self.driver(by_systemd);
            match cgroup::carry_out(&root, proc, driver.as_ref(), steps, page, &Permit::for_cleanup()) {
                Ok(done) => done,
                Err(error) => {
                    self.all.failed.push(Trouble::again("/proc", &error));
                    return false;
                }
            }
        };
        let kept = not_given_back(&done);
        let is_restored = self.note(done);
        self.remove_drop_ins(drop_ins.into_iter().filter(|(cgroup, _)| !kept.keep(cgroup)));
        is_restored
    }

    /// Whether systemd can be asked. One that cannot be keeps what it knows.
    fn is_systemd_there(&mut self) -> bool {
        match cgroup::is_there() {
            Ok(()) => true,
            Err(Absent::Init) => false,
            Err(error) => {
                self.all.failed.push(Trouble::again("systemd", &error));
                false
            }
        }
    }

    fn driver(&self, by_systemd: bool) -> Box<dyn Driver> {
        if by_systemd {
            Box::new(SystemdDriver::new(Systemd::new().blocking(self.runtime.clone())))
        } else {
            Box::new(CgroupsRs)
        }
    }

    /// Returns whether no temporary value is left.
    fn note(&mut self, done: Vec<Undone>) -> bool {
        let mut is_restored = true;
        for undone in done {
            match undone {
                Undone::Done(undo) => self.all.done.push(Item::of(&undo)),
                Undone::Skipped(undo) => self.all.left.push(Left {
                    path: Item::of(&undo).place(),
                    why: String::from(
                        "another has written it meanwhile; our mark stays: enforcer cleanup again undoes it",
                    ),
                }),
                Undone::Failed(undo, trouble) => {
                    is_restored &= !matches!(undo, Undo::Temporary(_));
                    self.all.failed.push(trouble);
                }
            }
        }
        is_restored
    }

    /// Removes the drop-ins of cgroups of which everything was undone, and has systemd notice it.
    fn remove_drop_ins(&mut self, drop_ins: impl Iterator<Item = (CgroupPath, PathBuf)>) {
        let mut removed = false;
        for (cgroup, path) in drop_ins {
            if self.all.failed.iter().any(|failed| failed.path == cgroup.as_str()) {
                continue;
            }
            if !self.options.dry_run {
                match fs::remove_file(&path) {
                    Ok(()) => removed = true,
                    Err(error) => {
                        self.all.failed.push(Trouble::again(path.display().to_string(), &error));
                        continue;
                    }
                }
                if let Some(folder) = path.parent() {
                    // Others' drop-ins keep it.
                    let _kept = fs::remove_dir(folder);
                }
            }
            self.all.done.push(Item::removed("drop-in", &path));
        }
        if removed && let Err(error) = Systemd::new().blocking(self.runtime.clone()).reload() {
            self.all.failed.push(Trouble {
                path: String::from(cgroup::DROP_INS),
                error: crate::chain(&error),
                remedy: String::from("systemctl daemon-reload"),
            });
        }
    }

    fn undo_sysctl(&mut self) {
        let undone = evict::left_sysctl(Path::new("/proc")).and_then(|left| {
            let Some(evict::LeftSysctl { path, present, before }) = left else { return Ok(None) };
            if !self.options.dry_run {
                fs::write(&path, before)?;
            }
            Ok(Some(Item::changed("sysctl", &path, present, before)))
        });
        match undone {
            Ok(item) => self.all.done.extend(item),
            Err(error) => self.all.failed.push(Trouble::again("/proc/sys/vm", &error)),
        }
    }

    fn undo_pins(&mut self) {
        let unpinned = if self.options.dry_run { sense::look_at_pins() } else { sense::unpin() };
        match unpinned {
            Ok(Unpinned { removed, left }) => {
                self.all.done.extend(removed.iter().map(|path| Item::removed("pin", path)));
                self.all.left.extend(left.iter().map(|path| Left {
                    path: path.display().to_string(),
                    why: String::from("enforcer has not pinned it"),
                }));
            }
            Err(error) => self.all.failed.push(Trouble::again("/sys/fs/bpf/enforcer", &error)),
        }
    }

    fn remove_run_dir(&mut self, keeps_intents: bool) {
        let mut names = files::OF_RUN_DIR.to_vec();
        if self.options.state {
            names.push(files::TAIL);
        }
        if keeps_intents {
            names.retain(|name| *name != files::INTENTS);
        }
        let run_dir = self.config.run_dir.clone();
        self.remove_files(&run_dir, &names);
        let tail = run_dir.join(files::TAIL);
        if !self.options.state && tail.exists() {
            self.all.left.push(Left {
                path: tail.display().to_string(),
                why: String::from("the newest events of the journal: enforcer cleanup --state removes them"),
            });
        }
    }

    fn remove_state_dir(&mut self) {
        let state_dir = self.config.state_dir.clone();
        let marks = state_dir.join(files::NODE_MARKS);
        if marks.exists() {
            self.all.left.push(Left {
                path: marks.display().to_string(),
                why: String::from(
                    "a condition or taint may still be on the node at the API server: see kubectl describe node",
                ),
            });
        }
        if self.options.state {
            return self.remove_state(&state_dir);
        }
        if files::find(&state_dir, &files::OF_STATE_DIR).is_ok_and(|found| !found.known.is_empty()) {
            self.all.left.push(Left {
                path: state_dir.display().to_string(),
                why: String::from(
                    "the journal and what else was stored: enforcer cleanup --state removes it",
                ),
            });
        }
    }

    /// Removes what is in a state directory that is a daemon's own, and that nobody else may change.
    fn remove_state(&mut self, state_dir: &Path) {
        let untrusted = fs::metadata(state_dir)
            .ok()
            .and_then(|metadata| trust::check(state_dir, metadata.uid(), metadata.mode()).err());
        let trouble = match untrusted {
            Some(trust::Untrusted { why, remedy }) => Some((why, remedy)),
            None if !files::is_ours(state_dir) => Some((
                String::from("its folder journal is not enforcer's"),
                String::from("name the state directory of the daemon as stateDir"),
            )),
            None => None,
        };
        let Some((error, remedy)) = trouble else {
            return self.remove_files(state_dir, &files::OF_STATE_DIR);
        };
        let remedy = format!("{remedy}, and run enforcer cleanup again");
        self.all.failed.push(Trouble { path: state_dir.display().to_string(), error, remedy });
    }

    fn remove_files(&mut self, folder: &Path, names: &[&str]) {
        let files::Removed { removed, failed } = files::remove(folder, names, self.options.dry_run);
        self.all.done.extend(removed.iter().map(|path| Item::removed("file", path)));
        self.all.failed.extend(failed);
    }
}

/// The cgroups that keep their drop-ins: what they say is still in force.
#[derive(Default)]
struct Kept {
    /// A value of theirs was not given back.
    values: BTreeSet<CgroupPath>,
    /// They could not be removed, and so all that is below them is there too.
    cgroups: Vec<CgroupPath>,
}

impl Kept {
    fn keep(&self, cgroup: &CgroupPath) -> bool {
        self.values.contains(cgroup)
            || self.cgroups.iter().any(|kept| cgroup == kept || cgroup.below(kept).is_some())
    }
}

fn not_given_back(done: &[Undone]) -> Kept {
    let mut kept = Kept::default();
    for undone in done {
        match undone {
            Undone::Skipped(undo) | Undone::Failed(undo, _) => match undo {
                Undo::Value { path, .. } | Undo::Temporary(Temporarily { path, .. }) => {
                    kept.values.insert(path.clone());
                }
                Undo::Remove { path, .. } => kept.cgroups.push(path.clone()),
                // The values are given back before.
                Undo::Score { .. } | Undo::Forget { .. } => {}
            },
            Undone::Done(_) => {}
        }
    }
    kept
}

/// What the intent page says of values that are there for a while, and of cgroups without their mark.
fn of_intents(intents: &[Intent<'static>]) -> (Vec<Temporarily>, BTreeMap<CgroupPath, Mark>) {
    let (mut temporary, mut unmarked) = (Vec::new(), BTreeMap::new());
    for intent in intents {
        match intent {
            Intent::Value { path, cgroup, value } => {
                let path = CgroupPath::parse(path).ok();
                temporary.extend(path.map(|path| Temporarily { path, id: *cgroup, value: value.clone() }));
            }
            Intent::Cgroup { path, mark } => {
                unmarked.extend(CgroupPath::parse(path).ok().zip(Mark::parse(mark)));
            }
            // A pod that was being evicted is as it is.
            Intent::Eviction { .. } => {}
        }
    }
    (temporary, unmarked)
}

/// Whether systemd has made the cgroups, or knows their values: by the configuration, which may have changed, or by what is
/// there.
fn is_systemds(config: &Config, survey: &Survey) -> bool {
    let is_made = |marked: &Marked| marked.mark.as_ref().is_some_and(|mark| mark.made);
    config.settings.cgroup_driver == CgroupDriver::Systemd
        || survey.marked.iter().any(|marked| is_made(marked) && UnitName::of(&marked.path).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::Held,
        model::{CgroupId, TemporaryValue},
        sample::value,
    };

    #[test]
    fn a_cgroup_keeps_its_drop_ins_unless_all_its_values_are_given_back() {
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        let limit = |at: &str| Undo::Value {
            path: path(at),
            id: CgroupId(7),
            old: Held::Value(value("memory.max", "4096")),
            new: value("memory.max", "max"),
        };
        let trouble = || Trouble::again("/", &std::io::Error::other("it is busy"));
        let done = [
            Undone::Done(limit("/back")),
            Undone::Skipped(limit("/changed")),
            Undone::Failed(limit("/failed"), trouble()),
            Undone::Failed(Undo::Remove { path: path("/stays"), id: CgroupId(8) }, trouble()),
            Undone::Failed(
                Undo::Forget { path: path("/marked"), id: CgroupId(9), stays_ours: false },
                trouble(),
            ),
        ];
        let kept = not_given_back(&done);
        let places = ["/back", "/changed", "/changed/below", "/failed", "/stays", "/stays/below", "/marked"];
        let keeping: Vec<_> = places.into_iter().filter(|place| kept.keep(&path(place))).collect();
        assert_eq!(keeping, ["/changed", "/failed", "/stays", "/stays/below"]);
    }

    #[test]
    fn values_and_unmarked_cgroups_are_taken_from_the_intents() {
        let value = TemporaryValue::new(value("memory.high", "max"), value("memory.high", "4096")).unwrap();
        let intents = [
            Intent::Value { path: "/a".into(), cgroup: CgroupId(7), value: value.clone() },
            Intent::Cgroup { path: "/b".into(), mark: r#"{"version":1,"made":true,"files":{}}"#.into() },
            Intent::Cgroup { path: "/c".into(), mark: r#"{"version":9,"made":true,"files":{}}"#.into() },
        ];
        let (temporary, unmarked) = of_intents(&intents);
        let path = CgroupPath::parse("/a").unwrap();
        assert_eq!(temporary, [Temporarily { path, id: CgroupId(7), value }]);
        let unmarked: Vec<_> = unmarked.iter().map(|(path, mark)| (path.as_str(), mark.made)).collect();
        assert_eq!(unmarked, [("/b", true)], "a mark of a newer version is not understood");
    }
}
