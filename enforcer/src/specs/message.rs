//! What the daemon and a specs process say to each other.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::pod::ApiPod;
use crate::{
    helper::plain,
    network::{Endpoint, Security},
};

/// The longest change in JSON: all pods of the largest store take less.
pub(super) const MOST_CHANGE_BYTES: usize = 64 << 20;

/// Where specs come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Feed {
    /// The kubelet's Pods API (KEP-4188) at that socket.
    PodsApi(PathBuf),
    /// The kubelet's HTTPS server.
    Kubelet(HttpsFeed),
}

/// A server that is asked over HTTPS.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpsFeed {
    /// Where it is.
    pub(super) endpoint: Endpoint,
    /// Whom to trust there, and who this is.
    pub(super) security: Security,
    /// The bearer token, if there is one.
    pub(super) token: Option<String>,
}

impl fmt::Debug for HttpsFeed {
    /// Without the token.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("HttpsFeed").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// The head of a question's frame, which has no body.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ask {
    pub(super) feed: FeedAsk,
    /// The revision that the daemon has.
    pub(super) after: Option<u64>,
    /// A number that changes when the source is to be read at once, if it is not watched.
    pub(super) look: u64,
    /// How long to wait for a change, in milliseconds.
    pub(super) wait_ms: u64,
}

/// A feed as the process has it: it is connected to the Pods API already.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum FeedAsk {
    PodsApi,
    Kubelet(HttpsFeed),
}

/// The head of an answer's frame.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// The body is the change.
    #[serde(rename_all = "camelCase")]
    Changed { revision: u64, is_whole: bool, dropped: u64 },
    /// The source was read, and has nothing new.
    Same,
    /// Why the source cannot be read.
    Failed(String),
}

/// The body of an answer.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Body {
    pub(super) pods: Vec<ApiPod>,
    pub(super) removed: Vec<String>,
}

/// What a source has that the daemon has not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// All of its pods.
    Whole(Vec<ApiPod>),
    /// Some have changed or are gone.
    Some {
        /// Those that have changed, or are new.
        changed: Vec<ApiPod>,
        /// The uids of those that are gone.
        removed: Vec<String>,
    },
}

/// A source's answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Update {
    /// What has changed; `None` for nothing.
    pub change: Option<(u64, Change)>,
    /// How many pods the source has that were left out: too large, or too many.
    pub dropped: u64,
}

impl Feed {
    pub(super) fn ask(&self) -> FeedAsk {
        match self {
            Self::PodsApi(_) => FeedAsk::PodsApi,
            Self::Kubelet(https) => FeedAsk::Kubelet(https.clone()),
        }
    }
}

impl Outcome {
    /// The answer; the error says why there is none.
    pub(super) fn into_update(self, body: &[u8]) -> Result<Update, String> {
        match self {
            Self::Failed(why) => Err(plain(&why)),
            Self::Same => Ok(Update { change: None, dropped: 0 }),
            Self::Changed { revision, is_whole, dropped } => {
                let Body { pods, removed } = serde_json::from_slice(body)
                    .map_err(|error| format!("the specs process sends no change: {error}"))?;
                let change =
                    if is_whole { Change::Whole(pods) } else { Change::Some { changed: pods, removed } };
                Ok(Update { change: Some((revision, change)), dropped })
            }
        }
    }
}
