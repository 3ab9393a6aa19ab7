//! The programs and maps of one version, pinned.
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use aya::{
    maps::{Array, HashMap, Map, MapData, MapError, MapInfo},
    programs::{
        links::{FdLink, LinkError, LinkType, PinnedLink},
        loaded_programs,
    },
};
use enforcer_common::{counter::drops, reclaim::TaskReclaim};

use super::{
    Attached, Inherited, Lost, Pins, PinsError, Version, kept,
    pins::VersionDir,
    takeover::{self, DROPS_TOLD},
};

/// How much of a program's or map's name the kernel stores (`BPF_OBJ_NAME_LEN`, less the terminating zero).
const KERNEL_NAME: usize = 15;

const NOT_KEPT: &str =
    "OOM kills that happen while the daemon is not running are not reported, or from counters alone";
const NOT_READ: &str = "OOM kills that an earlier daemon's programs saw are not reported";
const LEFT_ATTACHED: &str = "a program of an earlier daemon stays attached, and nothing reads it";
const LEFT_ALONE: &str = "it is not touched, and prevents removing the folder";

/// The pins of this version.
#[derive(Debug)]
pub(super) struct Pinned {
    pins: Pins,
    version: Version,
    dir: VersionDir,
    /// Held, so that their programs stay attached even if the files are removed.
    links: Vec<FdLink>,
    /// Pins of programs that end with us.
    ours: Vec<PathBuf>,
    /// Programs of the daemon before, which was killed, that are still attached beside ours.
    ended: Vec<FdLink>,
    inherited: Vec<&'static str>,
    lost: Vec<Lost>,
}

