//! The kubelet's hard threshold of memory: from its flags and files, and where those cannot be read, from the kubelet itself.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::specifying::{Access, RunningKubelet};
use crate::{
    config::{Config, KubeletMemory, KubeletUnknown, PodSource, kubelet_memory},
    specs::{Feed, KubeletConfigz, KubeletHard},
};

const PROC: &str = "/proc";

/// Reads it. Clones remember the last answer together.
#[derive(Clone, Debug)]
pub(super) struct KubeletThreshold {
    /// Below its root directory its file is looked for if no kubelet runs.
    kubelet: RunningKubelet,
    /// What a kubelet's flags and files said last while it ran.
    seen: Arc<Mutex<Option<KubeletMemory>>>,
    /// The kubelet's own server; `None` if it is not to be asked.
    server: Option<Arc<Server>>,
}

#[derive(Debug)]
struct Server {
    access: Access,
    configz: KubeletConfigz,
    last: Mutex<Last>,
    /// Held while it is asked.
    asking: Mutex<()>,
}

/// What the kubelet has answered.
#[derive(Clone, Debug, Default)]
struct Last {
    /// When that was.
    answered: Option<Instant>,
    /// The last answer, which stays if a later question fails: a threshold that was known is not to be taken for unknown.
    known: Option<KubeletMemory>,
    /// Why there was none.
    why: String,
}

impl KubeletThreshold {
    /// The kubelet's server is asked where its pods may be read there.
    pub(super) fn new(config: &Config, access: &Access) -> Self {
        let may_ask = matches!(config.pod_source, PodSource::Auto | PodSource::Kubelet);
        let start = || {
            KubeletConfigz::start()
                .inspect_err(|error| tracing::warn!("the kubelet's configz endpoint is not asked: {error}"))
                .ok()
        };
        let server = may_ask.then(start).flatten().map(|configz| {
            let access = access.clone();
            Arc::new(Server { access, configz, last: Mutex::default(), asking: Mutex::default() })
        });
        Self { server, ..Self::of_files(access) }
    }

    /// One that does not ask the kubelet.
    pub(super) fn of_files(access: &Access) -> Self {
        Self { kubelet: access.running_kubelet(), seen: Arc::default(), server: None }
    }

    /// Reads where the kubelet's pods and its runtime are, which others take from what is known.
    pub(super) fn look_for_places(&self) {
        if let Err(unknown) = self.kubelet.places() {
            let why = crate::chain(&unknown);
            tracing::debug!(
                "where the kubelet's pods and its container runtime are is not known anew: {why}"
            );
        }
    }

    /// What its flags and files say, or said while it ran. Waits for no other process.
    pub(super) fn local(&self) -> Result<KubeletMemory, KubeletUnknown> {
        let latest = self.kubelet.process(Instant::now())?;
        // Also while a kubelet runs: others take what was read here.
        let folders = self.kubelet.folders(Instant::now());
        let runs = latest.is_some();
        let read = kubelet_memory(latest, Path::new(PROC), &folders.root);
        remembered(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner), runs, read)
    }

    /// What its flags and files say, or else the kubelet, as it did at most `age` ago. Waits for it up to 15 s, and must not be
    /// called inside an async runtime.
    pub(super) fn read(&self, age: Duration) -> Result<KubeletMemory, KubeletUnknown> {
        match (self.local(), &self.server) {
            (Err(unknown), Some(server)) => {
                server.read(age).map_err(|why| KubeletUnknown::Unanswered { unknown: Box::new(unknown), why })
            }
            (read, _) => read,
        }
    }
}

/// What was read of a kubelet that `runs`, or else what is known of one that ran: a reload while it is restarted must not take
/// a default for what its flags say. Without either it is what the usual file says.
fn remembered(
    seen: &mut Option<KubeletMemory>,
    runs: bool,
    read: Result<KubeletMemory, KubeletUnknown>,
) -> Result<KubeletMemory, KubeletUnknown> {
    match (runs, &read, &*seen) {
        (true, Ok(known), _) => *seen = Some(known.clone()),
        (false, _, Some(known)) => {
            let origin = format!("{}, as it was while the kubelet ran", known.origin);
            return Ok(KubeletMemory { origin, ..known.clone() });
        }
        (true, Err(_), _) | (false, _, None) => {}
    }
    read
}

