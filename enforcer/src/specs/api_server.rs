//! The API server: it lists the pods of one node, and then says what changes.
//!
//! Where the server can, one watch gives both (`sendInitialEvents`): it need not hold a
//! whole list in memory for us. Otherwise a list comes in parts, and a watch follows.
//!
//! A watch that ends is resumed where it ended. Only where the server no longer knows that version, all pods are listed
//! again; until that list is whole, what was known stays. A pod is gone if the server says so, or if a whole list is without
//! it, and for no other reason.

mod event;
mod schedule;

#[cfg(test)]
pub(crate) use self::schedule::watch_requests;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use http_body_util::BodyExt as _;
use hyper::{HeaderMap, StatusCode, body::Incoming};
use serde::Deserialize;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use self::{
    event::{Event, Lines, NoEvent},
    schedule::{End, Schedule},
};
use super::{
    https::{Https, Listed, words},
    message::{ApiServerFeed, FeedAsk},
    process::{Failure, Shared},
    store::Store,
};
use crate::{
    helper::{is_id, plain},
    network::{Bounds, ConnectionError, fraction, retry_after},
};

/// How many pods one part of the list has.
const PAGE: usize = 500;

/// The most parts of a list: a node has some hundred pods.
const MOST_PAGES: usize = 64;

/// How many watches may end before all pods have come until they are listed in parts instead.
const MOST_UNENDED: u32 = 2;

/// The shortest watch that is asked for, in seconds; the longest is twice as long. It is as long as other clients ask for,
/// and random so that the nodes do not come back together.
const WATCH_S: u64 = 300;

/// How long what is done may take, and how long to wait in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// How long one part of the list may take, or the beginning of an answer.
    answer: Duration,
    /// How long all pods may take in a watch, and how many bytes: a server that never says that all have come must not be
    /// followed without end.
    whole: Duration,
    whole_bytes: usize,
    /// How long a watch may be silent. The server sends a bookmark about once a minute.
    silence: Duration,
    /// How long a watch goes on after the time that was asked for, before it counts as dead.
    margin: Duration,
    /// How long a watch must last for the pauses to be short again.
    lasting: Duration,
    /// The pauses before a request after one that failed, or after a watch that did not last.
    pauses: Bounds,
    /// The longest random time before the first request and after one that failed: a cluster may start at once, and one
    /// restart of the server ends the watches of all nodes.
    spread: Duration,
    /// How long the server may be away before it counts as one that does not answer.
    patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            whole: Duration::from_mins(2),
            whole_bytes: 1 << 30,
            silence: Duration::from_mins(3),
            margin: Duration::from_secs(30),
            lasting: Duration::from_secs(10),
            pauses: Bounds { least: Duration::from_secs(1), most: Duration::from_secs(30) },
            spread: Duration::from_secs(5),
            patience: Duration::from_mins(1),
        }
    }
}

/// Why the API server's answer is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiFailure {
    #[error("it does not `{verb}` pods: status {status}{hint}: {words}")]
    Refused { verb: &'static str, status: u16, hint: &'static str, words: String },
    #[error("the watch of pods has failed: status {code}: {words}")]
    WatchFailed { code: u16, words: String },
    #[error("it has not answered within {timeout_s} s")]
    TimedOut { timeout_s: u64 },
    #[error("its list of pods does not say which version it is")]
    NoVersion,
    #[error("its list of pods has more than {MOST_PAGES} parts of {PAGE}")]
    Endless,
    #[error("its watch of pods ended before all pods had come")]
    Unended,
    #[error(transparent)]
    NoEvent(#[from] NoEvent),
}

/// Why a list or a watch has ended before it should.
enum Interruption {
    /// It will not be otherwise by waiting.
    Final(Failure),
    /// The version or the mark of the next part is too old: all pods are to be listed again.
    Expired(Failure),
    /// It may work later, and not before `after`.
    Later { after: Option<Duration>, why: Failure },
    /// It gives no list in a watch.
    Unstreamed,
}

impl From<Failure> for Interruption {
    /// A server that cannot be reached may be reached later; a request that cannot be made cannot be made then either.
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Token | Failure::Request(_) => Self::Final(failure),
            why => Self::Later { after: None, why },
        }
    }
}

impl From<NoEvent> for Interruption {
    /// What it was may have been a pod's end.
    fn from(error: NoEvent) -> Self {
        Self::Expired(ApiFailure::from(error).into())
    }
}

/// What a list has around its pods.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Page {
    metadata: PageMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

