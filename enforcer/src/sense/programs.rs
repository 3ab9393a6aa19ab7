//! Loads the eBPF object and attaches its programs.
//!
//! A program that the kernel refuses is reported by its name; the others go on.
use std::fmt;

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{
        BtfTracePoint, FEntry, FExit, Program, ProgramError, RawTracePoint, TracePoint,
        links::{FdLink, LinkError},
    },
};
use enforcer_common::{guard::Own, plain::PlainFormat, stall::StallLimits};

use super::{
    Choice, EdgeRing, Guard, LifeRing, Lost, MarkProgram, PidNamespace, SenseError, StallRing, Stalls, guard,
};
use crate::{clock, raw};

mod again;
mod attach_types;
mod counters;
mod kept;
mod pinned;
mod pins;
mod plan;
mod takeover;

pub use self::{
    again::Again,
    attach_types::AttachTypes,
    counters::{Counters, ReclaimCounters},
    kept::Version,
    pins::{Pins, PinsError, Unpinned, look_at_pins, unpin},
    takeover::Inherited,
};
use self::{
    pinned::Pinned,
    plan::{Hook, Wanted, wanted},
};

/// The object that `build.rs` provides.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/enforcer.bpf.o"));

/// How much of the verifier's log is kept: the cause is at its end.
const VERIFIER_TAIL_LINES: usize = 20;

/// The attached programs, in parts that can be moved to their users.
pub struct Attached {
    /// OOM records, for the async side.
    pub events: RingBuf<MapData>,
    /// Edges, for the reflex thread to epoll.
    pub edges: EdgeRing,
    /// Wrong scores and foreign writes, for the async side.
    pub guard: Guard,
    /// Cgroups made and removed, if those are traced.
    pub life: Option<LifeRing>,
    /// The totals of stalls.
    pub stalls: Stalls,
    /// Long or frequent stalls, for the async side.
    pub stall_records: StallRing,
    /// The programs' counters.
    pub counters: Counters,
    /// Names of the programs that are attached.
    pub attached: Vec<&'static str>,
    /// Programs that could not be attached.
    pub failed: Vec<Failure>,
    /// What an earlier daemon left running.
    pub inherited: Inherited,
    /// What will not outlive the daemon, although it should.
    pub unpinned: Vec<Lost>,
    /// Keeps the programs attached; dropping it detaches those that do not outlive the daemon.
    pub programs: Programs,
}

/// The loaded object and its links: programs stay attached during its life.
#[derive(Debug)]
pub struct Programs {
    #[cfg_attr(not(feature = "bpf-log"), expect(dead_code, reason = "held for its Drop"))]
    ebpf: Ebpf,
    /// Holds the lock on the pins, and their links.
    pinned: Option<Pinned>,
}

/// A program that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub program: &'static str,
    /// Where it should have been attached.
    pub hook: String,
    /// The error of aya and the kernel, in one line.
    pub error: String,
    /// The last lines of the verifier's log, if the verifier refused it.
    pub verifier_tail: Option<String>,
    /// What an operator loses without it.
    pub consequence: &'static str,
}

impl Failure {
    /// As data of `degraded.entered`.
    #[must_use]
    pub fn lost(&self) -> Lost {
        Lost {
            what: self.program,
            why: format!("{}: {}", self.hook, self.error),
            consequence: self.consequence,
        }
    }
}

impl Programs {
    /// Loads the object, sets its constants, and attaches the programs of `choice`.
    ///
    /// Marks come last: before the first mark, everything that explains it is attached.
    pub fn load(choice: &Choice) -> Result<Attached, SenseError> {
        Self::load_in(choice, None)
    }