/// As data of `degraded.entered`.
pub(super) fn lost(error: &(dyn std::error::Error + 'static)) -> Lost {
    Lost { what: "pins", why: crate::chain(error), consequence: NOT_KEPT }
}

impl Pinned {
    /// Opens the folder of that version, and checks the maps that are pinned there.
    pub(super) fn open(pins: Pins, version: Version) -> Result<Self, PinsError> {
        let dir = pins.version(version)?;
        for name in kept::maps() {
            let path = dir.map(name);
            if path.exists() && !MapInfo::from_pin(&path).is_ok_and(|info| is_named(info.name(), name)) {
                return Err(PinsError::Foreign { path, why: "is not the map it names" });
            }
        }
        let mut pinned = Self {
            pins,
            version,
            dir,
            links: Vec::new(),
            ours: Vec::new(),
            ended: Vec::new(),
            inherited: Vec::new(),
            lost: Vec::new(),
        };
        pinned.detach_ended()?;
        pinned.forget_reclaim();
        Ok(pinned)
    }

    /// The pin paths of the kept maps, whether pinned already or not.
    pub(super) fn map_paths(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        kept::maps().map(|name| (name, self.dir.map(name)))
    }

    /// Whether that program is attached already; then it is taken on.
    pub(super) fn has(&mut self, program: &'static str) -> bool {
        let path = self.dir.link(program);
        if !path.exists() {
            return false;
        }
        let link = match PinnedLink::from_pin(&path) {
            Ok(link) => FdLink::from(link),
            Err(error) => {
                self.lost.push(lost(&error));
                return false;
            }
        };
        if !is_of(&link, program) {
            let why = format!("{} is not the link it names", path.display());
            self.lost.push(Lost { what: "pins", why, consequence: NOT_KEPT });
            return false;
        }
        self.links.push(link);
        self.inherited.push(program);
        true
    }

    /// Pins a program's link; returns whether that worked. If not, the program is detached.
    ///
    /// A program that ends with us is pinned as well: if we are killed, its pin is the last that holds it, and not our
    /// process. Detaching takes the kernel up to most of a second, for which the process would be in the next daemon's way.
    pub(super) fn keep(&mut self, program: &str, link: FdLink) -> bool {
        let path = self.dir.link(program);
        let is_kept = kept::is_kept(program);
        match link.pin(&path) {
            Ok(link) => {
                self.links.push(link.into());
                if !is_kept {
                    self.ours.push(path);
                }
                true
            }
            Err(error) if is_kept => {
                self.lost.push(lost(&error));
                false
            }
            Err(error) => {
                tracing::warn!(%error, program, "cannot pin an eBPF program: the next daemon starts later if this one is killed");
                false
            }
        }
    }

    /// Removes the pins of programs that were to end with the daemon before, which was killed. Those on functions stay attached
    /// until [`release_ended`](Self::release_ended): to detach the last program of a function takes the kernel most of a second
    /// (`bpf_trampoline_unlink_prog`), in which ours cannot be attached. Until then they write to maps that no process reads,
    /// except `RECLAIMING`: a stall that ends meanwhile may not be counted.
    fn detach_ended(&mut self) -> Result<(), PinsError> {
        for (path, program) in self.dir.links()? {
            if kept::is_kept(&program) {
                continue;
            }
            self.ended.extend(of_function(&path));
            if let Err(error) = fs::remove_file(&path) {
                let why = format!("cannot remove {}: {error}", path.display());
                self.lost.push(Lost { what: "pins", why, consequence: LEFT_ATTACHED });
            }
        }
        Ok(())
    }

    /// Detaches the programs of the daemon before that are left, now that ours are attached, without waiting for it.
    pub(super) fn release_ended(&mut self) {
        let ended = std::mem::take(&mut self.ended);
        if !ended.is_empty() {
            // If there is no thread to be had, they are dropped here.
            drop(thread::Builder::new().name(String::from("detach")).spawn(move || drop(ended)));
        }
    }

    /// Notes a program that can be attached, but not pinned.
    pub(super) fn cannot_keep(&mut self, error: &LinkError) {
        self.lost.push(lost(error));
    }

    /// The programs that were taken on.
    pub(super) fn inherited(&mut self) -> Inherited {
        Inherited { programs: std::mem::take(&mut self.inherited), ..Inherited::default() }
    }

    /// Takes over what other versions left, and adds what failed to `attached.unpinned`.
    pub(super) fn take_over(&mut self, attached: &mut Attached, take: &mut dyn FnMut(&[u8])) {
        let lost = &mut attached.unpinned;
        lost.append(&mut self.lost);
        let foreign = |path: PathBuf| Lost {
            what: "pins",
            why: format!("{} is not one of our pins", path.display()),
            consequence: LEFT_ALONE,
        };
        let (others, mut unknown) = match self.pins.others(self.version) {
            Ok(found) => found,
            Err(error) => {
                lost.push(Lost { consequence: NOT_READ, ..self::lost(&error) });
                return;
            }
        };
        unknown.extend(self.dir.foreign().unwrap_or_default());
        if !others.is_empty() {
            match self.map("MARKED", HashMap::<_, u32, takeover::Victim>::try_from) {
                Ok(mut marked) => {
                    for old in others {
                        match takeover::take_over(&old, &mut marked, take, &mut attached.inherited) {
                            Ok(left) => unknown.extend(left),
                            Err(error) => lost.push(Lost { consequence: NOT_READ, ..self::lost(&error) }),
                        }
                    }
                }
                Err(error) => lost.push(Lost { consequence: NOT_READ, ..self::lost(&error) }),
            }
        }
        lost.extend(unknown.into_iter().map(foreign));
    }

    /// The map with the reported losses of each stage; created if it is missing.
    pub(super) fn drops_reported(&self) -> Result<Array<MapData, u64>, MapError> {
        let path = self.dir.map(DROPS_TOLD);
        if path.exists() {
            return self.map(DROPS_TOLD, Array::try_from);
        }
        let reported = Array::<_, u64>::create(drops::COUNT, 0)?;
        reported
            .pin(&path)
            .map_err(|error| MapError::PinError { name: Some(DROPS_TOLD.to_owned()), error })?;
        self.map(DROPS_TOLD, Array::try_from)
    }

    /// Reclaim was not watched meanwhile: it may have ended, and its thread id may belong to another thread.
    fn forget_reclaim(&self) {
        type State = [u8; size_of::<TaskReclaim>()];
        let Ok(mut tasks) = self.map("RECLAIMING", HashMap::<_, u32, State>::try_from) else { return };
        let known: Vec<u32> = tasks.keys().flatten().collect();
        for tid in known {
            // A missing entry is fine.
            let _gone = tasks.remove(&tid);
        }
    }

    fn map<T>(&self, name: &str, convert: impl FnOnce(Map) -> Result<T, MapError>) -> Result<T, MapError> {
        MapData::from_pin(self.dir.map(name)).and_then(Map::from_map_data).and_then(convert)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for path in &self.ours {
            if let Err(error) = fs::remove_file(path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a pin; the next daemon does");
            }
        }
    }
}

/// A pinned link to the entry or the return of a function.
fn of_function(path: &Path) -> Option<FdLink> {
    let link = FdLink::from(PinnedLink::from_pin(path).ok()?);
    let is_of_function =
        link.info().and_then(|info| info.link_type()).is_ok_and(|of| of == LinkType::Tracing);
    is_of_function.then_some(link)
}

/// Whether the kernel's link belongs to a program of that name. If we may not query that, the folder's owner is
/// trusted.
fn is_of(link: &FdLink, program: &str) -> bool {
    let Ok(info) = link.info() else { return false };
    let Ok(programs) = loaded_programs().collect::<Result<Vec<_>, _>>() else { return true };
    programs.iter().any(|loaded| loaded.id() == info.program_id() && is_named(loaded.name(), program))
}

/// Whether the kernel's name for an object is this one, as far as the kernel stores names.
fn is_named(known: &[u8], name: &str) -> bool {
    known == name.as_bytes().get(..KERNEL_NAME).unwrap_or(name.as_bytes())
}
