//! The kubelet's configuration as its HTTPS server has it in force (`/configz`). Of it, only what decides when it evicts is
//! taken, in the process that has no privileges.

use std::{collections::BTreeMap, io, process::Child, time::Duration};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::{
    https::{Https, words},
    message::{Ask, FeedAsk, HttpsFeed, Look, Outcome},
    process::{Failure, VERB},
};
use crate::helper::{self, Helper, HelperError, Protocol, plain};

/// The longest answer: all fields together have some ten KiB.
const MOST_BYTES: usize = 1 << 20;

/// The longest threshold.
const MOST_THRESHOLD_BYTES: usize = 64;

/// How long the answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The signal whose threshold is taken.
const MEMORY_AVAILABLE: &str = "memory.available";

/// What the kubelet's `evictionHard` says of memory.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletHard {
    /// Whether there is an `evictionHard` at all.
    pub is_set: bool,
    /// The threshold of `memory.available` in it, as it is written.
    pub memory_available: Option<String>,
    /// `mergeDefaultEvictionSettings`.
    pub merges_defaults: bool,
}

/// The answer, as far as it is read.
#[derive(Deserialize)]
struct Answer {
    kubeletconfig: Fields,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    #[serde(default)]
    eviction_hard: Option<BTreeMap<String, String>>,
    #[serde(default)]
    merge_default_eviction_settings: Option<bool>,
}

/// Asks the kubelet, in this process.
pub(super) async fn read(feed: &HttpsFeed) -> Result<KubeletHard, Failure> {
    let asked = timeout(TIMEOUT, async {
        let (status, _headers, body) = Https::default().get(feed, "/configz").await?;
        if status != StatusCode::OK {
            return Err(refused(status, &words(body).await));
        }
        let read = Limited::new(body, MOST_BYTES).collect().await;
        parse(&read.map_err(|error| unread(&*error))?.to_bytes())
    });
    let timeout_ms = TIMEOUT.as_secs() * 1_000;
    asked.await.unwrap_or(Err(Failure::Unconfigured(format!("no answer within {timeout_ms} ms"))))
}