/// Lists the pods of the feed's node and watches them, until it cannot. `feeds` has the credentials of the last question;
/// each request is made with them.
pub(super) async fn watch(
    feed: ApiServerFeed,
    feeds: watch::Receiver<FeedAsk>,
    pace: Pace,
    shared: &Arc<Shared>,
) -> Failure {
    let mut schedule = Schedule::new(pace);
    let mut reader = Reader {
        feed,
        feeds,
        pace,
        shared,
        https: Https::default(),
        version: None,
        has_expired: false,
        gives_streams: true,
        unended: 0,
        initial: None,
        trouble: None,
    };
    reader.pause(schedule.first()).await;
    loop {
        let began = Instant::now();
        let (ended, lasted) = match reader.version.clone() {
            Some(version) => (reader.follow(&version).await.map(|()| End::Watched), began.elapsed()),
            None if reader.gives_streams => (reader.stream().await.map(|()| End::Watched), began.elapsed()),
            None => (reader.list().await.map(|()| End::Listed), Duration::ZERO),
        };
        let end = match ended {
            Ok(end) => end,
            Err(Interruption::Final(failure)) => return failure,
            Err(Interruption::Expired(why)) => {
                (reader.version, reader.has_expired) = (None, true);
                reader.note_trouble(&why);
                End::Expired
            }
            Err(Interruption::Later { after, why }) => {
                reader.note_trouble(&why);
                End::Failed { after }
            }
            Err(Interruption::Unstreamed) => {
                tracing::debug!("the API server gives no list in a watch: pods are listed in parts");
                reader.gives_streams = false;
                End::Unstreamed
            }
        };
        if let Some(pause) = schedule.after(end, lasted) {
            reader.pause(pause).await;
        }
    }
}

/// Reads the pods of one node.
struct Reader<'a> {
    feed: ApiServerFeed,
    feeds: watch::Receiver<FeedAsk>,
    pace: Pace,
    shared: &'a Arc<Shared>,
    https: Https,
    /// The version that was reached; `None` before a list is whole.
    version: Option<String>,
    /// Whether a version was too old once.
    has_expired: bool,
    /// Whether the server gives lists in watches, as far as is known.
    gives_streams: bool,
    /// How many such watches have ended before all pods had come, one after the other.
    unended: u32,
    /// The pods that have come of those that there were when the watch began; `None` once all have.
    initial: Option<Listed>,
    /// Since when it does not work, and why.
    trouble: Option<(Instant, String)>,
}

