//! The daemon's side: a handle for asking the API server.

use std::{fmt, io, os::unix::net::UnixStream as StdStream, process::Child, sync::Arc, time::Instant};

use super::{
    message::{Ask, Call, Lane, Outcome},
    process::VERB,
};
use crate::{
    helper::{self, Helper, Protocol},
    specs::{ApiServerFeed, CredentialsReader},
};

/// How long one request may take with its connection, in milliseconds.
const TIMEOUT_MS: u64 = 5_000;

/// Where the API server is, and who this is; read anew for each question, on a thread of its own. The error says what is
/// missing.
pub type Access = Arc<dyn Fn() -> Result<ApiServerFeed, String> + Send + Sync>;

/// What this node is called in the cluster, at any time. May read files.
pub type NodeName = Arc<dyn Fn() -> Named + Send + Sync>;

/// A name of this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Whether nothing has said it: it is the host's, as most nodes have it.
    pub is_guess: bool,
}

/// A handle for asking the API server, from any async runtime. The process ends with the last of its clones.
#[derive(Clone)]
pub struct ApiServer {
    process: Helper<KubeApi>,
    credentials: Arc<CredentialsReader<(), ApiServerFeed, String>>,
    node: NodeName,
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ApiServer").field("process", &self.process).finish_non_exhaustive()
    }
}

/// What the kube process is asked and answers.
pub(super) struct KubeApi;

impl Protocol for KubeApi {
    const NAME: &'static str = "kube";
    const REQUESTS_EVICTIONS: bool = true;
    const MOST_ASK_BYTES: usize = 0;
    const MOST_ANSWER_BYTES: usize = 0;

    type Question = (Lane, ApiServerFeed, Call, u64);
    type Answer = Outcome;
    type Place = ();
    type Ask = Ask;
    type Outcome = Outcome;

    fn place(_question: &Self::Question) {}

    fn timeout_ms(_question: &Self::Question) -> u64 {
        // The process counts from its arrival there.
        2 * TIMEOUT_MS
    }

    fn ask((lane, access, call, timeout_ms): Self::Question) -> (Ask, Vec<u8>) {
        (Ask { lane, access, call, timeout_ms }, Vec::new())
    }

    fn answer(outcome: Outcome, _body: &[u8]) -> Result<Outcome, String> {
        outcome.taken()
    }
}

impl ApiServer {
    /// Starts the thread that starts the process with the first question, and the one that reads the credentials. Fails if
    /// there are no threads or no descriptor for them.
    pub fn start(node: NodeName, access: Access) -> io::Result<Self> {
        Self::start_with(node, access, |theirs| helper::command(VERB, theirs).spawn().map(Some))
    }

    pub(super) fn start_with(
        node: NodeName,
        access: Access,
        mut spawn: impl FnMut(StdStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            process: Helper::start(move |(), theirs| spawn(theirs))?,
            credentials: Arc::new(CredentialsReader::start(move |()| access())?),
            node,
        })
    }

    /// One whose process is a thread, with all the rights of this one.
    #[cfg(test)]
    pub(crate) fn in_this_process(node: &str, access: Access) -> io::Result<Self> {
        let named = Named { name: node.to_owned(), is_guess: false };
        Self::in_this_process_named(Arc::new(move || named.clone()), access)
    }

    /// The same for a node whose name may change.
    #[cfg(test)]
    pub(crate) fn in_this_process_named(node: NodeName, access: Access) -> io::Result<Self> {
        Self::start_with(node, access, |theirs| {
            theirs.set_nonblocking(true)?;
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                // It ends with the test.
                drop(runtime.block_on(async {
                    super::process::serve(tokio::net::UnixStream::from_std(theirs)?).await
                }));
            });
            Ok(None)
        })
    }

    /// This node's name in the cluster, as it is now. May read files in the calling thread.
    #[must_use]
    pub fn node(&self) -> String {
        (self.node)().name
    }

    /// The same, and whether it is a guess.
    pub(super) fn named(&self) -> Named {
        (self.node)()
    }

    /// Asks, one question of a lane after the other; the error says why there is no answer. A disk that hangs with the
    /// credentials on it delays that by seconds at most. Safe to cancel; the server may do what was asked all the same.
    pub async fn ask(&self, lane: Lane, call: Call) -> Result<Outcome, String> {
        let access = self.access().await?;
        self.ask_as(access, lane, call).await
    }

    /// The same with an end: whoever no longer waits then must not find that it was done later.
    pub(super) async fn ask_until(&self, end: Instant, lane: Lane, call: Call) -> Result<Outcome, String> {
        let access = self.access().await?;
        let left_ms = end.saturating_duration_since(Instant::now()).as_millis();
        let left_ms = u64::try_from(left_ms).unwrap_or(u64::MAX).min(TIMEOUT_MS);
        if left_ms == 0 {
            return Err(String::from("no time is left to ask the API server"));
        }
        self.ask_within(left_ms, access, lane, call).await
    }

    /// The credentials as they are now, or if they cannot be read the last ones. Safe to cancel.
    pub(super) async fn access(&self) -> Result<ApiServerFeed, String> {
        self.credentials.read(()).await.map_err(|hang| hang.to_string())?
    }

    /// Asks with credentials that were read before.
    pub(super) async fn ask_as(
        &self,
        access: ApiServerFeed,
        lane: Lane,
        call: Call,
    ) -> Result<Outcome, String> {
        self.ask_within(TIMEOUT_MS, access, lane, call).await
    }

    async fn ask_within(
        &self,
        timeout_ms: u64,
        access: ApiServerFeed,
        lane: Lane,
        call: Call,
    ) -> Result<Outcome, String> {
        self.process.ask((lane, access, call, timeout_ms)).await.map_err(|error| crate::chain(&error))
    }
}