fn unread(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Failure {
    let why = match error.downcast_ref::<LengthLimitError>() {
        Some(_) => format!("the answer has more than {MOST_BYTES} bytes"),
        None => error.to_string(),
    };
    Failure::Unconfigured(why)
}

fn refused(status: StatusCode, words: &str) -> Failure {
    let hint = match status {
        StatusCode::UNAUTHORIZED => " (it does not accept these credentials)",
        StatusCode::FORBIDDEN => {
            " (these credentials may not `get` the resource `nodes/configz`; kubelets before 1.33 check `nodes/proxy`)"
        }
        _ => "",
    };
    Failure::Refused { status: status.as_u16(), hint, words: plain(words) }
}

fn parse(body: &[u8]) -> Result<KubeletHard, Failure> {
    let Answer { kubeletconfig } = serde_json::from_slice(body)
        .map_err(|error| Failure::Unconfigured(format!("the answer cannot be read: {error}")))?;
    let Fields { eviction_hard, merge_default_eviction_settings } = kubeletconfig;
    let memory_available = eviction_hard.as_ref().and_then(|hard| hard.get(MEMORY_AVAILABLE)).cloned();
    let known = KubeletHard {
        is_set: eviction_hard.is_some(),
        memory_available,
        merges_defaults: merge_default_eviction_settings.unwrap_or(false),
    };
    known.checked().map_err(Failure::Unconfigured)
}

impl KubeletHard {
    /// The same, if it is as short as it must be: it comes from a process that is not trusted.
    fn checked(self) -> Result<Self, String> {
        let is_sound = |text: &String| text.len() <= MOST_THRESHOLD_BYTES && plain(text) == *text;
        if self.memory_available.as_ref().is_none_or(is_sound) {
            Ok(self)
        } else {
            Err(String::from("its threshold of memory.available is no threshold"))
        }
    }
}

/// A handle for asking the kubelet. The process lives for one question; its thread as long as the handle.
#[derive(Debug)]
pub struct KubeletConfigz(Helper<Configz>);

/// What the process is asked and answers.
#[derive(Debug)]
struct Configz;

impl Protocol for Configz {
    const NAME: &'static str = "configz";
    const MOST_ASK_BYTES: usize = 0;
    const MOST_ANSWER_BYTES: usize = 0;

    type Question = Box<HttpsFeed>;
    type Answer = KubeletHard;
    type Place = ();
    type Ask = Ask;
    type Outcome = Outcome;

    fn place(_question: &Box<HttpsFeed>) {}

    fn timeout_ms(_question: &Box<HttpsFeed>) -> u64 {
        TIMEOUT.as_secs() * 1_000
    }

    fn ask(feed: Box<HttpsFeed>) -> (Ask, Vec<u8>) {
        (
            Ask { feed: Some(FeedAsk::Configz(feed)), after: None, look: Look::default(), wait_ms: 0 },
            Vec::new(),
        )
    }

    fn answer(outcome: Outcome, _body: &[u8]) -> Result<KubeletHard, String> {
        match outcome {
            Outcome::Configured(known) => known.checked(),
            Outcome::Failed(why) => Err(plain(&why)),
            Outcome::Changed { .. } | Outcome::Same { .. } => {
                Err(String::from("the specs process answers another question"))
            }
        }
    }
}

impl KubeletConfigz {
    /// Starts the thread that starts the process. Fails if there is no thread or no descriptor for it.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|theirs| helper::command(VERB, theirs).spawn().map(Some))
    }

    fn start_with(
        mut spawn: impl FnMut(std::os::unix::net::UnixStream) -> io::Result<Option<Child>> + Send + 'static,
    ) -> io::Result<Self> {
        Helper::start(move |(), theirs| spawn(theirs)).map(Self)
    }

    /// Asks, and waits for the answer: up to 30 s. Must not be called inside an async runtime.
    pub fn ask(&self, feed: &HttpsFeed) -> Result<KubeletHard, HelperError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .map_err(|error| HelperError::Unstarted { process: Configz::NAME, why: error.to_string() })?;
        let ask = || self.0.ask(Box::new(feed.clone()));
        runtime.block_on(async {
            match ask().await {
                // The process ends with its answer, and this came before that was noticed.
                Err(HelperError::Ended { .. }) => ask().await,
                answered => answered,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokio::net::UnixStream;

    use super::{
        super::{
            client::{https_feed, serve_https},
            process,
        },
        *,
    };
    use crate::recorded::Recorded;

    fn parsed(text: &str) -> Result<KubeletHard, String> {
        parse(text.as_bytes()).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_real_kubelets_answer_has_its_threshold() {
        let known = parsed(Recorded::new().text("kubeletConfigz"));
        let memory_available = Some(String::from("100Mi"));
        assert_eq!(known, Ok(KubeletHard { is_set: true, memory_available, merges_defaults: false }));
    }

    #[test]
    fn only_what_decides_is_taken() {
        let known = |is_set, memory: Option<&str>, merges_defaults| {
            Ok(KubeletHard { is_set, memory_available: memory.map(str::to_owned), merges_defaults })
        };
        for (text, expected) in [
            (
                r#"{"kubeletconfig":{"evictionHard":{"memory.available":"100Mi","nodefs.available":"10%"},"port":1}}"#,
                known(true, Some("100Mi"), false),
            ),
            (r#"{"kubeletconfig":{"evictionHard":{"pid.available":"5%"}}}"#, known(true, None, false)),
            (
                r#"{"kubeletconfig":{"evictionHard":null,"mergeDefaultEvictionSettings":true}}"#,
                known(false, None, true),
            ),
            (r#"{"kubeletconfig":{}}"#, known(false, None, false)),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
        let long = "1".repeat(MOST_THRESHOLD_BYTES + 1);
        for hostile in ["{}", "", "[]", r#"{"kubeletconfig":{"evictionHard":["memory.available"]}}"#, &long] {
            assert!(parsed(hostile).is_err(), "{hostile}");
        }
        for value in [long.as_str(), r"1\u001b[31m"] {
            let text = format!(r#"{{"kubeletconfig":{{"evictionHard":{{"memory.available":"{value}"}}}}}}"#);
            assert!(parsed(&text).unwrap_err().contains("no threshold"), "{text}");
        }
    }

    /// The process is not trusted.
    #[test]
    fn an_answer_to_another_question_is_none() {
        let hard = |memory: String| KubeletHard { memory_available: Some(memory), ..KubeletHard::default() };
        assert!(Configz::answer(Outcome::Same { read_ago_ms: 0 }, b"").is_err());
        assert!(Configz::answer(Outcome::Configured(hard("9".repeat(1_000))), b"").is_err());
        assert!(Configz::answer(Outcome::Configured(hard("1Gi".into())), b"").is_ok());
        assert_eq!(Configz::answer(Outcome::Failed("no\u{1b}".into()), b""), Err(String::from("no")));
    }

    fn asking() -> KubeletConfigz {
        KubeletConfigz::start_with(|theirs| {
            theirs.set_nonblocking(true)?;
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async { process::serve(UnixStream::from_std(theirs)?, None).await })
            });
            Ok(None)
        })
        .unwrap()
    }

    #[tokio::test]
    async fn the_kubelets_server_is_asked_each_time() {
        let (kubelet, port, certificate) = serve_https().await;
        let configz = std::sync::Arc::new(asking());
        let ask = |token: &'static str| {
            let (configz, feed) = (configz.clone(), https_feed(port, &certificate, token));
            tokio::task::spawn_blocking(move || configz.ask(&feed))
        };
        assert!(ask("secret").await.unwrap().unwrap_err().to_string().contains("status 404"));
        for value in ["1Gi", "2Gi"] {
            let answer = serde_json::json!({"kubeletconfig": {"evictionHard": {"memory.available": value}}});
            kubelet.configure(answer.to_string());
            assert_eq!(ask("secret").await.unwrap().unwrap().memory_available.as_deref(), Some(value));
        }
        let refused = ask("weak").await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("nodes/configz"), "{refused}");
        kubelet.configure(" ".repeat(MOST_BYTES + 1));
        let refused = ask("secret").await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("more than"), "{refused}");
        assert_eq!(kubelet.lists(), 0, "it lists no pods");
    }
}
