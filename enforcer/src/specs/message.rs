//! What the daemon and a specs process say to each other.

use std::{fmt, path::PathBuf};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};

use super::{configz::KubeletHard, pod::ApiPod, store::Store};
use crate::{
    helper::plain,
    network::{Endpoint, Security},
};

/// The longest change in JSON, with the uids of pods that are gone. The store leaves out what would be beyond it.
pub(super) const MOST_CHANGE_BYTES: usize = 12 << 20;

/// The most parts of a change: the process is not trusted, and two bytes of its answer can be a container that takes a
/// hundred.
const MOST_PARTS: usize = 1_500_000;

/// Where specs come from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Feed {
    /// The kubelet's Pods API (KEP-4188) at that socket.
    PodsApi(PathBuf),
    /// The kubelet's HTTPS server.
    Kubelet(Box<HttpsFeed>),
    /// The API server, for the pods of one node.
    ApiServer(Box<ApiServerFeed>),
}

/// The API server, and whose pods it is asked for.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerFeed {
    /// How it is asked.
    pub(crate) https: HttpsFeed,
    /// What the paths of its resources begin with; empty, or a path without a slash at its end.
    pub(crate) base: String,
    /// The node's name in the cluster.
    pub(crate) node: String,
}

/// A server that is asked over HTTPS.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpsFeed {
    /// Where it is.
    pub(crate) endpoint: Endpoint,
    /// Whom to trust there, and who this is.
    pub(crate) security: Security,
    /// The bearer token, if there is one.
    pub(crate) token: Option<String>,
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
    /// The source; `None` ends the process.
    pub(super) feed: Option<FeedAsk>,
    /// The revision that the daemon has.
    pub(super) after: Option<u64>,
    /// When the source is to be read, if it is not watched.
    pub(super) look: Look,
    /// How long to wait for a change, in milliseconds.
    pub(super) wait_ms: u64,
}

/// When a source is to be read that is not watched: at once whenever this differs.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Look {
    /// A number that changes as the pods' cgroups do.
    pub state: u64,
    /// Whether a threshold is crossed, or may be soon: then it is read often, as a pod may be evicted by its spec.
    pub is_of_concern: bool,
}

/// A feed as the process has it: it is connected to the Pods API already.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum FeedAsk {
    PodsApi,
    Kubelet(Box<HttpsFeed>),
    ApiServer(Box<ApiServerFeed>),
    /// No pods: the kubelet's configuration, once.
    Configz(Box<HttpsFeed>),
}

impl FeedAsk {
    /// Whether what is read there goes on being read, if with other credentials: a watch does not end as they are replaced.
    pub(super) fn goes_on(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::ApiServer(now), Self::ApiServer(next)) => {
                (&now.base, &now.node, &now.https.endpoint) == (&next.base, &next.node, &next.https.endpoint)
            }
            (now, next) => now == next,
        }
    }

    /// Whether it is tried again after a failure, by the same process.
    pub(super) fn tries_again(&self) -> bool {
        matches!(self, Self::ApiServer(_))
    }
}

/// The head of an answer's frame.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Outcome {
    /// The body is the change; the source was read so many milliseconds ago.
    #[serde(rename_all = "camelCase")]
    Changed { revision: u64, is_whole: bool, dropped: u64, read_ago_ms: u64 },
    /// The source has nothing new since it was read so many milliseconds ago.
    #[serde(rename_all = "camelCase")]
    Same { read_ago_ms: u64 },
    /// What the kubelet's configuration says.
    Configured(KubeletHard),
    /// Why the source cannot be read.
    Failed(String),
}

/// The body of an answer.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Body {
    #[serde(deserialize_with = "at_most_a_store")]
    pub(super) pods: Vec<ApiPod>,
    pub(super) removed: Vec<String>,
    pub(super) left_out: Vec<String>,
}

