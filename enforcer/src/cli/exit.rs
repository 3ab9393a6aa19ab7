//! Exit statuses, which scripts rely on, and the failures of verbs that lead to them.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

use super::render::escape;

/// Done.
const DONE: u8 = 0;
/// The reader of the output went away: no failure.
const READER_LEFT: u8 = DONE;
/// Any other failure.
const FAILED: u8 = 1;
/// `doctor`: nothing can be enforced on this host, or no pod evicted.
const CANNOT_ENFORCE: u8 = 2;
/// The arguments or the configuration are wrong.
pub(super) const USAGE: u8 = 64;
/// What was given as input is wrong, and was to be right.
const BAD_DATA: u8 = 65;
/// What the arguments name does not exist.
const NOT_THERE: u8 = 66;
/// The daemon cannot be reached.
const UNREACHABLE: u8 = 69;
/// The daemon or its rules refuse the request.
const REFUSED: u8 = 77;
/// The command of `exec` exists but cannot be run; as in shells.
const NOT_EXECUTABLE: u8 = 126;
/// The command of `exec` does not exist; as in shells.
const NOT_FOUND: u8 = 127;

/// Verbs that fail without a daemon.
const NEED_THE_DAEMON: &[&str] = &[
    "",
    "status",
    "pods",
    "describe",
    "next",
    "headroom",
    "allocatable",
    "top",
    "what-if",
    "protect",
    "pause",
    "evict",
    "reserve",
    "unreserve",
    "reload",
    "exec",
];
/// Verbs that then read what is on this machine.
const READ_THE_MACHINE: &[&str] =
    &["events", "why", "replay", "report", "doctor", "plan", "config effective", "version", "bugreport"];

/// What the statuses mean: for the verbs that are named, before what holds for all.
const MEANINGS: &[(u8, &[&str], &str)] = &[
    (DONE, &["doctor"], "nothing is lost"),
    (DONE, &[], "done"),
    (
        FAILED,
        &["doctor"],
        "something is lost and the rest works, eviction is paused, or something else may evict at the same time",
    ),
    (FAILED, &["plan", "rank"], "failed, or a manifest is wrong: the others are in the answer"),
    (FAILED, &["replay"], "failed; another decision than the recorded one; or a damaged recording"),
    (FAILED, &["cleanup"], "failed, or something could not be given back: the answer says what"),
    (FAILED, &[], "failed: the message says why"),
    (CANNOT_ENFORCE, &["doctor"], "nothing can be enforced on this host, or no pod evicted"),
    (USAGE, &["cleanup"], "wrong usage, a wrong configuration, or, without --dry-run, a daemon that runs"),
    (USAGE, &["config check"], "wrong usage, or a wrong configuration: also one that evicts no pod"),
    (USAGE, &["config init"], "wrong usage, or the file exists: it stays as it is"),
    (USAGE, &[], "wrong usage, or a wrong configuration where the answer depends on it"),
    (BAD_DATA, &["plan", "rank"], "with --strict: something is wrong or mistyped in a manifest"),
    (NOT_THERE, &["describe"], "there is no such pod"),
    (NOT_THERE, &["exec"], "there is no such container"),
    (NOT_THERE, &["protect", "pause"], "there is no such pod, or no such order to end"),
    (NOT_THERE, &["unreserve", "reserve"], "there is no such reservation"),
    (
        NOT_THERE,
        &["", "why", "evict", "what-if"],
        "what was named does not exist: a pod, an event, a recording, a file",
    ),
    (NOT_THERE, &["replay"], "there is no such recording"),
    (UNREACHABLE, NEED_THE_DAEMON, "the daemon cannot be reached"),
    (UNREACHABLE, READ_THE_MACHINE, "the daemon cannot be reached, and --live forbids to read files instead"),
    (REFUSED, &["exec"], "refused: the pod may not run, or the mode is not enforce"),
    (REFUSED, &["cleanup"], "not permitted: it needs root"),
    (REFUSED, &["run"], "not permitted: the message says which right is missing"),
    (REFUSED, &["config init"], "not permitted to write there"),
    (REFUSED, &["reload"], "the running configuration stays in force"),
    (REFUSED, NEED_THE_DAEMON, "refused by the daemon, by its rules, or by permissions"),
    (REFUSED, READ_THE_MACHINE, "refused by permissions"),
    (NOT_EXECUTABLE, &["exec"], "the command cannot be run; otherwise the command's own status"),
    (NOT_FOUND, &["exec"], "the command does not exist"),
];

/// The statuses that a verb can end with, and what they mean; of no verb, what holds for most. A subcommand is written with its
/// verb, as in `config check`.
pub(super) fn statuses(verb: &str) -> Vec<(u8, &'static str)> {
    let mut found = std::collections::BTreeMap::new();
    for (status, verbs, meaning) in MEANINGS {
        if verbs.is_empty() || verbs.contains(&verb) {
            found.entry(*status).or_insert(*meaning);
        }
    }
    found.into_iter().collect()
}

/// Why the daemon's answer is missing or incomplete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unreachable {
    /// Nothing listens on the socket.
    Down,
    /// It listens and does not answer.
    Mute,
    /// It closed the connection before the end of the answer.
    HungUp,
}

impl Unreachable {
    /// The words for the notice that something else is printed instead.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Down => "the daemon is down",
            Self::Mute => "the daemon does not answer",
            Self::HungUp => "the daemon hung up",
        }
    }
}

