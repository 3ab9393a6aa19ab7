//! Loads the eBPF object and attaches its programs.
//!
//! A program that the kernel refuses is reported by its name, and the others go on.
use std::fmt;

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{BtfTracePoint, FEntry, FExit, Program, ProgramError, RawTracePoint, TracePoint},
};
use enforcer_common::{guard::Own, plain::PlainFormat};

use super::{Choice, EdgeRing, Guard, LifeRing, Lost, MarkProgram, PidNamespace, SenseError, guard};
use crate::raw;

mod counters;
mod plan;

pub use self::counters::{Counters, ReclaimCounters};
use self::plan::{Hook, Wanted, wanted};

/// The object that `cargo xtask build` made; empty in a build without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/enforcer.bpf.o"));

/// How much of the verifier's log is kept: its end says what was wrong.
const VERIFIER_TAIL_LINES: usize = 20;

/// The programs at work. Each part can be given to whoever drives it.
pub struct Attached {
    /// OOM records, for the async side.
    pub events: RingBuf<MapData>,
    /// Edges, for the reflex thread to epoll.
    pub edges: EdgeRing,
    /// Wrong scores and foreign writes, for the async side.
    pub guard: Guard,
    /// Cgroups made and removed, if that is told.
    pub life: Option<LifeRing>,
    /// What the programs count.
    pub counters: Counters,
    /// Names of the programs that are attached.
    pub attached: Vec<&'static str>,
    /// Those that could not be.
    pub failed: Vec<Failure>,
    /// Keeps them attached; dropping it detaches them all.
    pub programs: Programs,
}

/// The loaded object and its links: programs stay attached as long as it lives.
#[derive(Debug)]
pub struct Programs {
    #[cfg_attr(not(feature = "bpf-log"), expect(dead_code, reason = "held for its Drop"))]
    ebpf: Ebpf,
}

/// A program that the kernel did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub program: &'static str,
    /// Where it should have been attached.
    pub hook: String,
    /// What aya and the kernel said, in one line.
    pub error: String,
    /// The last lines of the verifier's log, if it was the verifier that refused.
    pub verifier_tail: Option<String>,
    /// What an operator loses by it.
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
    /// Loads the object, sets what the programs must know, and attaches those that `choice` wants.
    ///
    /// Marks come last: when the first is told, everything that explains it is in place.
    pub fn load(choice: &Choice) -> Result<Attached, SenseError> {
        if OBJECT.is_empty() {
            return Err(SenseError::NotBuilt);
        }
        let btf = Btf::from_sys_fs().ok();
        let plain = choice.plain_format.unwrap_or(PlainFormat::NONE);
        let unified = u32::from(choice.unified_memory);
        let own = choice.pid_namespace.map_or(Own::NOBODY, PidNamespace::own);
        let pids_are_ours = choice.pid_namespace.is_none_or(PidNamespace::is_initial);
        let mut ebpf = EbpfLoader::new()
            .btf(btf.as_ref())
            .override_global("OFFSETS", &choice.offsets, true)
            .override_global("PLAIN_FORMAT", &plain, true)
            .override_global("UNIFIED", &unified, true)
            .override_global("OWN", &own, true)
            .load(OBJECT)?;

        let mut attached = Vec::new();
        let mut failed = Vec::new();
        for wanted in wanted(choice) {
            match attach(&mut ebpf, &wanted, btf.as_ref()) {
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
        // Better the classic event than none: its fields are fewer, but it needs nothing of BTF.
        if let Some(fallback) = plan::fallback(choice, &attached) {
            match attach(&mut ebpf, &fallback, None) {
                Ok(()) => attached.push(fallback.program),
                Err(error) => failed.push(failure(&fallback, &error)),
            }
        }
        drop(btf);
        raw::trim_heap();
        let maps = guard::Maps {
            ring: ring(&mut ebpf, "GUARD")?,
            wanted: take(&mut ebpf, "WANTED", HashMap::try_from)?,
            guarded: take(&mut ebpf, "GUARDED", HashMap::try_from)?,
            counts: take(&mut ebpf, "GUARD_COUNTS", PerCpuArray::try_from)?,
        };
        let life =
            LifeRing::new(ring(&mut ebpf, "LIFE")?, take(&mut ebpf, "LIFE_COUNTS", PerCpuArray::try_from)?);
        Ok(Attached {
            life: plan::tells_life(&attached).then_some(life),
            guard: Guard::new(maps, plan::sight(&attached), pids_are_ours),
            events: ring(&mut ebpf, "EVENTS")?,
            edges: EdgeRing::new(ring(&mut ebpf, "EDGES")?),
            counters: Counters::new(
                take(&mut ebpf, "RECLAIM", PerCpuArray::try_from)?,
                take(&mut ebpf, "DROPS", PerCpuArray::try_from)?,
                take(&mut ebpf, "SEEN", PerCpuArray::try_from)?,
            ),
            attached,
            failed,
            programs: Self { ebpf },
        })
    }

    /// The programs' own diagnostics, if the object was built with them: a source to be driven by
    /// `AsyncFd`. An object without diagnostics has no such map.
    #[cfg(feature = "bpf-log")]
    pub fn diagnostics(&mut self) -> Result<aya_log::EbpfLogger<&'static dyn log::Log>, aya_log::Error> {
        aya_log::EbpfLogger::init(&mut self.ebpf)
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events: _, edges: _, guard: _, life: _, counters: _, attached, failed, programs: _ } =
            self;
        f.debug_struct("Attached").field("attached", attached).field("failed", failed).finish_non_exhaustive()
    }
}

impl Attached {
    /// Which program tells of marked victims; none: OOM kills are seen only by their counters.
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

/// From now on it means something if this is not seen, as a mark without a kill.
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
    #[error("the eBPF object has no such program; build object and daemon together")]
    Missing,
    #[error("the kernel does not tell its types")]
    NoBtf,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

fn attach(ebpf: &mut Ebpf, wanted: &Wanted, btf: Option<&Btf>) -> Result<(), AttachError> {
    let program = ebpf.program_mut(wanted.program).ok_or(AttachError::Missing)?;
    match wanted.hook {
        Hook::BtfTracepoint(name) => {
            let program: &mut BtfTracePoint = as_type(program)?;
            program.load(name, btf.ok_or(AttachError::NoBtf)?)?;
            program.attach()?;
        }
        Hook::Fentry(function) => {
            let program: &mut FEntry = as_type(program)?;
            program.load(function, btf.ok_or(AttachError::NoBtf)?)?;
            program.attach()?;
        }
        Hook::Fexit(function) => {
            let program: &mut FExit = as_type(program)?;
            program.load(function, btf.ok_or(AttachError::NoBtf)?)?;
            program.attach()?;
        }
        Hook::RawTracepoint(name) => {
            let program: &mut RawTracePoint = as_type(program)?;
            program.load()?;
            program.attach(name)?;
        }
        Hook::Tracepoint(category, name) => {
            let program: &mut TracePoint = as_type(program)?;
            program.load()?;
            program.attach(category, name)?;
        }
    }
    Ok(())
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