impl Server {
    fn read(&self, age: Duration) -> Result<KubeletMemory, String> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last().answered.is_none_or(|answered| answered.elapsed() >= age) {
            // One at a time. Where another's question hangs, on the disk of the credentials, the last answer has to do.
            if let Ok(_asking) = self.asking.try_lock() {
                let answer = self.ask();
                last().take(answer);
            }
        }
        last().answer()
    }

    fn ask(&self) -> Result<KubeletMemory, String> {
        let feed = self.access.kubelet().map_err(|error| crate::chain(&error))?;
        let Feed::Kubelet(feed) = feed else { return Err(String::from("it has no HTTPS server")) };
        let KubeletHard { is_set, memory_available, merges_defaults } =
            self.configz.ask(&feed).map_err(|error| crate::chain(&error))?;
        KubeletMemory::of_configz(is_set, memory_available.as_deref(), merges_defaults)
            .map_err(|error| crate::chain(&error))
    }
}

impl Last {
    fn take(&mut self, answer: Result<KubeletMemory, String>) {
        match answer {
            Ok(known) => {
                *self = Self { answered: Some(Instant::now()), known: Some(known), why: String::new() };
            }
            Err(why) => self.why = why,
        }
    }

    fn answer(&self) -> Result<KubeletMemory, String> {
        let KubeletMemory { hard, origin } = self.known.clone().ok_or_else(|| self.why.clone())?;
        let origin = if self.why.is_empty() { origin } else { format!("{origin}, as it answered last") };
        Ok(KubeletMemory { hard, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a reload while the kubelet is restarted would lower the threshold.
    #[test]
    fn an_answer_stays_known_when_the_kubelet_is_away() {
        let mut last = Last::default();
        last.take(Err(String::from("refused")));
        assert_eq!(last.answer(), Err(String::from("refused")));
        let known = KubeletMemory::of_configz(true, Some("1Gi"), false).unwrap();
        last.take(Ok(known.clone()));
        assert_eq!(last.answer(), Ok(known.clone()));
        last.take(Err(String::from("refused")));
        let after = last.answer().unwrap();
        assert_eq!(after.hard, known.hard);
        assert_eq!(after.origin, "its configz endpoint, as it answered last");
        let other = KubeletMemory::of_configz(true, Some("2Gi"), false).unwrap();
        last.take(Ok(other.clone()));
        assert_eq!(last.answer(), Ok(other));
    }

    #[test]
    fn what_a_kubelet_that_ran_has_said_holds_while_it_is_away() {
        let of = |hard: &str| KubeletMemory::of_configz(true, Some(hard), false).unwrap();
        let mut seen = None;
        // The file of a kubelet that this daemon has not seen.
        assert_eq!(remembered(&mut seen, false, Ok(of("1Gi"))).unwrap(), of("1Gi"));
        assert_eq!(remembered(&mut seen, true, Ok(of("500Mi"))).unwrap(), of("500Mi"));
        for read in [Ok(of("100Mi")), Err(KubeletUnknown::Hidden { program: String::from("k3s"), pid: 7 })] {
            let known = remembered(&mut seen, false, read).unwrap();
            assert_eq!(known.hard, of("500Mi").hard);
            assert!(known.origin.ends_with(", as it was while the kubelet ran"), "{}", known.origin);
        }
        let hidden = Err(KubeletUnknown::Hidden { program: String::from("k3s"), pid: 7 });
        assert!(remembered(&mut seen, true, hidden).is_err(), "another kubelet says nothing");
        assert_eq!(remembered(&mut seen, true, Ok(of("2Gi"))).unwrap(), of("2Gi"));
    }

    #[test]
    fn the_kubelet_is_asked_only_where_its_pods_may_be_read_there() {
        for (source, asks) in [
            (PodSource::Auto, true),
            (PodSource::Kubelet, true),
            (PodSource::PodsApi, false),
            (PodSource::ApiServer, false),
            (PodSource::Static, false),
        ] {
            let config = Config { pod_source: source, ..Config::default() };
            assert_eq!(
                KubeletThreshold::new(&config, &Access::new(&config, "host")).server.is_some(),
                asks,
                "{source:?}"
            );
        }
    }
}
