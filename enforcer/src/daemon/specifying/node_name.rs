//! What this node is called: in the cluster, and by its kubelet.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::config::{KubeletHostname, kubelet_hostname};

const PROC: &str = "/proc";

/// For how long the kubelet's flags count as read: another kubelet may have come since.
const FLAGS_LAST: Duration = Duration::from_secs(30);

/// This node's name, at any time. Clones remember together what the kubelet's flags have said.
#[derive(Clone)]
pub(in crate::daemon) struct NodeName {
    /// The configured name, or that which the cluster gives.
    given: Option<String>,
    /// This machine's, as a kubelet takes it.
    host: String,
    look: Arc<dyn Fn() -> KubeletHostname + Send + Sync>,
    /// What the kubelet's flags have said, and when they were read.
    last: Arc<Mutex<Option<(Instant, KubeletHostname)>>>,
}

impl fmt::Debug for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("NodeName").field("given", &self.given).finish_non_exhaustive()
    }
}

impl NodeName {
    /// The configured name comes before that which the cluster gives. `host` is this machine's.
    pub(super) fn new(configured: Option<&str>, given: Option<String>, host: &str) -> Self {
        Self::with(configured, given, host, Arc::new(|| kubelet_hostname(Path::new(PROC))))
    }

    fn with(
        configured: Option<&str>,
        given: Option<String>,
        host: &str,
        look: Arc<dyn Fn() -> KubeletHostname + Send + Sync>,
    ) -> Self {
        Self {
            given: configured.map(str::to_owned).or(given),
            host: host.trim().to_lowercase(),
            look,
            last: Arc::default(),
        }
    }

    /// The node's name in the cluster: as it is given, or what the kubelet calls its host. May read `/proc`.
    pub(in crate::daemon) fn in_cluster(&self) -> String {
        self.given.clone().unwrap_or_else(|| self.by_kubelet())
    }

    /// What the kubelet calls its host, which its certificate is for: by its flag, or else this machine's name. May read
    /// `/proc`.
    pub(in crate::daemon) fn by_kubelet(&self) -> String {
        self.by_kubelet_at(Instant::now())
    }

    fn by_kubelet_at(&self, now: Instant) -> String {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(read, _)| now.saturating_duration_since(*read) >= FLAGS_LAST) {
            let found = match ((self.look)(), last.take()) {
                // While the kubelet is restarted, nothing shows its flags.
                (KubeletHostname::Unknown, Some((_, before))) => before,
                (found, _) => found,
            };
            *last = Some((now, found));
        }
        match last.as_ref() {
            Some((_, KubeletHostname::Overridden(name))) => name.clone(),
            Some((_, KubeletHostname::Own | KubeletHostname::Unknown)) | None => self.host.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node on the machine `Host`, and what the kubelet's flags say.
    fn node(configured: Option<&str>, given: Option<&str>) -> (NodeName, Arc<Mutex<KubeletHostname>>) {
        let says = Arc::new(Mutex::new(KubeletHostname::Unknown));
        let shown = Arc::clone(&says);
        let look = Arc::new(move || shown.lock().unwrap().clone());
        (NodeName::with(configured, given.map(str::to_owned), "Host.Example", look), says)
    }

    fn overridden(name: &str) -> KubeletHostname {
        KubeletHostname::Overridden(name.to_owned())
    }

    #[test]
    fn the_nodes_name_is_the_kubelets_or_the_machines_unless_it_is_given() {
        for (configured, given, says, named) in [
            (Some("set"), Some("given"), overridden("flag"), "set"),
            (None, Some("given"), overridden("flag"), "given"),
            (None, None, overridden("flag"), "flag"),
            (None, None, KubeletHostname::Own, "host.example"),
            (None, None, KubeletHostname::Unknown, "host.example"),
        ] {
            let (name, shown) = node(configured, given);
            *shown.lock().unwrap() = says.clone();
            assert_eq!(name.in_cluster(), named, "{configured:?} {given:?} {says:?}");
        }
    }

    /// Its certificate is for that, whatever the cluster calls the node.
    #[test]
    fn a_given_name_is_not_what_the_kubelet_calls_its_host() {
        let (name, shown) = node(Some("set"), None);
        *shown.lock().unwrap() = overridden("flag");
        assert_eq!(name.by_kubelet(), "flag");
    }

    #[test]
    fn a_kubelet_that_comes_later_gives_its_name_and_one_that_is_away_keeps_it() {
        let (name, shown) = node(None, None);
        let begin = Instant::now();
        let mut passes = 0_u32;
        let mut next = |says: KubeletHostname| {
            *shown.lock().unwrap() = says;
            passes += 1;
            name.by_kubelet_at(begin + passes * FLAGS_LAST)
        };
        assert_eq!(next(KubeletHostname::Unknown), "host.example");
        assert_eq!(next(overridden("flag")), "flag");
        assert_eq!(next(KubeletHostname::Unknown), "flag", "it is restarted");
        assert_eq!(next(overridden("other")), "other");
        assert_eq!(next(KubeletHostname::Own), "host.example");
    }

    #[test]
    fn the_kubelets_flags_are_not_read_again_at_once() {
        let (name, shown) = node(None, None);
        let begin = Instant::now();
        *shown.lock().unwrap() = overridden("flag");
        assert_eq!(name.by_kubelet_at(begin), "flag");
        *shown.lock().unwrap() = overridden("other");
        let before = begin + FLAGS_LAST.saturating_sub(Duration::from_millis(1));
        assert_eq!([before, begin + FLAGS_LAST].map(|now| name.by_kubelet_at(now)), ["flag", "other"]);
    }
}