    /// As [`load`](Self::load), but pins the programs in `pins`. Those that report OOM kills, and their maps, outlive this
    /// process; the others are detached when the result is dropped, or by the next load if this process is killed.
    ///
    /// Takes on the pins of a daemon of this `version` unchanged; takes over those of another version
    /// without a gap: `take` gets each record of its ring before the record is removed.
    ///
    /// What cannot be pinned is attached all the same, and listed in [`Attached::unpinned`].
    pub fn load_pinned(
        choice: &Choice,
        pins: Pins,
        version: Version,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<Attached, SenseError> {
        let mut pinned = match Pinned::open(pins, version) {
            Ok(pinned) => pinned,
            Err(error) => {
                let mut attached = Self::load_in(choice, None)?;
                attached.unpinned.push(pinned::lost(&error));
                return Ok(attached);
            }
        };
        let mut attached = match Self::load_in(choice, Some(&mut pinned)) {
            Ok(attached) => attached,
            // The pins may be the cause.
            Err(error) => {
                let mut attached = Self::load_in(choice, None)?;
                attached.unpinned.push(pinned::lost(&error));
                return Ok(attached);
            }
        };
        pinned.release_ended();
        pinned.take_over(&mut attached, take);
        match pinned.drops_reported() {
            Ok(reported) => attached.counters.set_reported(reported),
            Err(error) => attached.unpinned.push(pinned::lost(&error)),
        }
        attached.programs.pinned = Some(pinned);
        Ok(attached)
    }

    fn load_in(choice: &Choice, mut pinned: Option<&mut Pinned>) -> Result<Attached, SenseError> {
        let btf = choice.attach_types.btf();
        let plain = choice.plain_format.unwrap_or(PlainFormat::NONE);
        let unified = u32::from(choice.unified_memory);
        let own = choice.pid_namespace.map_or(Own::NOBODY, PidNamespace::own);
        let pids_are_ours = choice.pid_namespace.is_none_or(PidNamespace::is_initial);
        let stall_limits = StallLimits { not_before_ns: clock::boottime_ns(), ..choice.stall_limits };
        let mut loader = EbpfLoader::new();
        for (name, path) in pinned.iter().flat_map(|pinned| pinned.map_paths()) {
            loader.map_pin_path(name, path);
        }
        // The object has no relocations by BTF: its offsets are constants that are set here.
        let mut ebpf = loader
            .btf(None)
            .override_global("OFFSETS", &choice.offsets, true)
            .override_global("PLAIN_FORMAT", &plain, true)
            .override_global("UNIFIED", &unified, true)
            .override_global("OWN", &own, true)
            .override_global("STALL_LIMITS", &stall_limits, true)
            .override_global("RECLAIMED_ARGUMENT", &plan::reclaimed_argument(choice), true)
            .load(OBJECT)?;

        let mut attached = Vec::new();
        let mut failed = Vec::new();
        for wanted in wanted(choice) {
            match attach(&mut ebpf, &wanted, btf.as_ref(), pinned.as_deref_mut()) {
                Ok(()) => {
                    tracing::debug!(program = wanted.program, hook = %wanted.hook, "attached");
                    attached.push(wanted.program);
                    if let Some(index) = plan::watcher_of(wanted.program) {
                        announce_watch(&mut ebpf, index)?;
                    }
                }
                Err(error) => failed.push(failure(&wanted, &error)),
            }
        }
        // The classic event has fewer fields, but needs no BTF.
        if let Some(fallback) = plan::fallback(choice, &attached) {
            match attach(&mut ebpf, &fallback, None, pinned.as_deref_mut()) {
                Ok(()) => attached.push(fallback.program),
                Err(error) => failed.push(failure(&fallback, &error)),
            }
        }
        drop(btf);
        raw::trim_heap();
        let inherited = pinned.map(Pinned::inherited).unwrap_or_default();
        let maps = guard::Maps {
            ring: ring(&mut ebpf, "GUARD")?,
            wanted: take(&mut ebpf, "WANTED", HashMap::try_from)?,
            guarded: take(&mut ebpf, "GUARDED", HashMap::try_from)?,
            counts: take(&mut ebpf, "GUARD_COUNTS", PerCpuArray::try_from)?,
        };
        let life =
            LifeRing::new(ring(&mut ebpf, "LIFE")?, take(&mut ebpf, "LIFE_COUNTS", PerCpuArray::try_from)?);
        Ok(Attached {
            life: plan::reports_life(&attached).then_some(life),
            guard: Guard::new(maps, plan::sight(&attached), pids_are_ours),
            events: ring(&mut ebpf, "EVENTS")?,
            stalls: Stalls::new(take(&mut ebpf, "STALLS", HashMap::try_from)?),
            stall_records: StallRing::new(ring(&mut ebpf, "STALL_RECORDS")?),
            edges: EdgeRing::new(ring(&mut ebpf, "EDGES")?),
            counters: Counters::new(
                take(&mut ebpf, "RECLAIM", PerCpuArray::try_from)?,
                take(&mut ebpf, "DROPS", PerCpuArray::try_from)?,
                take(&mut ebpf, "SEEN", PerCpuArray::try_from)?,
            ),
            attached,
            failed,
            inherited,
            unpinned: Vec::new(),
            programs: Self { ebpf, pinned: None },
        })
    }

    /// The programs' own diagnostics, if the object was built with them: a source for `AsyncFd`. An object without
    /// diagnostics has no such map.
    #[cfg(feature = "bpf-log")]
    pub fn diagnostics(&mut self) -> Result<aya_log::EbpfLogger<&'static dyn log::Log>, aya_log::Error> {
        aya_log::EbpfLogger::init(&mut self.ebpf)
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            events: _,
            edges: _,
            guard: _,
            life: _,
            stalls: _,
            stall_records: _,
            counters: _,
            attached,
            failed,
            inherited,
            unpinned,
            programs: _,
        } = self;
        f.debug_struct("Attached")
            .field("attached", attached)
            .field("failed", failed)
            .field("inherited", inherited)
            .field("unpinned", unpinned)
            .finish_non_exhaustive()
    }
}

impl Attached {
    /// The program that reports marked victims; `None`: OOM kills are visible in counters only.
    #[must_use]
    pub fn mark(&self) -> Option<MarkProgram> {
        self.attached.iter().find_map(|name| plan::mark_of(name))
    }
}

fn ring(ebpf: &mut Ebpf, name: &'static str) -> Result<RingBuf<MapData>, SenseError> {
    take(ebpf, name, RingBuf::try_from)
}

