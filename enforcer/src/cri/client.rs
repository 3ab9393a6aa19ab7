//! The daemon's side: connects to the container runtime, and asks through the process that speaks to it.

use std::{
    fmt, io,
    os::unix::net::UnixStream as StdStream,
    path::{Path, PathBuf},
    process::Child,
    sync::Arc,
};

use tokio::sync::Mutex;

use super::{
    message::{Ask, Listed, Listing, MOST_LISTING_BYTES, MOST_WANTED, Outcome},
    process::VERB,
};
use crate::{
    helper::{self, Helper, HelperError, Protocol, plain},
    model::ContainerId,
};

/// How long one runtime may take to list everything, in milliseconds.
const TIMEOUT_MS: u64 = 5_000;

/// Why there is no listing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CriError {
    /// No socket was found.
    #[error("no socket of a container runtime was found; set criSocket if it is in another place")]
    NoSocket,
    /// What listens there is no runtime of Kubernetes.
    #[error(
        "what listens on {} does not have the service runtime.v1.RuntimeService ({words}): enable its CRI, or update it \
         (containerd has it from 1.6 on)",
        socket.display()
    )]
    NoService {
        /// The runtime's socket.
        socket: PathBuf,
        /// The runtime's words.
        words: String,
    },
    /// The runtime cannot be reached, or it did not answer.
    #[error("cannot list the pods of the container runtime at {}", socket.display())]
    Failed {
        /// The runtime's socket.
        socket: PathBuf,
        /// What failed.
        #[source]
        source: HelperError,
    },
}

/// Finds the sockets where a runtime may listen.
#[derive(Clone)]
struct Find(Arc<dyn Fn() -> Vec<PathBuf> + Send + Sync>);

impl fmt::Debug for Find {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Find").finish_non_exhaustive()
    }
}

/// A handle for asking the container runtime, from any thread and async runtime. The process ends with the last of its
/// clones.
#[derive(Clone, Debug)]
pub struct Runtime {
    helper: Helper<Cri>,
    find: Find,
    /// The socket that gave pods last.
    chosen: Arc<Mutex<Option<PathBuf>>>,
    timeout_ms: u64,
}

/// What the runtime process is asked and answers.
pub(super) struct Cri;

/// Where to list.
pub(super) struct Question {
    socket: PathBuf,
    timeout_ms: u64,
    /// The containers that are listed in any state, by id.
    wanted: Vec<String>,
}

impl Protocol for Cri {
    const NAME: &'static str = "runtime";
    const MOST_ASK_BYTES: usize = 0;
    const MOST_ANSWER_BYTES: usize = MOST_LISTING_BYTES;

    type Question = Question;
    type Answer = Result<Listed, NoService>;
    type Place = PathBuf;
    type Ask = Ask;
    type Outcome = Outcome;

    fn place(question: &Question) -> PathBuf {
        question.socket.clone()
    }

    fn timeout_ms(question: &Question) -> u64 {
        question.timeout_ms
    }

    fn ask(Question { socket: _, timeout_ms, wanted }: Question) -> (Ask, Vec<u8>) {
        (Ask { timeout_ms, wanted }, Vec::new())
    }

    fn answer(outcome: Outcome, body: &[u8]) -> Result<Self::Answer, String> {
        let is_whole = match outcome {
            Outcome::Failed(why) => return Err(plain(&why)),
            Outcome::NoService(words) => return Ok(Err(NoService(plain(&words)))),
            Outcome::Listed => true,
            Outcome::ListedInPart => false,
        };
        match serde_json::from_slice::<Listing>(body) {
            Ok(listing) => Ok(Ok(Listed { listing: listing.checked(), is_whole })),
            Err(error) => Err(format!("the runtime process sends no listing: {error}")),
        }
    }
}

/// What was asked does not know the service, in its words.
pub(super) struct NoService(String);

impl Runtime {
    /// Starts the thread that starts the process. Fails if there is no thread or no descriptor for it.
    ///
    /// `sockets` is called for each listing, as a runtime may come later: [`find`](super::find) finds them.
    pub fn start(sockets: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) -> io::Result<Self> {
        Self::start_with(sockets, TIMEOUT_MS, |socket, theirs| {
            let runtime = helper::connect(socket)?;
            helper::command(VERB, theirs).stdout(runtime).spawn().map(Some)
        })
    }

    fn start_with(
        sockets: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static,
        timeout_ms: u64,
        mut spawn: impl FnMut(&Path, StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        let helper = Helper::start(move |socket: PathBuf, theirs| spawn(&socket, theirs))?;
        Ok(Self { helper, find: Find(Arc::new(sockets)), chosen: Arc::default(), timeout_ms })
    }

    /// Lists what the runtime has: of containers that have ended those that are `wanted`, the first [`MOST_WANTED`] of
    /// them. Safe to cancel.
    ///
    /// Of several sockets the first one counts that has a sandbox that is ready, from the one on that had some before: it is the
    /// kubelet's. If none has any, the answer is an error as soon as one could not be asked, as that may be the
    /// kubelet's; a socket without the service is not. Without errors it is an empty listing: the node has no pods.
    pub async fn list(&self, wanted: &[ContainerId]) -> Result<Listed, CriError> {
        let mut chosen = self.chosen.lock().await;
        let mut empty = None;
        let mut no_service = None;
        let mut failed = None;
        let mut sockets = (self.find.0)();
        let first = sockets.iter().position(|socket| Some(socket) == chosen.as_ref()).unwrap_or(0);
        sockets.rotate_left(first);
        for socket in sockets {
            match self.list_at(&socket, wanted).await {
                Ok(listed) if !listed.listing.sandboxes.iter().any(|sandbox| sandbox.ready) => {
                    empty = empty.or(Some(listed));
                }
                Ok(listed) => {
                    *chosen = Some(socket);
                    return Ok(listed);
                }
                Err(error @ CriError::NoService { .. }) => no_service = no_service.or(Some(error)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match (failed, empty) {
            (Some(error), _) => Err(error),
            (None, Some(listed)) => Ok(listed),
            (None, None) => Err(no_service.unwrap_or(CriError::NoSocket)),
        }
    }

    async fn list_at(&self, socket: &Path, wanted: &[ContainerId]) -> Result<Listed, CriError> {
        let ask = || {
            let wanted = wanted.iter().take(MOST_WANTED).map(ToString::to_string).collect();
            self.helper.ask(Question { socket: socket.to_owned(), timeout_ms: self.timeout_ms, wanted })
        };
        let answered = match ask().await {
            // The runtime was started again since, and the process has ended with its connection.
            Err(HelperError::Ended { .. }) => ask().await,
            answered => answered,
        };
        match answered {
            Ok(Ok(Listed { listing, is_whole })) => {
                Ok(Listed { listing, is_whole: is_whole && wanted.len() <= MOST_WANTED })
            }
            Ok(Err(NoService(words))) => Err(CriError::NoService { socket: socket.to_owned(), words }),
            Err(source) => Err(CriError::Failed { socket: socket.to_owned(), source }),
        }
    }
}

#[cfg(test)]
mod tests;
