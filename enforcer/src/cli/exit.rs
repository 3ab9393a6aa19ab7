use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use super::render::escape;

/// Usage or configuration.
pub(super) const USAGE: u8 = 64;
/// The daemon cannot be reached.
const UNREACHABLE: u8 = 69;
/// The daemon or its rules say no.
const REFUSED: u8 = 77;
/// The command of `exec` is there and cannot be run, as shells have it.
const NOT_EXECUTABLE: u8 = 126;
/// The command of `exec` is not there, as shells have it.
const NOT_FOUND: u8 = 127;

/// Why a verb ends without success, and with which exit status.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    error: anyhow::Error,
}

impl Failure {
    /// What was asked for, or the configuration, is wrong.
    pub(super) fn usage(error: anyhow::Error) -> Self {
        Self { status: USAGE, error }
    }

    /// The daemon cannot be reached.
    pub(super) fn unreachable(error: anyhow::Error) -> Self {
        Self { status: UNREACHABLE, error }
    }

    /// Whether it is that the daemon cannot be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        self.status == UNREACHABLE
    }

    /// The daemon or its rules say no.
    pub(super) fn refused(error: anyhow::Error) -> Self {
        Self { status: REFUSED, error }
    }

    /// A command could not be run in place.
    pub(super) fn command(error: io::Error, command: &str) -> Self {
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Self { status, error: anyhow::Error::new(error).context(format!("cannot run {command:?}")) }
    }

    /// Says what went wrong, on one line unless it is a list, and gives the exit status.
    ///
    /// A reader that went away is no failure.
    pub(super) fn report(self) -> ExitCode {
        let Self { status, error } = self;
        let broken_pipe = error.chain().any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
        });
        if broken_pipe {
            return ExitCode::SUCCESS;
        }
        // Nobody is left to tell when this fails.
        let told = format!("{error:#}");
        let told: Vec<_> = told.lines().map(escape).collect();
        drop(writeln!(io::stderr(), "error: {}", told.join("\n")));
        status.into()
    }
}

impl fmt::Display for Failure {
    /// What went wrong, with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self { status: 1, error }
    }
}