/// The process is not trusted: three bytes of its answer can be a pod that takes hundreds.
fn at_most_a_store<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ApiPod>, D::Error> {
    struct Bounded;
    impl<'de> Visitor<'de> for Bounded {
        type Value = Vec<ApiPod>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {} pods", Store::MOST_PODS)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut pods = Vec::new();
            while let Some(pod) = items.next_element()? {
                if pods.len() == Store::MOST_PODS {
                    return Err(A::Error::invalid_length(pods.len() + 1, &self));
                }
                pods.push(pod);
            }
            Ok(pods)
        }
    }
    from.deserialize_seq(Bounded)
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
    /// What has changed, with its revision; `None` for nothing.
    pub change: Option<(u64, Change)>,
    /// The uids of pods that are left out, whose former specs are no longer right.
    pub left_out: Vec<String>,
    /// How many pods of the source are left out: they cannot be read, or are too large or too many. `None`: as many as
    /// before.
    pub dropped: Option<u64>,
    /// How long ago the source was read, in milliseconds; 0 if it is watched.
    pub read_ago_ms: u64,
}

impl Feed {
    pub(super) fn ask(&self) -> FeedAsk {
        match self {
            Self::PodsApi(_) => FeedAsk::PodsApi,
            Self::Kubelet(https) => FeedAsk::Kubelet(https.clone()),
            Self::ApiServer(feed) => FeedAsk::ApiServer(feed.clone()),
        }
    }
}

impl Outcome {
    /// The answer; the error says why there is none.
    pub(super) fn into_update(self, body: &[u8]) -> Result<Update, String> {
        match self {
            Self::Failed(why) => Err(plain(&why)),
            Self::Configured(_) => Err(String::from("the specs process answers another question")),
            Self::Same { read_ago_ms } => {
                Ok(Update { change: None, left_out: Vec::new(), dropped: None, read_ago_ms })
            }
            Self::Changed { revision, is_whole, dropped, read_ago_ms } => {
                if body.iter().filter(|byte| matches!(byte, b'{' | b':' | b',')).count() > MOST_PARTS {
                    return Err(String::from("the specs process sends a change of too many parts"));
                }
                let Body { pods, removed, left_out } = serde_json::from_slice(body)
                    .map_err(|error| format!("the specs process sends no change: {error}"))?;
                let change =
                    if is_whole { Change::Whole(pods) } else { Change::Some { changed: pods, removed } };
                Ok(Update { change: Some((revision, change)), left_out, dropped: Some(dropped), read_ago_ms })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(body: &str) -> Result<Update, String> {
        Outcome::Changed { revision: 7, is_whole: true, dropped: 1, read_ago_ms: 0 }
            .into_update(body.as_bytes())
    }

    #[test]
    fn an_answer_of_more_pods_than_there_can_be_is_refused() {
        let pods = |count: usize| format!(r#"{{"pods":[{}]}}"#, vec!["{}"; count].join(","));
        let Some((7, Change::Whole(all))) = changed(&pods(Store::MOST_PODS)).unwrap().change else {
            panic!()
        };
        assert_eq!(all.len(), Store::MOST_PODS);
        let refused = changed(&pods(Store::MOST_PODS + 1)).unwrap_err();
        assert!(refused.contains("at most 4096 pods"), "{refused}");
    }

    #[test]
    fn an_answer_of_too_many_parts_is_refused() {
        let body = format!(
            r#"{{"pods":[{{"spec":{{"containers":[{}]}}}}]}}"#,
            vec!["{}"; MOST_PARTS / 2 + 1].join(",")
        );
        assert!(changed(&body).unwrap_err().contains("too many parts"));
    }

    #[test]
    fn an_answer_that_is_none_is_an_error() {
        for wrong in ["", "7", r#"{"pods":{}}"#, r#"{"pods":[7]}"#] {
            assert!(changed(wrong).unwrap_err().contains("sends no change"), "{wrong}");
        }
        let failed = Outcome::Failed(String::from("no\u{1b}[31m")).into_update(b"");
        assert_eq!(failed, Err(String::from("no[31m")));
    }
}
