//! The daemon's side: asks the process of a source what has changed.

use std::{io, os::unix::net::UnixStream as StdStream, path::PathBuf, process::Child};

use super::{
    message::{Ask, Feed, Look, MOST_CHANGE_BYTES, Outcome, Update},
    process::VERB,
};
use crate::helper::{self, Helper, HelperError, Protocol};

/// How long a source may take to be read, beyond the time that is waited for a change, in milliseconds.
const TIMEOUT_MS: u64 = 15_000;

/// Why there is no answer.
pub type SpecError = HelperError;

/// A handle for asking one source, from any async runtime. Its process ends with it.
#[derive(Debug)]
pub struct Specs(Helper<PodSpecs>);

/// What a specs process is asked and answers.
pub(super) struct PodSpecs;

/// What to ask.
pub(super) struct Question {
    /// `None` ends the process.
    feed: Option<Feed>,
    after: Option<u64>,
    look: Look,
    wait_ms: u64,
}

impl Protocol for PodSpecs {
    const NAME: &'static str = "specs";
    const MOST_ASK_BYTES: usize = 0;
    const MOST_ANSWER_BYTES: usize = MOST_CHANGE_BYTES;

    type Question = Question;
    type Answer = Update;
    /// The socket that the process is connected to; one for HTTPS has none.
    type Place = Option<PathBuf>;
    type Ask = Ask;
    type Outcome = Outcome;

    fn place(question: &Question) -> Option<PathBuf> {
        match &question.feed {
            Some(Feed::PodsApi(socket)) => Some(socket.clone()),
            Some(Feed::Kubelet(_) | Feed::ApiServer(_)) | None => None,
        }
    }

    fn timeout_ms(question: &Question) -> u64 {
        question.wait_ms + TIMEOUT_MS
    }

    fn ask(Question { feed, after, look, wait_ms }: Question) -> (Ask, Vec<u8>) {
        (Ask { feed: feed.as_ref().map(Feed::ask), after, look, wait_ms }, Vec::new())
    }

    fn answer(outcome: Outcome, body: &[u8]) -> Result<Update, String> {
        outcome.into_update(body)
    }
}

impl Specs {
    /// Starts the thread that starts the process. Fails if there is no thread or no descriptor for it.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|socket, theirs| {
            let mut command = helper::command(VERB, theirs);
            if let Some(socket) = socket {
                command.stdout(helper::connect(&socket)?);
            }
            command.spawn().map(Some)
        })
    }

    pub(super) fn start_with(
        spawn: impl FnMut(Option<PathBuf>, StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        Helper::start(spawn).map(Self)
    }

    /// Waits until the source has something new since `after`, at most for `wait_ms`. Fails if the source cannot be read, or
    /// if the process ends or hangs. Safe to cancel.
    ///
    /// A revision of an earlier process counts as none. Another `look` has a source that
    /// is not watched read at once.
    pub async fn next(
        &self,
        feed: Feed,
        after: Option<u64>,
        look: Look,
        wait_ms: u64,
    ) -> Result<Update, SpecError> {
        let ask = |after| self.0.ask(Question { feed: Some(feed.clone()), after, look, wait_ms });
        match ask(after).await {
            // The process has ended after its last answer; another has revisions of its own.
            Err(HelperError::Ended { .. }) => ask(None).await,
            answered => answered,
        }
    }

    /// Ends the process: what it has known would be old when the source is asked again.
    pub async fn end(&self) {
        // It may have ended already.
        drop(self.0.ask(Question { feed: None, after: None, look: Look::default(), wait_ms: 0 }).await);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use self::tests::{https_feed, look, serve_https};
