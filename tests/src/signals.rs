//! The signals that the kernel saw sent.

use std::fs;

use anyhow::Context as _;

const TRACING: &str = "/sys/kernel/tracing";

/// Records SIGTERM and SIGKILL by the tracepoint `signal:signal_generate`, until it is dropped.
#[derive(Debug)]
pub struct Signals(());

/// One signal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Signal {
    /// When, in microseconds of `CLOCK_MONOTONIC`.
    pub time_us: u64,
    /// To which process.
    pub pid: u32,
}

impl Signals {
    /// Begins with an empty record.
    pub fn record() -> anyhow::Result<Self> {
        write("trace_clock", "mono")?;
        write("trace", "")?;
        write("events/signal/signal_generate/filter", "sig == 9 || sig == 15")?;
        write("events/signal/signal_generate/enable", "1")?;
        write("tracing_on", "1")?;
        Ok(Self(()))
    }

    /// The first signal to one of these processes.
    pub fn first_to(&self, pids: &[u32]) -> anyhow::Result<Option<Signal>> {
        let trace = fs::read_to_string(format!("{TRACING}/trace")).context("cannot read the trace")?;
        Ok(trace.lines().filter_map(parse).find(|signal| pids.contains(&signal.pid)))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What stays on only costs; the next recorder sets everything anew.
        drop(write("events/signal/signal_generate/enable", "0"));
    }
}

fn write(file: &str, value: &str) -> anyhow::Result<()> {
    let path = format!("{TRACING}/{file}");
    fs::write(&path, value).with_context(|| format!("cannot write {value:?} to {path}"))
}

/// Reads `  sh-12  [000] d..1.  12.345678: signal_generate: sig=9 errno=0 code=0 comm=workload pid=13 grp=1 res=0`.
fn parse(line: &str) -> Option<Signal> {
    let (head, tail) = line.split_once(": signal_generate: ")?;
    let (seconds, micros) = head.rsplit_once(' ')?.1.split_once('.')?;
    // The name may hold anything; what comes behind it is the kernel's own.
    let pid = tail.rsplit(' ').find_map(|field| field.strip_prefix("pid="))?;
    Some(Signal {
        time_us: seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)?,
        pid: pid.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Signal, parse};

    #[test]
    fn a_trace_line_is_read_from_its_end() {
        let line = " enforcer-77      [001] d..2.    12.345678: signal_generate: sig=9 errno=0 code=0 comm=a pid=1 grp=1 pid=13 grp=1 res=0";
        assert_eq!(parse(line), Some(Signal { time_us: 12_345_678, pid: 13 }));
        assert_eq!(parse("# tracer: nop"), None);
    }
}
