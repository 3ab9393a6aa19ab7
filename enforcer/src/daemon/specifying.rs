//! Asks for the specs of a kubelet's pods: at the first source that works, and again at a better one while that does not.

mod ladder;

use std::{future, io, path::PathBuf};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use self::ladder::{Ladder, Step};
use super::desired::Desired;
use crate::{
    config::{Config, PodSource},
    source::SourceName,
    specs::{CredentialsError, Feed, Place, SpecError, Specs, Update},
    threads,
};

/// Where a cluster mounts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long a source is waited for while it has nothing new, in milliseconds.
const WAIT_MS: u64 = 30_000;

/// What is known of specs now.
#[derive(Debug)]
pub(super) enum SpecNews {
    /// A source has answered.
    Answered(SourceName, Update),
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
}

/// The sources of specs, of which one is asked at a time.
pub(super) struct Specifying {
    looks: watch::Sender<u64>,
    news: mpsc::Receiver<SpecNews>,
}

/// One source, and what is known of it.
struct Rung {
    source: SourceName,
    specs: Specs,
    /// The revision that it gave last.
    after: Option<u64>,
    /// Why it did not answer, since a source has.
    why: Option<String>,
}

impl Specifying {
    /// Starts to ask the sources that are configured; `None` if there is none. `node` is the node's name. Must be called
    /// inside a tokio runtime.
    pub(super) fn start(config: &Config, node: &str) -> io::Result<Option<Self>> {
        let sources: &[SourceName] = match config.pod_source {
            PodSource::Static => return Ok(None),
            PodSource::Auto => &[SourceName::PODS_API, SourceName::KUBELET],
            PodSource::PodsApi => &[SourceName::PODS_API],
            PodSource::Kubelet => &[SourceName::KUBELET],
        };
        let rung = |source: &SourceName| {
            Ok(Rung { source: *source, specs: Specs::start()?, after: None, why: None })
        };
        let rungs = sources.iter().map(rung).collect::<io::Result<Vec<_>>>()?;
        let place = Place {
            kubelet_root: config.kubelet_root_dir.clone(),
            kubelet_port: config.kubelet_port,
            kubeconfig: config.kubeconfig.clone(),
            service_account: PathBuf::from(SERVICE_ACCOUNT),
        };
        let (looks, look) = watch::channel(0);
        let (sender, news) = mpsc::channel(1);
        tokio::spawn(run(rungs, (place, node.to_owned()), look, sender));
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
    mut rungs: Vec<Rung>,
    (place, node): (Place, String),
    mut looks: watch::Receiver<u64>,
    sender: mpsc::Sender<SpecNews>,
) {
    let mut ladder = Ladder::new(rungs.len(), Instant::now());
    loop {
        let rung = match ladder.step(Instant::now()) {
            Step::Ask(rung) => rung,
            Step::Wait(until) => {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = sender.closed() => return,
                }
                continue;
            }
        };
        let Some(asked) = rungs.get_mut(rung) else { return };
        let look = *looks.borrow_and_update();
        let answer = tokio::select! {
            answer = ask(asked, &place, &node, look) => answer,
            // What it answers to the former question may be from before the change.
            changed = looks.changed(), if asked.source == SourceName::KUBELET => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = sender.closed() => return,
        };
        let is_other = ladder.answered(rung, answer.is_ok(), Instant::now());
        let news = match answer {
            Ok(update) => {
                asked.after = update.change.as_ref().map(|(revision, _)| *revision).or(asked.after);
                let source = asked.source;
                for (number, other) in rungs.iter_mut().enumerate() {
                    other.why = None;
                    // What it had is no longer what is known.
                    if is_other && number != rung {
                        other.after = None;
                    }
                }
                SpecNews::Answered(source, update)
            }
            Err(refusal) => {
                let why = crate::chain(&refusal);
                tracing::debug!(source = %asked.source, "pods' specs are not read there: {why}");
                (asked.after, asked.why) = (None, Some(why));
                let reason = |rung: &Rung| Some(format!("{}: {}", rung.source, rung.why.as_ref()?));
                match rungs.iter().map(reason).collect::<Option<Vec<_>>>() {
                    Some(reasons) => SpecNews::NoneAnswers(reasons.join("; ")),
                    None => continue,
                }
            }
        };
        if sender.send(news).await.is_err() {
            return;
        }
    }
}

async fn ask(rung: &Rung, place: &Place, node: &str, look: u64) -> Result<Update, SpecRefusal> {
    let (place, node) = (place.clone(), node.to_owned());
    let feed: Feed = match rung.source {
        SourceName::KUBELET => threads::blocking(move || place.kubelet(&node)).await?,
        _ => place.pods_api(),
    };
    Ok(rung.specs.next(feed, rung.after, look, WAIT_MS).await?)
}