impl Reader<'_> {
    /// Reads all pods, part by part.
    async fn list(&mut self) -> Result<(), Interruption> {
        let mut listed = Listed::default();
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let target = self.list_target(&next);
            let page = timeout(self.pace.answer, self.page(&target, &mut listed)).await;
            let Ok(page) = page else { return Err(self.timed_out()) };
            let PageMetadata { resource_version, next: following } = page?;
            if following.is_empty() {
                if !is_id(&resource_version) {
                    return Err(Failure::from(ApiFailure::NoVersion).into());
                }
                self.shared.change(|store| store.replace_all(&listed.into_pods()));
                self.version = Some(resource_version);
                self.note_success();
                return Ok(());
            }
            next = following;
        }
        Err(Failure::from(ApiFailure::Endless).into())
    }

    /// Reads one part of the list, and what is around its pods.
    async fn page(&mut self, target: &str, listed: &mut Listed) -> Result<PageMetadata, Interruption> {
        let body = self.get("list", target).await?;
        let around = listed.read(body, |pod| pod.metadata.annotations.keep_mirrors()).await?;
        let page = serde_json::from_slice::<Page>(&around);
        page.map(|page| page.metadata).map_err(|_error| Failure::from(ApiFailure::NoVersion).into())
    }

    /// The first list may be as old as the server likes: what changes is sent after it, and a server need not read all pods of
    /// the cluster from its database for each node that starts. After a version that was too old, an older one is of no use.
    fn list_target(&self, next: &str) -> String {
        let position = match (next, self.has_expired) {
            ("", false) => String::from("&resourceVersion=0"),
            ("", true) => String::new(),
            (next, _) => format!("&continue={}", encoded(next)),
        };
        format!("{}&limit={PAGE}{position}", self.pods())
    }

    /// Takes what changes after that version, until the watch ends.
    async fn follow(&mut self, version: &str) -> Result<(), Interruption> {
        self.initial = None;
        self.watch(&format!("&resourceVersion={}", encoded(version))).await
    }

    /// Takes all pods and then what changes, until the watch ends. What is known stays until all have come. Like the first
    /// list, it may begin as long ago as the server likes.
    async fn stream(&mut self) -> Result<(), Interruption> {
        self.initial = Some(Listed::default());
        let position = if self.has_expired { "" } else { "&resourceVersion=0" };
        let parameters = format!("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan{position}");
        let ended = self.watch(&parameters).await;
        let is_whole = self.initial.take().is_none();
        match ended {
            // It does not know the parameters, or not yet: which servers and feature gates do, only they know.
            Err(Interruption::Final(Failure::Api(ApiFailure::Refused { status: 400 | 422, .. }))) => {
                Err(Interruption::Unstreamed)
            }
            Ok(()) if !is_whole => Err(self.note_unended(Failure::from(ApiFailure::Unended).into())),
            // A server whose etcd does not report the progress of watches (3.4.23, for one) fails every such watch so.
            Err(
                failed @ Interruption::Later {
                    why: Failure::Api(ApiFailure::WatchFailed { code: 500, .. }),
                    ..
                },
            ) if !is_whole => Err(self.note_unended(failed)),
            ended => ended,
        }
    }

    /// Counts a watch that has ended before all pods had come. Returns the reason, or that there is no list in a watch.
    fn note_unended(&mut self, why: Interruption) -> Interruption {
        self.unended += 1;
        if self.unended >= MOST_UNENDED { Interruption::Unstreamed } else { why }
    }

    /// Begins a watch, and takes what comes until it ends.
    async fn watch(&mut self, parameters: &str) -> Result<(), Interruption> {
        let watch_s = WATCH_S + Duration::from_secs(WATCH_S).mul_f64(fraction()).as_secs();
        let target = format!(
            "{}&watch=true&allowWatchBookmarks=true&timeoutSeconds={watch_s}{parameters}",
            self.pods()
        );
        let Ok(body) = timeout(self.pace.answer, self.get("watch", &target)).await else {
            return Err(self.timed_out());
        };
        let mut body = body?;
        let began = Instant::now();
        let end = began + Duration::from_secs(watch_s) + self.pace.margin;
        let mut lines = Lines::default();
        let mut initial_bytes = 0_usize;
        loop {
            let silence = if self.initial.is_some() { self.pace.answer } else { self.pace.silence };
            let whole_at = began + self.pace.whole;
            if self.initial.is_some() && (Instant::now() >= whole_at || initial_bytes > self.pace.whole_bytes)
            {
                tracing::debug!(initial_bytes, "the list in a watch does not end");
                self.https.close();
                return Err(Interruption::Unstreamed);
            }
            let end = if self.initial.is_some() { end.min(whole_at) } else { end };
            let silent_at = end.min(Instant::now() + silence);
            // One that begins may still fail at once, with a status of its own: it works when something has come, or after a while.
            let until = match self.trouble {
                Some(_) if self.initial.is_none() => silent_at.min(began + self.pace.lasting),
                _ => silent_at,
            };
            let Ok(frame) = timeout_at(until, body.frame()).await else {
                if self.initial.is_some() && until == whole_at {
                    continue;
                }
                if until < silent_at {
                    self.note_success();
                    continue;
                }
                // The other end may be gone without a word. Nothing is lost: the next watch begins where this one was.
                tracing::debug!("the watch of pods was silent, and starts again");
                self.https.close();
                return Ok(());
            };
            let Some(frame) = frame else {
                if self.initial.is_none() {
                    self.note_success();
                }
                return Ok(());
            };
            let frame = frame.map_err(|error| Failure::from(ConnectionError::from(error)))?;
            if let Some(data) = frame.data_ref() {
                if self.initial.is_some() {
                    initial_bytes = initial_bytes.saturating_add(data.len());
                }
                lines.add(data, |line| self.take(line))?;
            }
        }
    }

    /// Takes an event; `None` is one that is too large.
    fn take(&mut self, line: Option<&[u8]>) -> Result<(), Interruption> {
        let Some(line) = line else {
            match &mut self.initial {
                Some(initial) => initial.add(None),
                None => self.shared.change(Store::note_unreadable),
            }
            return Ok(());
        };
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let (event, version) = Event::read(line)?;
        if let Event::Failed { code, words } = event {
            return Err(failed(code, plain(&words)));
        }
        if let Some(initial) = self.initial.take() {
            return self.take_initial(initial, event, version);
        }
        match event {
            Event::Added(pod) | Event::Modified(pod) => self.shared.change(|store| store.put(&pod)),
            Event::Removed(uid) => self.shared.change(|store| store.remove(&uid)),
            // One that cannot be read must not hide the others; its cgroup is known all the same.
            Event::Unreadable(Some(uid)) => self.shared.change(|store| store.leave_out(&uid)),
            Event::Unreadable(None) => self.shared.change(Store::note_unreadable),
            Event::Bookmark { .. } | Event::Failed { .. } => {}
        }
        // It counts as reached once its event was taken.
        self.version = version.or(self.version.take());
        if self.trouble.is_some() {
            self.note_success();
        }
        Ok(())
    }

    /// Takes an event that comes before all pods have. No version is reached by it: only those of this watch are known then.
    fn take_initial(
        &mut self,
        mut initial: Listed,
        event: Event,
        version: Option<String>,
    ) -> Result<(), Interruption> {
        match event {
            Event::Added(pod) => initial.add(Some(*pod)),
            Event::Modified(pod) => {
                initial.remove(&pod.metadata.uid);
                initial.add(Some(*pod));
            }
            Event::Removed(uid) => initial.remove(&uid),
            Event::Unreadable(uid) => {
                if let Some(uid) = &uid {
                    initial.remove(uid);
                }
                initial.add(None);
            }
            Event::Bookmark { ends_initial: true } => {
                let Some(version) = version else { return Err(Failure::from(ApiFailure::NoVersion).into()) };
                self.shared.change(|store| store.replace_all(&initial.into_pods()));
                (self.version, self.unended) = (Some(version), 0);
                self.note_success();
                return Ok(());
            }
            // One that knows what was asked for sends none before.
            Event::Bookmark { ends_initial: false } => {
                self.https.close();
                return Err(Interruption::Unstreamed);
            }
            Event::Failed { .. } => {}
        }
        self.initial = Some(initial);
        Ok(())
    }

    /// The path of the node's pods, with its first parameter.
    fn pods(&self) -> String {
        let ApiServerFeed { https: _, base, node } = &self.feed;
        format!("{base}/api/v1/pods?fieldSelector={}", encoded(&format!("spec.nodeName={node}")))
    }

    /// The body of an answer that has what was asked for.
    async fn get(&mut self, verb: &'static str, target: &str) -> Result<Incoming, Interruption> {
        if let FeedAsk::ApiServer(newest) = &*self.feeds.borrow_and_update() {
            self.feed.clone_from(newest);
        }
        let (status, headers, body) = self.https.get(&self.feed.https, target).await?;
        if status == StatusCode::OK {
            return Ok(body);
        }
        let words = plain(&words(body).await);
        Err(refused(verb, status, words, after(status, &headers)))
    }

    /// Waits. If the server is away for too long meanwhile, says so.
    async fn pause(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        if let Some((since, why)) = &self.trouble {
            let is_known = self.shared.is_whole();
            let reported_at = if is_known { *since + self.pace.patience } else { *since };
            if reported_at <= until {
                sleep_until(reported_at).await;
                self.shared.set_trouble(Some(why.clone()));
            }
        }
        sleep_until(until).await;
    }

    fn note_trouble(&mut self, failure: &Failure) {
        let why = crate::chain(failure);
        tracing::debug!("the API server's pods are not read now: {why}");
        let since = self.trouble.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        self.trouble = Some((since, why));
    }

    fn note_success(&mut self) {
        self.trouble = None;
        self.shared.set_trouble(None);
    }

    fn timed_out(&mut self) -> Interruption {
        self.https.close();
        Failure::from(ApiFailure::TimedOut { timeout_s: self.pace.answer.as_secs() }).into()
    }
}

