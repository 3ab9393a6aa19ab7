//! SIGHUP and `enforcer reload`: configuration and manifests are read again.

use std::{io, sync::mpsc, thread};

use serde_json::json;
use tokio::sync::oneshot;

use super::{IncompatibleHost, host::Host, incompatible_host};
use crate::{
    config::{self, Config, FIELDS},
    journal::{Event, EventType, Journal, Subject},
    serve::{Done, No, Peer},
    source::StaticDir,
};

/// What is read at the start only: where things are, and what has been taken hold of since.
const FIXED: &[&str] = &[
    "mode",
    "ownership",
    "stateDir",
    "runDir",
    "observeSocketOwner",
    "observeSocketGroup",
    "adminSocketOwner",
    "adminSocketGroup",
    "staticPodPath",
    "metricsListen",
    "metricsHosts",
    "memoryAvailableSource",
    "evictionScheduling",
    "cgroupRoot",
    "cgroupDriver",
];

/// Reads the configuration as at the start, with what the command line overrides.
pub type Load = dyn Fn() -> Result<Config, config::Error> + Send;

/// Why the running configuration stays in force.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Config(#[from] config::Error),
    #[error(transparent)]
    IncompatibleHost(#[from] IncompatibleHost),
    #[error("{} cannot change while the daemon runs: restart it", .0.join(", "))]
    Fixed(Vec<&'static str>),
}

/// Somebody wants a reload, by the admin socket.
#[derive(Debug)]
pub(super) struct ReloadOrder {
    /// Whether every threshold is to be armed.
    pub(super) arm: bool,
    /// Whether the folder of manifests counts as it is now, whatever it is.
    pub(super) accept_empty: bool,
    pub(super) peer: Peer,
    pub(super) answer: oneshot::Sender<Result<Done, No>>,
}

/// A configuration that was read, and who asked for it; none asked by SIGHUP.
pub(super) type Reloaded = (Result<Config, config::Error>, Option<ReloadOrder>);

/// Reads the configuration on a thread of its own: nobody waits for its disk.
#[derive(Debug)]
pub(super) struct Reloader {
    orders: mpsc::Sender<Option<ReloadOrder>>,
    reloaded: tokio::sync::mpsc::UnboundedReceiver<Reloaded>,
}

impl Reloader {
    pub(super) fn start(load: Box<Load>) -> io::Result<Self> {
        let (orders, asked) = mpsc::channel();
        let (sender, reloaded) = tokio::sync::mpsc::unbounded_channel();
        let work = move || {
            while let Ok(order) = asked.recv() {
                if sender.send((load(), order)).is_err() {
                    return;
                }
            }
        };
        // It ends when nobody can ask any more, and is not waited for: it may hang.
        let _detached = thread::Builder::new().name(String::from("reload")).spawn(work)?;
        Ok(Self { orders, reloaded })
    }

    /// Has it read; [`Self::next`] answers what came of it.
    pub(super) fn ask(&self, order: Option<ReloadOrder>) {
        // It ends after us.
        drop(self.orders.send(order));
    }

    /// The next one that was read. Safe to cancel.
    pub(super) async fn next(&mut self) -> Reloaded {
        match self.reloaded.recv().await {
            Some(reloaded) => reloaded,
            // It ends with us.
            None => std::future::pending().await,
        }
    }
}

/// The configuration to go on with, with what changed, for a person; or why the running one stays, which is reported.
/// One that is as it was is gone on with too: that closes an open breaker.
pub(super) fn reload(
    running: &Config,
    loaded: Result<Config, config::Error>,
    host: &Host,
    kubelets: bool,
    journal: &Journal,
) -> Result<(Config, String), String> {
    match check(running, loaded, host, kubelets) {
        Ok(config) if config == *running => {
            let message = String::from("the configuration is as it was");
            tracing::info!("{message}");
            Ok((config, message))
        }
        Ok(config) => {
            let message = format!("changed: {}", changed(running, &config).join(", "));
            emit(journal, EventType::ConfigLoaded, &config, &message);
            Ok((config, message))
        }
        Err(refused) => {
            let message = format!("the running configuration stays in force: {}", crate::chain(&refused));
            tracing::warn!("{message}");
            emit(journal, EventType::ConfigRejected, running, &message);
            Err(message)
        }
    }
}

/// Has the manifests read as well, and who asked answered when they are in force; or says why nothing was done.
pub(super) fn read_manifests(
    order: Option<ReloadOrder>,
    outcome: Result<String, String>,
    pods: &StaticDir,
    (config, journal): (&Config, &Journal),
) {
    // SIGHUP has nobody to answer, and reads them whatever became of the configuration.
    let Some(ReloadOrder { arm, accept_empty, peer, answer }) = order else { return pods.look(false, None) };
    let said = match outcome {
        Ok(_) if pods.is_stuck() => {
            let folder = config.static_pod_path.display();
            Err(No::Busy(format!("{folder} does not answer: its pods stay as they were read last")))
        }
        Ok(message) => Ok(message),
        Err(why) => Err(No::Refused(format!("{why}; the manifests were not read again"))),
    };
    if arm && said.is_ok() {
        let data = json!({
            "mode": config.mode.as_str(), "configHash": config.hash(), "armed": true, "uid": peer.uid, "pid": peer.pid,
            "message": format!("every threshold is armed, by order of uid {}", peer.uid),
        });
        journal.append(Event { kind: EventType::ConfigLoaded, subject: Subject::Node, data });
    }
    let message = match said {
        Ok(message) if arm => format!("{message}; every threshold is armed"),
        Ok(message) => message,
        // Who asked may have gone.
        Err(no) => return drop(answer.send(Err(no))),
    };
    if accept_empty {
        let folder = config.static_pod_path.display();
        let message = format!("{folder} is followed as it is now, by order of uid {}", peer.uid);
        tracing::warn!("{message}");
        let data = json!({
            "mode": config.mode.as_str(), "configHash": config.hash(), "message": message, "acceptEmpty": true,
            "uid": peer.uid, "pid": peer.pid,
        });
        journal.append(Event { kind: EventType::ConfigLoaded, subject: Subject::Node, data });
    }
    let folder = config.static_pod_path.display().to_string();
    let answer = move |loaded: &crate::source::Loaded| {
        let pods = match loaded.pods.len() {
            1 => String::from("1 pod"),
            count => format!("{count} pods"),
        };
        let wrong = loaded.errors.iter().map(|error| format!("; {error}"));
        let message = format!("{message}; {folder}: {pods}{}", wrong.collect::<String>());
        // Who asked may have gone.
        drop(answer.send(Ok(Done { message, durable: true, ..Done::default() })));
    };
    pods.look(accept_empty, Some(Box::new(answer)));
}

fn check(
    running: &Config,
    loaded: Result<Config, config::Error>,
    host: &Host,
    kubelets: bool,
) -> Result<Config, Refused> {
    let config = loaded?;
    let fixed: Vec<_> = changed(running, &config).into_iter().filter(|field| FIXED.contains(field)).collect();
    if !fixed.is_empty() {
        return Err(Refused::Fixed(fixed));
    }
    incompatible_host::check(&config, host, kubelets)?;
    Ok(config)
}

/// The fields that differ.
fn changed(before: &Config, after: &Config) -> Vec<&'static str> {
    FIELDS
        .iter()
        .filter(|field| (field.show)(before) != (field.show)(after))
        .map(|field| field.name)
        .collect()
}

