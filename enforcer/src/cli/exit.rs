use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use super::render::escape;

/// Whoever read what is printed went away: no failure.
const READER_LEFT: u8 = 0;
/// It failed.
const FAILED: u8 = 1;
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

/// How the daemon gave no answer, or not all of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unreachable {
    /// Nobody listens.
    Down,
    /// It listens and does not answer.
    Mute,
    /// It ended the connection before it had said everything.
    HungUp,
}

impl Unreachable {
    /// What is said of it where something else is printed instead.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Down => "the daemon is down",
            Self::Mute => "the daemon does not answer",
            Self::HungUp => "the daemon hung up",
        }
    }
}

/// Why a verb ends without success, and with which exit status.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    error: anyhow::Error,
    silence: Option<Unreachable>,
}

impl Failure {
    fn new(status: u8, error: anyhow::Error) -> Self {
        Self { status, error, silence: None }
    }

    /// What was asked for, or the configuration, is wrong.
    pub(super) fn usage(error: anyhow::Error) -> Self {
        Self::new(USAGE, error)
    }

    /// The daemon cannot be reached.
    pub(super) fn unreachable(silence: Unreachable, error: anyhow::Error) -> Self {
        Self { silence: Some(silence), ..Self::new(UNREACHABLE, error) }
    }

    /// How the daemon cannot be reached, if it is that.
    pub(super) fn silence(&self) -> Option<Unreachable> {
        self.silence
    }

    /// Whether it is that the daemon cannot be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        self.silence.is_some()
    }

    /// The daemon or its rules say no.
    pub(super) fn refused(error: anyhow::Error) -> Self {
        Self::new(REFUSED, error)
    }

    /// What is to be printed cannot be. A reader that went away has what it wanted, and is told nothing.
    pub(super) fn printing(error: io::Error) -> Self {
        let status = if error.kind() == io::ErrorKind::BrokenPipe { READER_LEFT } else { FAILED };
        Self::new(status, anyhow::Error::new(error).context("cannot print"))
    }

    /// The same failure, with what follows from it said before it.
    pub(super) fn context(self, said: String) -> Self {
        Self { error: self.error.context(said), ..self }
    }

    /// A command could not be run in place.
    pub(super) fn command(error: io::Error, command: &str) -> Self {
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Self::new(status, anyhow::Error::new(error).context(format!("cannot run {command:?}")))
    }

    /// Says what went wrong, on one line unless it is a list, and gives the exit status.
    pub(super) fn report(self) -> ExitCode {
        let Self { status, error, silence: _ } = self;
        if status == READER_LEFT {
            return ExitCode::SUCCESS;
        }
        // Nobody is left to tell when this fails.
        let reported = format!("{error:#}");
        let reported: Vec<_> = reported.lines().map(escape).collect();
        drop(writeln!(io::stderr(), "error: {}", reported.join("\n")));
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
        Self::new(FAILED, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken_pipe() -> io::Error {
        io::Error::from(io::ErrorKind::BrokenPipe)
    }

    /// A pipe to the daemon that broke is no reader that went away.
    #[test]
    fn only_a_reader_that_went_away_is_no_failure() {
        let broken = || anyhow::Error::new(broken_pipe()).context("the daemon hung up");
        for (failure, status) in [
            (Failure::printing(broken_pipe()), 0),
            (Failure::printing(io::Error::from(io::ErrorKind::StorageFull)), 1),
            (Failure::from(broken()), 1),
            (Failure::unreachable(Unreachable::HungUp, broken()), 69),
            (Failure::refused(broken()), 77),
        ] {
            let reported = failure.to_string();
            // An exit status can be shown, and not compared.
            assert_eq!(
                format!("{:?}", failure.report()),
                format!("{:?}", ExitCode::from(status)),
                "{reported}"
            );
        }
    }
}