/// Why a verb fails, and its exit status.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    /// What is printed; nothing if another program has said it.
    error: Option<anyhow::Error>,
    silence: Option<Unreachable>,
}

impl Failure {
    fn new(status: u8, error: anyhow::Error) -> Self {
        Self { status, error: Some(error), silence: None }
    }

    /// The arguments or the configuration are wrong.
    pub(super) fn usage(error: anyhow::Error) -> Self {
        Self::new(USAGE, error)
    }

    /// Nothing can be enforced on this host.
    pub(super) fn cannot_enforce(error: anyhow::Error) -> Self {
        Self::new(CANNOT_ENFORCE, error)
    }

    /// What was given as input is wrong, and was to be right.
    pub(super) fn bad_data(error: anyhow::Error) -> Self {
        Self::new(BAD_DATA, error)
    }

    /// What the arguments name does not exist: a pod, an event, a recording, a file.
    pub(super) fn not_there(error: anyhow::Error) -> Self {
        Self::new(NOT_THERE, error)
    }

    /// The daemon cannot be reached.
    pub(super) fn unreachable(silence: Unreachable, error: anyhow::Error) -> Self {
        Self { silence: Some(silence), ..Self::new(UNREACHABLE, error) }
    }

    /// Why the daemon cannot be reached, if this is the failure.
    pub(super) fn silence(&self) -> Option<Unreachable> {
        self.silence
    }

    /// Whether the daemon cannot be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        self.silence.is_some()
    }

    /// The daemon or its rules refuse the request.
    pub(super) fn refused(error: anyhow::Error) -> Self {
        Self::new(REFUSED, error)
    }

    /// Whether the kernel refused something for a lack of rights.
    pub(super) fn is_for_lack_of_rights(&self) -> bool {
        let causes = self.error.iter().flat_map(anyhow::Error::chain);
        causes
            .filter_map(|cause| {
                let errno = cause.downcast_ref::<rustix::io::Errno>().map(|errno| errno.kind());
                errno.or_else(|| cause.downcast_ref::<io::Error>().map(io::Error::kind))
            })
            .any(|kind| kind == io::ErrorKind::PermissionDenied)
    }

    /// The same as a refusal, with a message before it.
    pub(super) fn into_refused(self, said: String) -> Self {
        Self { status: REFUSED, ..self.context(said) }
    }

    /// The exit status.
    #[cfg(test)]
    pub(super) fn status(&self) -> u8 {
        self.status
    }

    /// The output cannot be printed. If its reader went away, that is no failure and prints no error.
    pub(super) fn printing(error: io::Error) -> Self {
        let status = if error.kind() == io::ErrorKind::BrokenPipe { READER_LEFT } else { FAILED };
        Self::new(status, anyhow::Error::new(error).context("cannot print"))
    }

    /// The same failure with a message before it.
    pub(super) fn context(self, said: String) -> Self {
        Self { error: self.error.map(|error| error.context(said)), ..self }
    }

    /// The command of `exec` could not be run.
    pub(super) fn command(error: io::Error, command: &str) -> Self {
        let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Self::new(status, anyhow::Error::new(error).context(format!("cannot run {command:?}")))
    }

    /// The command of `exec` has ended with that status, and has said itself what there was to say.
    pub(super) fn ended(status: u8) -> Self {
        Self { status, error: None, silence: None }
    }

    /// Prints the error, on one line unless it is a list, and returns the exit status.
    pub(super) fn report(self) -> ExitCode {
        let Self { status, error, silence: _ } = self;
        if status == READER_LEFT {
            return ExitCode::SUCCESS;
        }
        if let Some(error) = error {
            let reported = format!("{error:#}");
            let reported: Vec<_> = reported.lines().map(escape).collect();
            // If this fails, there is nowhere to report it.
            drop(writeln!(io::stderr(), "error: {}", reported.join("\n")));
        }
        status.into()
    }
}

impl fmt::Display for Failure {
    /// The error with its causes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{error:#}"),
            None => write!(f, "ended with status {}", self.status),
        }
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

    #[test]
    fn the_page_of_the_command_line_has_every_status_and_no_other() {
        let page = include_str!("../../../docs/command-line.md");
        let (_, table) = page.split_once("## Exit statuses").unwrap();
        let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let written: std::collections::BTreeSet<u8> =
            cells.flat_map(|cell| cell.split(", ").filter_map(|number| number.parse().ok())).collect();
        assert_eq!(written, MEANINGS.iter().map(|(status, ..)| *status).collect());
    }

    #[test]
    fn what_is_said_of_a_verb_goes_before_what_holds_for_all() {
        let of = |verb: &str, status: u8| {
            statuses(verb).into_iter().find(|(known, _)| *known == status).map(|(_, meaning)| meaning)
        };
        assert_eq!(of("doctor", DONE), Some("nothing is lost"));
        assert_eq!(of("next", DONE), Some("done"));
        assert_eq!(of("next", CANNOT_ENFORCE), None);
        assert_eq!(of("exec", NOT_FOUND), Some("the command does not exist"));
        assert_ne!(of("config init", USAGE), of("config check", USAGE));
        assert!(of("config effective", UNREACHABLE).is_some() && of("config init", UNREACHABLE).is_none());
        assert!(statuses("").len() >= 6, "{:?}", statuses(""));
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
            (Failure::bad_data(broken()), 65),
            (Failure::not_there(broken()), 66),
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
