//! The sources of the metrics, and the TCP address that serves them beside the observe socket.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::watch;

use super::{
    emit,
    host::Host,
    lock,
    ranking::Ranks,
    recording::Recording,
    system::{self, System},
    ticks::Ticks,
};
use crate::{
    cgroup::{self, CgroupDir, Members},
    config::{Config, MemoryAvailableSource, MetricsTls},
    evict::{Candidate, Observer, Reflex},
    journal::{Journal, Load},
    logging,
    metrics::{
        self, Counts, Gauges, Headroom, Level, NextVictim, Pressure, Process, Resource, SinkState, Slice,
    },
    model::{CgroupPath, QosClass},
    policy::{
        name,
        threshold::{Signal, Threshold},
    },
    recorder::Asker,
    sense::{Available, PROC_MEMINFO},
    serve::{Doctor, Hosts, MetricsFiles, MetricsListener, Scrape, SecureMetrics},
    sink::{Healths, Kind},
};

/// How long a predecessor's process, which has the listener too, may take to end before that is a failure.
const PREDECESSOR: Duration = Duration::from_secs(3);

/// The pause between attempts meanwhile.
const BETWEEN: Duration = Duration::from_millis(20);

/// How long after a failed bind the next one comes.
const RETRY: Duration = Duration::from_secs(10);

/// The slice of the system's services, where systemd made one.
const SYSTEM_SLICE: &str = "/system.slice";

/// The `what` of the degradation while the address cannot be bound.
const LISTEN: &str = "metricsListen";

/// The `what` of the degradation while nobody can be served over TLS.
const TLS: &str = "metricsTLS";

/// The sources of all metrics.
#[derive(Clone, Debug)]
pub(super) struct Metering(Arc<Sources>);

#[derive(Debug)]
struct Sources {
    journal: Journal,
    counts: Counts,
    healths: Healths,
    reflex: Observer,
    ranks: Ranks,
    recorder: Option<Asker>,
    programs_attached: u64,
    memory_bytes: u64,
    slices: Vec<(Slice, CgroupPath)>,
    system: System,
    followed: Mutex<Followed>,
}

/// The parts of the configuration in force that metrics show.
#[derive(Clone, Debug)]
struct Followed {
    hash: String,
    mode: String,
    thresholds: Vec<Threshold>,
    source: MemoryAvailableSource,
    names_pods: bool,
}

impl Followed {
    fn of(config: &Config) -> Self {
        Self {
            hash: config.hash(),
            mode: config.mode.to_string(),
            thresholds: config.settings.eviction.thresholds.clone(),
            source: config.memory_available_source,
            names_pods: config.metrics_pod_names,
        }
    }
}

impl Metering {
    /// Builds the metrics of this host and these parts of the daemon; serves them on a TCP address, if one is
    /// configured, until `stopping` becomes true.
    pub(super) fn start(
        config: &Config,
        (host, doctor, members): (&Host, &Doctor, Members),
        (journal, counts, healths): (&Journal, &Counts, &Healths),
        (reflex, recording): (&Reflex, &Recording),
        (ticks, stopping): (&Ticks, &watch::Receiver<bool>),
    ) -> Self {
        let (root, driver) = (&config.settings.cgroup_root, config.settings.cgroup_driver);
        let kubepods = name::kubepods(root, driver);
        let mut slices = vec![
            (Slice::Burstable, name::qos(&kubepods, QosClass::Burstable, driver)),
            (Slice::BestEffort, name::qos(&kubepods, QosClass::BestEffort, driver)),
            (Slice::Kubepods, kubepods),
        ];
        slices.extend(CgroupPath::parse(SYSTEM_SLICE).ok().map(|path| (Slice::System, path)));
        let system = System::new(config, &host.node, members);
        system.watch(journal, ticks.clone(), stopping.clone());
        let metering = Self(Arc::new(Sources {
            journal: journal.clone(),
            counts: counts.clone(),
            healths: healths.clone(),
            reflex: reflex.observer(),
            ranks: recording.ranks(),
            recorder: recording.asker(),
            programs_attached: u64::try_from(doctor.programs.attached.len()).unwrap_or(u64::MAX),
            memory_bytes: host.node.memory_bytes,
            slices,
            system,
            followed: Mutex::new(Followed::of(config)),
        }));
        metering.listen(config, &host.machine_name, stopping.clone());
        metering
    }

    /// Applies another configuration.
    pub(super) fn configure(&self, config: &Config) {
        *lock(&self.0.followed) = Followed::of(config);
        self.0.system.configure(config);
    }