fn emit(journal: &Journal, kind: EventType, config: &Config, message: &str) {
    let data = json!({"mode": config.mode.as_str(), "configHash": config.hash(), "message": message});
    journal.append(Event { kind, subject: Subject::Node, data });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Absent, OnDrift},
        config::Mode,
        journal::{Batch, Filter},
        sense::PidNamespace,
    };

    fn host() -> Host {
        let node = crate::policy::sample::node();
        let pid_namespace = Some(PidNamespace::new(4, 0xEFFF_FFFC));
        Host { name: "host".into(), boot_id: "boot".into(), node, systemd: Err(Absent::Init), pid_namespace }
    }

    #[test]
    fn what_can_change_does_and_what_cannot_is_reported() {
        let (running, journal) = (Config::default(), Journal::new("n", "b"));
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            reload(&running, Ok(config), &host(), false, &journal)
        };
        let same = with(|_| ()).unwrap();
        assert_eq!(same.0, running, "it closes an open breaker, and is no news");
        assert_eq!(with(|config| config.on_drift = OnDrift::Report).unwrap().1, "changed: onDrift");
        assert!(with(|config| config.mode = Mode::Enforce).unwrap_err().contains("mode cannot change"));
        let broken = Config::parse("c.yaml", "kind: Other");
        assert!(reload(&running, broken, &host(), false, &journal).unwrap_err().contains("c.yaml:1: "));
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let reported: Vec<String> =
            records.iter().map(|record| String::from_utf8_lossy(&record.line).into_owned()).collect();
        assert_eq!(reported.len(), 3, "{reported:?}");
        assert!(
            reported[0].contains("config.loaded") && reported[0].contains("changed: onDrift"),
            "{reported:?}"
        );
        assert!(
            reported[1].contains("config.rejected") && reported[1].contains("mode cannot change"),
            "{reported:?}"
        );
        assert!(
            reported[2].contains("config.rejected") && reported[2].contains("c.yaml:1: "),
            "{reported:?}"
        );
    }

    #[test]
    fn every_fixed_field_is_a_field() {
        for fixed in FIXED {
            assert!(FIELDS.iter().any(|field| field.name == *fixed), "{fixed}");
        }
    }
}