fn take<T>(
    ebpf: &mut Ebpf,
    name: &'static str,
    convert: impl FnOnce(Map) -> Result<T, aya::maps::MapError>,
) -> Result<T, SenseError> {
    let map = ebpf.take_map(name).ok_or(SenseError::Map { name, source: None })?;
    convert(map).map_err(|source| SenseError::Map { name, source: Some(source) })
}

/// From now on the absence of this program's event is conclusive, such as a mark without a kill.
fn announce_watch(ebpf: &mut Ebpf, index: u32) -> Result<(), SenseError> {
    const NAME: &str = "KILL_WATCH";
    let wrong = |source| SenseError::Map { name: NAME, source };
    let map = ebpf.map_mut(NAME).ok_or_else(|| wrong(None))?;
    let mut flag = Array::<_, u32>::try_from(map).map_err(|source| wrong(Some(source)))?;
    flag.set(index, 1, 0).map_err(|source| wrong(Some(source)))
}

/// What can go wrong with one program.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    #[error("it is attached, but aya cannot hand over its link: {0}")]
    Link(#[from] LinkError),
    #[error("the eBPF object has no such program; build object and daemon together")]
    Missing,
    #[error("the kernel provides no BTF")]
    NoBtf,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

fn attach(
    ebpf: &mut Ebpf,
    wanted: &Wanted,
    btf: Option<&Btf>,
    pinned: Option<&mut Pinned>,
) -> Result<(), AttachError> {
    let Some(pinned) = pinned else {
        return link(ebpf, wanted, btf, Holder::Aya).map(drop);
    };
    let is_kept = kept::is_kept(wanted.program);
    if is_kept && pinned.has(wanted.program) {
        return Ok(());
    }
    match link(ebpf, wanted, btf, Holder::Us) {
        Ok(Some(link)) => {
            if pinned.keep(wanted.program, link) {
                return Ok(());
            }
        }
        // Attached by an interface without links, so there is nothing to pin.
        Err(AttachError::Link(error)) if is_kept => pinned.cannot_keep(&error),
        Ok(None) | Err(AttachError::Link(_)) => {}
        Err(error) => return Err(error),
    }
    link(ebpf, wanted, btf, Holder::Aya).map(drop)
}

/// The owner of a program's link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// The loaded object, until it is dropped.
    Aya,
    /// The caller.
    Us,
}

fn link(
    ebpf: &mut Ebpf,
    wanted: &Wanted,
    btf: Option<&Btf>,
    holder: Holder,
) -> Result<Option<FdLink>, AttachError> {
    let ours = holder == Holder::Us;
    let program = ebpf.program_mut(wanted.program).ok_or(AttachError::Missing)?;
    Ok(match wanted.hook {
        Hook::BtfTracepoint(name) => {
            let program: &mut BtfTracePoint = as_type(program)?;
            once(program.load(name, btf.ok_or(AttachError::NoBtf)?))?;
            let id = program.attach()?;
            if ours { Some(program.take_link(id)?.into()) } else { None }
        }
        Hook::Fentry(function) => {
            let program: &mut FEntry = as_type(program)?;
            once(program.load(function, btf.ok_or(AttachError::NoBtf)?))?;
            let id = program.attach()?;
            if ours { Some(program.take_link(id)?.into()) } else { None }
        }
        Hook::Fexit(function) => {
            let program: &mut FExit = as_type(program)?;
            once(program.load(function, btf.ok_or(AttachError::NoBtf)?))?;
            let id = program.attach()?;
            if ours { Some(program.take_link(id)?.into()) } else { None }
        }
        Hook::RawTracepoint(name) => {
            let program: &mut RawTracePoint = as_type(program)?;
            once(program.load())?;
            let id = program.attach(name)?;
            if ours { Some(program.take_link(id)?.into()) } else { None }
        }
        Hook::Tracepoint(category, name) => {
            let program: &mut TracePoint = as_type(program)?;
            once(program.load())?;
            let id = program.attach(category, name)?;
            if ours { Some(program.take_link(id)?.try_into()?) } else { None }
        }
    })
}

/// A program that could not be pinned is attached again; it is loaded already then.
fn once(loaded: Result<(), ProgramError>) -> Result<(), ProgramError> {
    match loaded {
        Err(ProgramError::AlreadyLoaded) => Ok(()),
        other => other,
    }
}

fn as_type<'a, T>(program: &'a mut Program) -> Result<&'a mut T, ProgramError>
where
    &'a mut T: TryFrom<&'a mut Program, Error = ProgramError>,
{
    program.try_into()
}

fn failure(wanted: &Wanted, error: &AttachError) -> Failure {
    let (error, verifier_tail) = match error {
        AttachError::Program(ProgramError::LoadError { io_error, verifier_log }) => {
            (format!("the kernel refused the program: {io_error}"), Some(tail(&verifier_log.to_string())))
        }
        other => (format!("{other}"), None),
    };
    Failure {
        program: wanted.program,
        hook: wanted.hook.to_string(),
        error,
        verifier_tail,
        consequence: wanted.consequence,
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(VERIFIER_TAIL_LINES)..).unwrap_or_default().join("\n")
}
