//! One line per step, with its duration.
use std::{
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// Where the lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    /// To standard output: the command's own result.
    Out,
    /// To standard error, and only on a terminal: the streams belong to a guest's script.
    Aside,
}

/// Whether a step had work to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It was done now.
    Done,
    /// It had been done before.
    Cached,
}

impl Steps {
    /// Runs one step; `name` is what it ensures.
    pub(crate) fn run<T>(
        self,
        name: impl Display,
        step: impl FnOnce() -> anyhow::Result<(T, Work)>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        let result = step();
        let took = begin.elapsed();
        match &result {
            Ok((_, Work::Done)) => self.line(true, &name, took),
            Ok((_, Work::Cached)) => self.line(true, format_args!("{name} (cached)"), took),
            Err(_) => self.line(false, &name, took),
        }
        result.map(|(value, _)| value)
    }

    /// Runs one step that always has work to do.
    pub(crate) fn work<T>(
        self,
        name: impl Display,
        step: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.run(name, || step().map(|value| (value, Work::Done)))
    }

    /// Prints a line that is not a step.
    pub(crate) fn say(self, text: impl Display) {
        self.write(&format!("{text}\n"));
    }

    /// Prints the outcome of a step that is neither plain success nor failure.
    pub(crate) fn line(self, passed: bool, name: impl Display, took: Duration) {
        let outcome = if passed { "ok" } else { "FAIL" };
        self.write(&format!("{outcome:<4} {:<56} {:>6.1} s\n", name.to_string(), took.as_secs_f64()));
    }

    fn write(self, text: &str) {
        // A closed terminal is no reason to stop working.
        let _written = match self {
            Self::Out => io::stdout().lock().write_all(text.as_bytes()),
            Self::Aside if io::stderr().is_terminal() => io::stderr().lock().write_all(text.as_bytes()),
            Self::Aside => Ok(()),
        };
    }
}