/// How long the server wants to be left alone.
fn after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let is_asked = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    is_asked.then(|| retry_after(headers, SystemTime::now())).flatten()
}

/// Whether the same request would be refused again.
fn is_final(status: StatusCode) -> bool {
    let is_of_now = matches!(
        status,
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT | StatusCode::GONE | StatusCode::TOO_MANY_REQUESTS
    );
    !status.is_server_error() && !is_of_now
}

/// What an error event in a watch means.
fn failed(code: u16, words: String) -> Interruption {
    match StatusCode::from_u16(code) {
        Ok(status) if is_final(status) => refused("watch", status, words, None),
        Ok(StatusCode::GONE) => Interruption::Expired(ApiFailure::WatchFailed { code, words }.into()),
        _ => Failure::from(ApiFailure::WatchFailed { code, words }).into(),
    }
}

fn refused(verb: &'static str, status: StatusCode, words: String, after: Option<Duration>) -> Interruption {
    let hint = match (status, verb) {
        (StatusCode::UNAUTHORIZED, _) => {
            " (it does not accept these credentials; a token or a certificate may have expired)"
        }
        (StatusCode::FORBIDDEN, _) => {
            " (these credentials need the verbs `list` and `watch` on the resource `pods` in all namespaces)"
        }
        (StatusCode::NOT_FOUND, _) => " (what answers there may not be an API server: check `server`)",
        _ => "",
    };
    let failure: Failure = ApiFailure::Refused { verb, status: status.as_u16(), hint, words }.into();
    match status {
        StatusCode::GONE => Interruption::Expired(failure),
        status if is_final(status) => Interruption::Final(failure),
        _ => Interruption::Later { after, why: failure },
    }
}

/// A text as a part of a URL's query.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
