//! Failures that end with an exit status of their own.
use std::{error::Error, fmt};

/// Wrong arguments, as sysexits.h numbers it.
pub(crate) const USAGE: u8 = 64;
/// Something is missing and cannot be installed from here.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The guest was still busy at its time limit; the same status as timeout(1).
pub(crate) const TIMED_OUT: u8 = 124;
/// The machine did not come up: its script did not begin in time, or the emulator ended before.
pub(crate) const NOT_READY: u8 = 123;
/// The guest ended without reporting its script's status.
pub(crate) const GUEST_DIED: u8 = 125;

/// The reader of standard output is gone; the status of a shell for SIGPIPE.
pub(crate) const PIPE_CLOSED: u8 = 141;

/// A message with the exit status that belongs to it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// What is missing, and the commands that install it.
    pub(crate) fn unavailable(missing: &str, commands: &[String]) -> Self {
        let mut message = format!("{missing}; run as root:");
        for command in commands {
            message.push_str("\n    ");
            message.push_str(command);
        }
        Self::new(UNAVAILABLE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}