    /// Returns a handle that writes the metrics on request.
    pub(super) fn scrape(&self) -> Scrape {
        let sources = Arc::clone(&self.0);
        Scrape::by(move |format| metrics::expose(&sources.counts, sources.read(), format))
    }

    /// A failed bind is tried again: the address may come up later than the daemon, which has other work meanwhile.
    fn listen(&self, config: &Config, node: &str, mut stopping: watch::Receiver<bool>) {
        let Some(address) = config.metrics_listen else { return };
        let (scrape, journal) = (self.scrape(), self.0.journal.clone());
        let hosts = Hosts::new(node, &config.metrics_hosts);
        // Its thread exists before the address is bound.
        let secure = match self.secure(config, node, &stopping) {
            Ok(secure) => secure,
            Err(error) => {
                let message = format!("cannot serve metrics over TLS, only on the observe socket: {error}");
                return emit::degraded(&journal, TLS, &message);
            }
        };
        tokio::spawn(async move {
            let listener = tokio::select! {
                listener = bound(address, &journal) => listener,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            tracing::debug!(%address, tls = secure.is_some(), "serving metrics");
            match secure {
                None => listener.serve(scrape, hosts, stopping).await,
                Some(secure) => {
                    if let Err(error) = secure.serve(listener) {
                        let message = format!("cannot serve metrics on {address}: {error}");
                        emit::degraded(&journal, LISTEN, &message);
                    }
                }
            }
        });
    }

    /// What serves the metrics over TLS, if that is configured.
    fn secure(
        &self,
        config: &Config,
        node: &str,
        stopping: &watch::Receiver<bool>,
    ) -> io::Result<Option<SecureMetrics>> {
        let Some(MetricsTls { cert_file, key_file, client_ca_file }) = config.metrics_tls.clone() else {
            return Ok(None);
        };
        let token = config.metrics_token_file.clone();
        let files = MetricsFiles { cert: cert_file, key: key_file, client_ca: client_ca_file, token };
        let hosts = config.metrics_hosts.iter().cloned().chain([node.to_owned()]).collect();
        let journal = self.0.journal.clone();
        let report = move |problem: Option<&str>| match problem {
            Some(problem) => {
                let message = format!("metrics are not served over TLS as they should be: {problem}");
                emit::degraded(&journal, TLS, &message);
            }
            None => emit::recovered(&journal, TLS, "metrics are served over TLS"),
        };
        SecureMetrics::start(files, hosts, self.scrape(), report, stopping.clone()).map(Some)
    }
}

/// Why this address can be bound by nobody without `CAP_NET_BIND_SERVICE`, which the daemon gives up.
fn privileged(address: SocketAddr, first_unprivileged: u16) -> Option<String> {
    let port = address.port();
    (port != 0 && port < first_unprivileged).then(|| {
        format!(
            "the daemon has no right to bind a port below {first_unprivileged}: write one from there on, or set \
             net.ipv4.ip_unprivileged_port_start to {port}"
        )
    })
}

/// The lowest port that needs no right here; the kernel's default if it cannot be read.
fn first_unprivileged_port() -> u16 {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1_024)
}

/// A sentence about the address of the metrics, if it cannot be bound on this machine.
#[must_use]
pub fn unbindable(config: &Config) -> Option<String> {
    let why = privileged(config.metrics_listen?, first_unprivileged_port())?;
    Some(format!("metricsListen: {why}; until then only the observe socket serves metrics"))
}

