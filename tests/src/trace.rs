//! What the kernel's tracepoints and probes saw, in a trace instance of its own.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::PathBuf,
};

use anyhow::Context as _;

const TRACING: &str = "/sys/kernel/tracing";
const INSTANCE: &str = "enforcer-tests";

/// What is recorded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Watched<'a> {
    /// A tracepoint, as `sched/sched_switch`, with the kernel's filter expression; an empty one passes everything.
    Event(&'a str, &'a str),
    /// The entry of a kernel function.
    Function(&'a str),
}

/// One record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Seen {
    /// The task's name, without its process id.
    pub comm: String,
    /// The thread.
    pub tid: u32,
    /// When, in microseconds of `CLOCK_MONOTONIC`.
    pub time_us: u64,
    /// The tracepoint's or the function's name.
    pub what: String,
    /// Whether interrupts were off.
    pub interrupts_off: bool,
    /// The tracepoint's other fields.
    pub fields: String,
}

/// Records until it is dropped. Each name is used by one at a time.
#[derive(Debug)]
pub struct Trace {
    instance: String,
    enabled: Vec<PathBuf>,
    probes: Vec<String>,
}

impl Trace {
    /// Begins with an empty record.
    pub fn record(watched: &[Watched<'_>]) -> anyhow::Result<Self> {
        Self::record_as(INSTANCE, watched)
    }

    /// The same beside other traces. At one tracepoint the kernel calls probes in the order in which they were
    /// attached.
    pub fn record_as(name: &str, watched: &[Watched<'_>]) -> anyhow::Result<Self> {
        let instance = format!("{TRACING}/instances/{name}");
        if fs::metadata(&instance).is_err() {
            fs::create_dir(&instance).with_context(|| format!("cannot make {instance}"))?;
        }
        let mut trace = Self { instance, enabled: Vec::new(), probes: Vec::new() };
        trace.write("trace_clock", "mono")?;
        for watched in watched {
            let event = match watched {
                Watched::Event(event, filter) => {
                    if !filter.is_empty() {
                        trace.write(&format!("events/{event}/filter"), filter)?;
                    }
                    (*event).to_owned()
                }
                Watched::Function(function) => {
                    let probe = format!("enforcer_trace/{function}");
                    define(&format!("p:{probe} {function}"))?;
                    trace.probes.push(probe.clone());
                    probe
                }
            };
            trace.write(&format!("events/{event}/enable"), "1")?;
            trace.enabled.push(format!("events/{event}").into());
        }
        trace.write("tracing_on", "1")?;
        trace.clear()?;
        Ok(trace)
    }

    /// Clears the record.
    pub fn clear(&self) -> anyhow::Result<()> {
        self.write("trace", "")
    }

    /// The records since, in order of time.
    pub fn seen(&self) -> anyhow::Result<Vec<Seen>> {
        let path = format!("{}/trace", self.instance);
        // Stopped meanwhile: it is read line by line, and a recorder of its own system calls would never reach the end.
        self.write("tracing_on", "0")?;
        // A task's name may not be UTF-8.
        let bytes = fs::read(&path).with_context(|| format!("cannot read {path}"))?;
        self.write("tracing_on", "1")?;
        Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect())
    }

    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("{}/{file}", self.instance);
        fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {path}"))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A failure only leaves the probe enabled, which costs time.
        for event in &self.enabled {
            drop(self.write(&format!("{}/enable", event.display()), "0"));
            drop(self.write(&format!("{}/filter", event.display()), "0"));
        }
        for probe in &self.probes {
            drop(define(&format!("-:{probe}")));
        }
    }
}

/// Adds to the list of probes: a write that is not appended would replace it.
fn define(probe: &str) -> anyhow::Result<()> {
    let path = format!("{TRACING}/kprobe_events");
    let add = || OpenOptions::new().append(true).open(&path)?.write_all(probe.as_bytes());
    add().with_context(|| format!("cannot write {probe:?} to {path}"))
}

/// Reads `  my task-12      [000] d..1.  12.345678: sched_switch: prev_comm=a …`.
fn parse(line: &str) -> Option<Seen> {
    // The name may hold anything but a line's end; the text after the processor is the kernel's own.
    let (task, rest) = line.split_once(" [")?;
    let (comm, tid) = task.trim().rsplit_once('-')?;
    let (head, tail) = rest.split_once(": ")?;
    let (before, time) = head.trim_end().rsplit_once(' ')?;
    let (seconds, micros) = time.split_once('.')?;
    let flags = before.trim_end().rsplit_once(' ')?.1;
    let (what, fields) = tail.split_once(':')?;
    Some(Seen {
        comm: comm.to_owned(),
        tid: tid.trim().parse().ok()?,
        time_us: seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)?,
        what: what.to_owned(),
        interrupts_off: flags.starts_with(['d', 'D']),
        fields: fields.trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn tracepoints_and_probes_are_read() {
        let line = "        workload-77      [001] d..2.    12.345678: over_high: (mem_cgroup_handle_over_high+0x0/0x9)";
        let seen = parse(line).unwrap();
        assert_eq!((seen.comm.as_str(), seen.tid, seen.time_us), ("workload", 77, 12_345_678));
        assert_eq!((seen.what.as_str(), seen.interrupts_off), ("over_high", true));
        assert!(!parse(&line.replace("d..2.", ".N...")).unwrap().interrupts_off);
        let line = " a-b: [c-5 [000] d..3. 1.000002: sched_switch: prev_comm=x ==> next_comm=y: z next_pid=5";
        assert_eq!(parse(line), None, "a name that looks like the kernel's own part is left out");
        let line = " a-b-5 [000] d..3. 1.000002: sched_switch: prev_comm=x ==> next_comm=y: z next_pid=5";
        let seen = parse(line).unwrap();
        assert_eq!((seen.comm.as_str(), seen.tid), ("a-b", 5));
        assert_eq!(seen.fields, "prev_comm=x ==> next_comm=y: z next_pid=5");
        assert_eq!(parse("# tracer: nop"), None);
    }
}
