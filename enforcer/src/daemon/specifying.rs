//! Asks for the specs of a kubelet's pods: at the first source that works, and again at a better one while that does not.

mod choice;
mod node_name;
mod running_kubelet;

use std::{
    future, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use self::choice::{SourceChoice, Step};
pub(super) use self::{
    node_name::{FILE as NAME_FILE, NodeName},
    running_kubelet::RunningKubelet,
};
use super::desired::Desired;
use crate::{
    config::{Config, PodSource},
    source::SourceName,
    specs::{
        ApiServerFeed, ClusterAccess, CredentialsError, CredentialsHang, CredentialsReader, Feed,
        KeptCredentials, KubeletFolders, Look, SpecError, Specs, Update,
    },
};

/// Where a cluster mounts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The variable in which a cluster gives a pod the name of its node, where the pod asks for that.
const NODE_NAME: &str = "NODE_NAME";

/// How long a source is waited for while it has nothing new, in milliseconds.
const WAIT_MS: u64 = 30_000;

/// The same for a source that has answered nothing yet, in milliseconds.
const FIRST_WAIT_MS: u64 = 10_000;

/// How old credentials may be with which a source is asked that has answered to them.
const FRESH: Duration = Duration::from_mins(2);

/// What is known of specs now.
#[derive(Debug)]
pub(super) enum SpecNews {
    /// A source has answered.
    Answered {
        /// Which one.
        source: SourceName,
        /// The node that it was asked for; `None` if it has the pods of no other.
        node: Option<String>,
        /// What has changed.
        update: Update,
    },
    /// That source does not answer; another is asked.
    Failed(SourceName),
    /// No source answers; why each does not.
    NoneAnswers(String),
}

/// Why a source says nothing.
#[derive(Debug, thiserror::Error)]
enum SpecRefusal {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Source(#[from] SpecError),
    #[error(transparent)]
    Hang(#[from] CredentialsHang),
}

/// The sources of specs, of which one is asked at a time.
pub(super) struct Specifying {
    looks: watch::Sender<u64>,
    news: mpsc::Receiver<SpecNews>,
}

/// Where the kubelet and the API server are, and who this is to them. The daemon has one: clones know the same of the node's
/// name and the credentials.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// With the kubelet's usual folders, which [`Self::place_now`] replaces.
    place: ClusterAccess,
    kubelet: RunningKubelet,
    name: NodeName,
    kept: Arc<KeptFeeds>,
}

/// What the credentials gave last. Each is locked while they are read, from a disk that may hang.
#[derive(Debug, Default)]
struct KeptFeeds {
    kubelet: Mutex<KeptCredentials<Feed>>,
    api_server: Mutex<KeptCredentials<ApiServerFeed>>,
}

impl Access {
    /// `host` is this machine's name.
    pub(super) fn new(config: &Config, host: &str) -> Self {
        let kubelet = RunningKubelet::new(config.kubelet_root_dir.as_deref());
        let name = NodeName::new(config.node_name.as_deref(), variable(NODE_NAME), host, kubelet.clone());
        let place = ClusterAccess {
            kubelet: KubeletFolders::default(),
            kubelet_port: config.kubelet_port,
            kubeconfig: config.kubeconfig.clone(),
            service_account: PathBuf::from(SERVICE_ACCOUNT),
            in_cluster: variable("KUBERNETES_SERVICE_HOST").zip(variable("KUBERNETES_SERVICE_PORT")),
        };
        Self { place, kubelet, name, kept: Arc::default() }
    }

    /// Takes up what the kubelet called its host when an earlier daemon knew it, and keeps that from now on. The state
    /// directory must be this daemon's.
    pub(super) fn remember(&self, state_dir: &Path) {
        self.name.remember(state_dir);
    }

    /// What the node is called, at any time.
    pub(super) fn name(&self) -> NodeName {
        self.name.clone()
    }

    /// What the running kubelet shows, at any time.
    pub(super) fn running_kubelet(&self) -> RunningKubelet {
        self.kubelet.clone()
    }

    fn place(&self, kubelet: KubeletFolders) -> ClusterAccess {
        ClusterAccess { kubelet, ..self.place.clone() }
    }

    /// With the running kubelet's folders. May read `/proc`, and the files that have its flags.
    fn place_now(&self) -> ClusterAccess {
        self.place(self.kubelet.folders(std::time::Instant::now()))
    }

    /// The kubelet's HTTPS server, by what the kubelet calls its host now.
    pub(super) fn kubelet(&self) -> Result<Feed, CredentialsError> {
        let name = self.name.by_kubelet();
        self.place_now().kubelet(&name, &mut lock(&self.kept.kubelet))
    }

    /// The API server, for the pods of the node as it is called now.
    pub(super) fn api_server(&self) -> Result<ApiServerFeed, CredentialsError> {
        let name = self.name.in_cluster().name;
        self.place.api_server(&name, &mut lock(&self.kept.api_server))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One source, and what is known of it.
struct SpecSource {
    source: SourceName,
    specs: Specs,
    /// Whether its process may be there, and read the source although it is not asked.
    is_read: bool,
    /// The revision that it gave last.
    after: Option<u64>,
    /// Why it did not answer, since a source has.
    why: Option<String>,
    /// With what it was asked last, and when that was read.
    feed: Option<(Feed, Instant)>,
}

impl SpecSource {
    /// What it may be asked with again, without a look at the disk.
    fn known_feed(&self) -> Option<Feed> {
        let (feed, read_at) = self.feed.as_ref()?;
        (self.after.is_some() && read_at.elapsed() < FRESH).then(|| feed.clone())
    }
}

impl Specifying {
    /// Starts to ask the sources that are configured; `None` if there is none. `concern` says whether a threshold may be
    /// crossed. Must be called inside a tokio runtime.
    pub(super) fn start(
        config: &Config,
        access: &Access,
        concern: watch::Receiver<bool>,
    ) -> io::Result<Option<Self>> {
        let sources: &[SourceName] = match config.pod_source {
            PodSource::Static => return Ok(None),
            PodSource::Auto => &[SourceName::PODS_API, SourceName::KUBELET, SourceName::API_SERVER],
            PodSource::PodsApi => &[SourceName::PODS_API],
            PodSource::Kubelet => &[SourceName::KUBELET],
            PodSource::ApiServer => &[SourceName::API_SERVER],
        };
        let start = |source: &SourceName| {
            let specs = Specs::start()?;
            Ok(SpecSource { source: *source, specs, is_read: false, after: None, why: None, feed: None })
        };
        let known = sources.iter().map(start).collect::<io::Result<Vec<_>>>()?;
        let (looks, look) = watch::channel(0);
        let (sender, news) = mpsc::channel(1);
        let feeds = Feeds { reader: reader(access.clone())?, access: access.clone() };
        tokio::spawn(run(known, feeds, (look, concern), sender));
        Ok(Some(Self { looks, news }))
    }

    /// Waits for what a source says. Safe to cancel.
    async fn next(&mut self) -> SpecNews {
        match self.news.recv().await {
            Some(news) => news,
            // The task ends after this receiver.
            None => future::pending().await,
        }
    }
}

/// The node's name, as the configuration or the pod's manifest gives it.
pub(super) fn given_name(config: &Config) -> Option<String> {
    config.node_name.clone().or_else(|| variable(NODE_NAME))
}

/// A variable of this process's environment that has a value.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Has a source that is not watched read at once, if the pods' cgroups have changed.
pub(super) fn look(specifying: Option<&Specifying>, desired: &Desired) {
    if let (Some(specifying), Some(state)) = (specifying, desired.placing_state()) {
        specifying.looks.send_if_modified(|look| std::mem::replace(look, state) != state);
    }
}

/// Waits for what a source of specs says; for ever where there is none.
pub(super) async fn next(specifying: &mut Option<Specifying>) -> SpecNews {
    match specifying {
        Some(specifying) => specifying.next().await,
        None => future::pending().await,
    }
}

async fn run(
    mut known: Vec<SpecSource>,
    feeds: Feeds,
    (mut looks, mut concern): (watch::Receiver<u64>, watch::Receiver<bool>),
    sender: mpsc::Sender<SpecNews>,
) {
    let mut choice = SourceChoice::new(known.len(), Instant::now());
    loop {
        let number = match choice.step(Instant::now()) {
            Step::Ask(number) => number,
            Step::Wait(until) => {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = sender.closed() => return,
                }
                continue;
            }
        };
        let Some(asked) = known.get_mut(number) else { return };
        let look = Look { state: *looks.borrow_and_update(), is_of_concern: *concern.borrow_and_update() };
        let feed = match (asked.known_feed(), asked.source) {
            (Some(known), _) => Ok(known),
            (None, source) => {
                let read = feeds.read(source).await;
                asked.feed = read.as_ref().ok().map(|feed| (feed.clone(), Instant::now()));
                read
            }
        };
        let node = match &feed {
            Ok(Feed::ApiServer(feed)) => Some(feed.node.clone()),
            Ok(Feed::PodsApi(_) | Feed::Kubelet(_)) | Err(_) => None,
        };
        let answer = match feed {
            Err(refusal) => Err(refusal),
            Ok(feed) => {
                // One that has pods has them at once.
                asked.is_read = true;
                let wait_ms = if asked.after.is_some() { WAIT_MS } else { FIRST_WAIT_MS };
                tokio::select! {
                    answer = asked.specs.next(feed, asked.after, look, wait_ms) => answer.map_err(Into::into),
                    // What it answers to the former question may be from before the change.
                    changed = either_changed(&mut looks, &mut concern), if asked.source == SourceName::KUBELET => {
                        if changed.is_err() {
                            return;
                        }
                        continue;
                    }
                    () = sender.closed() => return,
                }
            }
        };
        let is_other = choice.answered(number, answer.is_ok(), Instant::now());
        let news = match answer {
            Ok(update) => {
                asked.after = update.change.as_ref().map(|(revision, _)| *revision).or(asked.after);
                let source = asked.source;
                for (other_number, other) in known.iter_mut().enumerate() {
                    other.why = None;
                    // What it had is no longer what is known.
                    if is_other && other_number != number && std::mem::take(&mut other.is_read) {
                        other.after = None;
                        other.specs.end().await;
                    }
                }
                SpecNews::Answered { source, node, update }
            }
            Err(refusal) => {
                let why = crate::chain(&refusal);
                let asked_source = asked.source;
                tracing::debug!(source = %asked_source, "pods' specs are not read there: {why}");
                (asked.after, asked.why) = (None, Some(why));
                // The process of another source has ended by itself.
                asked.is_read &= asked.source == SourceName::API_SERVER;
                let reason = |of: &SpecSource| Some(format!("{}: {}", of.source, of.why.as_ref()?));
                match known.iter().map(reason).collect::<Option<Vec<_>>>() {
                    Some(reasons) => SpecNews::NoneAnswers(reasons.join("; ")),
                    None => SpecNews::Failed(asked_source),
                }
            }
        };
        if sender.send(news).await.is_err() {
            return;
        }
    }
}

async fn either_changed(
    looks: &mut watch::Receiver<u64>,
    concern: &mut watch::Receiver<bool>,
) -> Result<(), watch::error::RecvError> {
    tokio::select! {
        changed = looks.changed() => changed,
        changed = concern.changed() => changed,
    }
}

/// What each source is asked with.
struct Feeds {
    reader: FeedReader,
    access: Access,
}

impl Feeds {
    async fn read(&self, source: SourceName) -> Result<Feed, SpecRefusal> {
        match self.reader.read(source).await {
            Ok(read) => read.map_err(SpecRefusal::from),
            // Credentials are not needed there: a disk that hangs hides no pod.
            Err(_) if source == SourceName::PODS_API => {
                Ok(self.access.place(self.access.kubelet.last_folders()).pods_api())
            }
            Err(hang) => Err(hang.into()),
        }
    }
}

/// Reads what it takes to ask a source: the kubelet's flags, and credentials.
type FeedReader = CredentialsReader<SourceName, Feed, CredentialsError>;

fn reader(access: Access) -> io::Result<FeedReader> {
    CredentialsReader::start(move |source| match source {
        SourceName::API_SERVER => access.api_server().map(|feed| Feed::ApiServer(Box::new(feed))),
        SourceName::PODS_API => Ok(access.place_now().pods_api()),
        _ => access.kubelet(),
    })
}
