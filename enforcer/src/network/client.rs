//! The daemon's side: a handle for making requests.

use std::{io, os::unix::net::UnixStream as StdStream, process::Child};

use super::{
    message::{Answer, Ask, Exchange, Outcome},
    process::VERB,
};
use crate::helper::{self, Helper, HelperError, Protocol};

/// A handle for making requests, from any thread and runtime. The process ends with the last of its clones.
#[derive(Clone, Debug)]
pub struct Network(Helper<Http>);

/// What the network process is asked and answers.
pub(super) struct Http;

impl Protocol for Http {
    const NAME: &'static str = "network";
    /// A batch of events, and a file of certificates.
    const MOST_ASK_BYTES: usize = 8 << 20;
    const MOST_ANSWER_BYTES: usize = 0;

    type Question = Exchange;
    type Answer = Answer;
    type Place = ();
    type Ask = Ask;
    type Outcome = Outcome;

    fn place(_exchange: &Exchange) {}

    fn timeout_ms(exchange: &Exchange) -> u64 {
        exchange.timeout_ms
    }

    fn ask(exchange: Exchange) -> (Ask, Vec<u8>) {
        Ask::new(exchange)
    }

    fn answer(outcome: Outcome, _body: &[u8]) -> Result<Answer, String> {
        outcome.into_answer()
    }
}

impl Network {
    /// Starts the thread that starts the process. Fails if there is no thread or no descriptor for it.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|theirs| helper::command(VERB, theirs).spawn().map(Some))
    }

    /// The same with another way to start what serves the other end of the socket pair.
    fn start_with(
        mut spawn: impl FnMut(StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        Helper::start(move |(), theirs| spawn(theirs)).map(Self)
    }

    /// A network whose process is a thread, with all the rights of this one.
    #[cfg(test)]
    pub(crate) fn in_this_process() -> io::Result<Self> {
        Self::start_with(|theirs| {
            theirs.set_nonblocking(true)?;
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime
                    .block_on(async {
                        super::process::serve(tokio::net::UnixStream::from_std(theirs)?).await
                    })
                    .unwrap();
            });
            Ok(None)
        })
    }

    /// Makes a request. Safe to cancel; the request may be made all the same.
    pub async fn exchange(&self, exchange: Exchange) -> Result<Answer, HelperError> {
        self.0.ask(exchange).await
    }
}
