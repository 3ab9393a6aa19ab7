//! SIGHUP and `enforcer reload`: the configuration is read again.

use serde_json::json;
use tokio::sync::oneshot;

use super::{Unfit, host::Host, unfit};
use crate::{
    config::{self, Config, FIELDS},
    journal::{Event, EventType, Journal, Subject},
    serve::{Done, No, Peer},
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
    Unfit(#[from] Unfit),
    #[error("{} cannot change while the daemon runs: restart it", .0.join(", "))]
    Fixed(Vec<&'static str>),
}

/// A reload that was asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Whether every threshold is to be armed.
    pub(super) arm: bool,
    /// Who asked on the admin socket, and where the answer goes; none of a signal.
    pub(super) asked: Option<(Peer, oneshot::Sender<Result<Done, No>>)>,
}

impl Wanted {
    /// Reports that thresholds are armed by order, and answers whoever asked.
    pub(super) fn done(self, journal: &Journal, config: &Config) {
        let Self { arm, asked } = self;
        let Some((peer, answer)) = asked else { return };
        let mut message = String::from("the configuration is loaded");
        if arm {
            message.push_str(", and every threshold is armed");
            let data = json!({
                "mode": config.mode.as_str(),
                "configHash": config.hash(),
                "armed": true,
                "uid": peer.uid,
                "pid": peer.pid,
                "message": format!("every threshold is armed, by order of uid {}", peer.uid),
            });
            journal.append(Event { kind: EventType::ConfigLoaded, subject: Subject::Node, data });
        }
        // Who asked may have gone.
        drop(answer.send(Ok(Done { message, durable: true, ..Done::default() })));
    }

    /// Answers whoever asked that the configuration is not loaded, and nothing is armed.
    pub(super) fn refused(self, why: String) {
        if let Some((_, answer)) = self.asked {
            drop(answer.send(Err(No::Refused(why))));
        }
    }
}

/// The configuration to go on with; the error is why what there is must not be followed, which is reported. One that is as it was is
/// gone on with too: that closes an open breaker.
pub(super) fn reload(
    running: &Config,
    load: &Load,
    host: &Host,
    kubelets: bool,
    journal: &Journal,
) -> Result<Config, String> {
    match check(running, load, host, kubelets) {
        Ok(config) if config == *running => {
            tracing::info!("reload: the configuration is as it was");
            Ok(config)
        }
        Ok(config) => {
            tell(
                journal,
                EventType::ConfigLoaded,
                &config,
                &format!("changed: {}", changed(running, &config).join(", ")),
            );
            Ok(config)
        }
        Err(refused) => {
            let message = format!("the running configuration stays in force: {}", crate::chain(&refused));
            tracing::warn!("{message}");
            tell(journal, EventType::ConfigRejected, running, &message);
            Err(message)
        }
    }
}

fn check(running: &Config, load: &Load, host: &Host, kubelets: bool) -> Result<Config, Refused> {
    let config = load()?;
    let fixed: Vec<_> = changed(running, &config).into_iter().filter(|field| FIXED.contains(field)).collect();
    if !fixed.is_empty() {
        return Err(Refused::Fixed(fixed));
    }
    unfit::check(&config, host, kubelets)?;
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

fn tell(journal: &Journal, kind: EventType, config: &Config, message: &str) {
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
    fn what_can_change_does_and_what_cannot_is_told() {
        let (running, journal) = (Config::default(), Journal::new("n", "b"));
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            reload(&running, &move || Ok(config.clone()), &host(), false, &journal)
        };
        assert_eq!(with(|_| ()).as_ref(), Ok(&running), "it closes an open breaker, and is no news");
        assert!(with(|config| config.on_drift = OnDrift::Report).is_ok());
        assert!(with(|config| config.mode = Mode::Enforce).is_err());
        let broken = || Config::parse("c.yaml", "kind: Other");
        assert!(reload(&running, &broken, &host(), false, &journal).is_err());
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let told: Vec<String> =
            records.iter().map(|record| String::from_utf8_lossy(&record.line).into_owned()).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("config.loaded") && told[0].contains("changed: onDrift"), "{told:?}");
        assert!(told[1].contains("config.rejected") && told[1].contains("mode cannot change"), "{told:?}");
        assert!(told[2].contains("config.rejected") && told[2].contains("c.yaml:1: "), "{told:?}");
    }

    #[test]
    fn every_fixed_field_is_a_field() {
        for fixed in FIXED {
            assert!(FIELDS.iter().any(|field| field.name == *fixed), "{fixed}");
        }
    }
}