async fn bound(address: SocketAddr, journal: &Journal) -> MetricsListener {
    let (begun, mut is_reported) = (Instant::now(), false);
    loop {
        match MetricsListener::bind(address).await {
            Ok(listener) => {
                if is_reported {
                    emit::recovered(journal, LISTEN, &format!("serving metrics on {address}"));
                }
                return listener;
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PREDECESSOR => {
                tokio::time::sleep(BETWEEN).await;
                continue;
            }
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    let denied = error.kind() == io::ErrorKind::PermissionDenied;
                    let why = denied.then(|| privileged(address, first_unprivileged_port())).flatten();
                    let why = why.unwrap_or_else(|| error.to_string());
                    let message = format!(
                        "cannot serve metrics on {address}, only on the observe socket; retrying every {} s: {why}",
                        RETRY.as_secs()
                    );
                    emit::degraded(journal, LISTEN, &message);
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

impl Sources {
    fn read(&self) -> Gauges {
        let followed = lock(&self.followed).clone();
        let candidates = self.ranks.candidates();
        let Load { stored_bytes, unwritten_records } = self.journal.load();
        let (system, reserved) = self.system.read();
        let protected = candidates.iter().filter(|candidate| candidate.facts().protected).count();
        Gauges {
            available_bytes: available_bytes(followed.source),
            headroom: self.headroom(&followed.thresholds),
            pressure: self.pressure(),
            system,
            reserved,
            kernel: system::kernel_memory(),
            candidates: candidates.iter().map(|candidate| candidate.identity().qos_class).collect(),
            protected_pods: u64::try_from(protected).unwrap_or(u64::MAX),
            next_victims: if followed.names_pods {
                self.ranks.next(&candidates, metrics::NEXT_VICTIMS).iter().map(|next| named(next)).collect()
            } else {
                Vec::new()
            },
            event_log_bytes: stored_bytes,
            unwritten_records,
            lost_by_recorder: self.recorder.as_ref().map_or(0, Asker::lost),
            sinks: self.sinks(),
            log_lines_dropped: logging::dropped(),
            programs_attached: self.programs_attached,
            reflex: Some(self.reflex.stats()),
            mode: followed.mode,
            config_hash: followed.hash,
            process: Process::read(),
        }
    }

    /// The state of the sinks of each kind.
    fn sinks(&self) -> Vec<SinkState> {
        let newest = self.journal.range().newest;
        let kinds = Kind::ALL.iter().map(|kind| (kind.as_str(), self.healths.of(*kind)));
        kinds
            .map(|(name, health)| SinkState {
                name,
                is_on: health.is_any(),
                lag_records: health.lag_records(newest),
                last_success_ms: health.last_success_ms().and_then(|ms| ms.try_into().ok()).unwrap_or(0),
                failures: health.failures(),
                lost: health.lost().saturating_add(health.passed_over()),
            })
            .collect()
    }

    fn headroom(&self, thresholds: &[Threshold]) -> Vec<Headroom> {
        let own = thresholds.iter().filter(|threshold| threshold.signal == Signal::MemoryAvailable);
        own.map(|threshold| Headroom {
            level: if threshold.is_hard() { Level::Hard } else { Level::Soft },
            threshold_bytes: threshold.value.amount(self.memory_bytes),
        })
        .collect()
    }

    fn pressure(&self) -> Vec<Pressure> {
        let root = CgroupDir::mount(Path::new(cgroup::MOUNT)).ok();
        let mut found = Vec::new();
        for resource in Resource::ALL {
            let text = fs::read_to_string(format!("/proc/pressure/{}", resource.as_str()));
            found.extend(text.ok().and_then(|text| Pressure::parse(resource, Slice::Node, &text)));
        }
        for (slice, path) in &self.slices {
            let Some(dir) = root.as_ref().and_then(|root| root.open(path).ok()) else { continue };
            for resource in Resource::ALL {
                let text = dir.read(&format!("{}.pressure", resource.as_str()));
                found.extend(text.ok().and_then(|text| Pressure::parse(resource, *slice, &text)));
            }
        }
        found
    }
}

fn available_bytes(source: MemoryAvailableSource) -> Option<u64> {
    let read = Available::open(Path::new(PROC_MEMINFO), source).and_then(|mut available| available.read());
    read.ok().map(|read| read.available_bytes)
}

fn named(candidate: &Candidate) -> NextVictim {
    let pod = &candidate.identity().pod;
    NextVictim { namespace: pod.namespace.clone(), pod: pod.name.clone() }
}

/// Sleeps until something is due, and records how late the wakeup is. Safe to cancel.
pub(super) async fn sleep_until(due: Instant) {
    tokio::time::sleep_until(due.into()).await;
    metrics::loops().woken_for(due);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::journal::Filter;

    #[tokio::test]
    async fn an_address_that_a_predecessor_lets_go_is_bound_without_a_report() {
        let predecessor = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = predecessor.local_addr().unwrap();
        let journal = Journal::new("n", "b");
        let ending = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(predecessor);
        };
        let (_listener, ()) = tokio::join!(bound(address, &journal), ending);
        assert!(journal.reader(None, Filter::default()).read().is_none());
    }

    #[test]
    fn a_port_that_needs_a_right_is_named_with_what_to_do() {
        let at = |port: u16| privileged(SocketAddr::from(([127, 0, 0, 1], port)), 1_024);
        let why = at(443).unwrap();
        assert!(why.contains("below 1024") && why.contains("ip_unprivileged_port_start to 443"), "{why}");
        assert_eq!([0, 1_024, 9_464].map(at), [None, None, None]);
        let everyone = SocketAddr::from(([127, 0, 0, 1], 80));
        assert_eq!(privileged(everyone, 0), None, "every port is free for all");
    }
}
