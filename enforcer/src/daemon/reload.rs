//! SIGHUP, a change of the file, and `enforcer reload`: read the configuration and the manifests again.

use std::{
    io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use enforcer_events::{
    Payload,
    node::{ConfigChanged, ConfigLoaded},
};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{
    IncompatibleHost,
    config_watch::{ConfigWatch, Content},
    container_node,
    host::Host,
    incompatible_host,
};
use crate::{
    config::{self, Config, FIELDS, ReloadOn, ValueSource},
    journal::{Journal, Subject},
    logging,
    serve::{Done, No, Peer},
    source::StaticDir,
};

/// The most characters of a value that an event shows.
const MOST_SHOWN: usize = 120;

/// The fields that are read only at the start: paths, and resources that are open since then.
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
    "criSocket",
    "podSource",
    "kubeconfig",
    "kubeletRootDir",
    "kubeletPort",
    "nodeName",
    "apiAction",
    "onPdb",
    "barePods",
    "daemonSetPods",
    "nodeCondition",
    "nodeTaint",
    "metricsListen",
    "metricsHosts",
    "metricsTLS",
    "metricsTokenFile",
    "configReload",
    "memoryAvailableSource",
    "evictionScheduling",
    "cgroupRoot",
    "cgroupDriver",
    "reservedSystemCPUs",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
];

/// Reads the configuration as at the start, with the command line's overrides.
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
    #[error(
        "preKillHook.path and preKillHook.args cannot be set while the daemon runs, which has given up the rights that the \
         program would have: restart it"
    )]
    Hook,
}

/// A reload requested on the admin socket.
#[derive(Debug)]
pub(super) struct ReloadOrder {
    /// Whether every threshold is to be armed.
    pub(super) arm: bool,
    /// Whether the manifest folder is accepted in its present state, whatever that is.
    pub(super) accept_empty: bool,
    /// How much is to be logged from now on.
    pub(super) log_level: Option<String>,
    pub(super) peer: Peer,
    pub(super) answer: oneshot::Sender<Result<Done, No>>,
}

/// A configuration that was read, and the order to do so; `None` for SIGHUP and for a change of the file.
pub(super) type Reloaded = (Result<Config, config::Error>, Option<ReloadOrder>);

/// Why the configuration is read.
#[derive(Debug)]
enum Cause {
    /// SIGHUP.
    Signal,
    /// The admin socket.
    Order(ReloadOrder),
    /// The file has another content.
    Changed,
    /// The file is gone.
    Gone,
}

/// Reads the configuration on a separate thread: nothing waits for its disk.
#[derive(Debug)]
pub(super) struct Reloader {
    causes: mpsc::Sender<Cause>,
    reloaded: tokio::sync::mpsc::UnboundedReceiver<(Result<Config, config::Error>, Cause)>,
    /// Whether what was read last was refused.
    is_refused: bool,
    _watch: Option<ConfigWatch>,
}

impl Reloader {
    /// Starts the thread, and with `configReload: auto` another that follows the file.
    pub(super) fn start(load: Box<Load>, config: &Config, file: PathBuf) -> io::Result<Self> {
        let (causes, asked) = mpsc::channel();
        let (sender, reloaded) = tokio::sync::mpsc::unbounded_channel();
        let path = file.clone();
        let work = move || {
            while let Ok(cause) = asked.recv() {
                let loaded = match cause {
                    // Elsewhere a file at the default place may be missing. Here it was there.
                    Cause::Gone => Err(gone(&path)),
                    Cause::Signal | Cause::Order(_) | Cause::Changed => load(),
                };
                if sender.send((loaded, cause)).is_err() {
                    return;
                }
            }
        };
        // The thread ends when its senders are dropped. It is not joined: a read may hang.
        let _detached = thread::Builder::new().name(String::from("reload")).spawn(work)?;
        let of_file = causes.clone();
        let changed = move |content: &Content| {
            let is_gone = matches!(content, Content::Missing);
            // The thread ends after this sender.
            drop(of_file.send(if is_gone { Cause::Gone } else { Cause::Changed }));
        };
        let watch = match config.config_reload {
            ReloadOn::Signal => None,
            ReloadOn::Auto => Some(ConfigWatch::start(file, changed)?),
        };
        Ok(Self { causes, reloaded, is_refused: false, _watch: watch })
    }

    /// Requests a read; [`Self::next`] returns the result.
    pub(super) fn ask(&self, order: Option<ReloadOrder>) {
        // The thread ends after this sender.
        drop(self.causes.send(order.map_or(Cause::Signal, Cause::Order)));
    }

    /// Notes whether what was read last was refused.
    pub(super) fn note(&mut self, is_refused: bool) {
        self.is_refused = is_refused;
    }

    /// Waits for the next configuration that was read. If the file has changed and says what is `running` already, nothing
    /// is to be applied: only who asks for a reload has an open breaker closed by it. It is reported if the file was refused
    /// before, as nothing else would say that it is in force again. Safe to cancel.
    pub(super) async fn next(
        &mut self,
        running: &Config,
        (host, kubelets): (&Host, bool),
        journal: &Journal,
    ) -> Reloaded {
        loop {
            match self.reloaded.recv().await {
                Some((Ok(config), Cause::Changed))
                    if settled(running, config.clone(), host, kubelets) == *running =>
                {
                    if std::mem::take(&mut self.is_refused) {
                        let message = String::from("the file says what is in force again");
                        tracing::info!("{message}");
                        let data = ConfigLoaded::Changed(changed_to(running, message));
                        journal.emit(Subject::Node, Payload::ConfigLoaded(data));
                    }
                }
                Some((loaded, Cause::Order(order))) => return (loaded, Some(order)),
                Some((loaded, Cause::Signal | Cause::Changed | Cause::Gone)) => return (loaded, None),
                // The thread ends after this receiver.
                None => std::future::pending().await,
            }
        }
    }
}

fn gone(path: &Path) -> config::Error {
    let source = io::Error::new(io::ErrorKind::NotFound, "it is gone");
    config::Error::Read { path: path.display().to_string(), source }
}

/// Returns the configuration to continue with, and what changed, for a person; or why the running one stays, which is
/// reported. An unchanged configuration is applied too, as that closes an open breaker, and reported if it was ordered for
/// nothing else.
pub(super) fn reload(
    running: &Config,
    loaded: Result<Config, config::Error>,
    (host, kubelets): (&Host, bool),
    order: Option<&ReloadOrder>,
    journal: &Journal,
) -> Result<(Config, String), String> {
    let (uid, pid) = (order.map(|order| order.peer.uid), order.map(|order| order.peer.pid));
    let report =
        |config: &Config, message: &str| ConfigChanged { uid, pid, ..changed_to(config, message.to_owned()) };
    match check(running, loaded, host, kubelets) {
        Ok(config) if config == *running => {
            let message = String::from("the configuration is unchanged");
            tracing::info!("{message}");
            if order.is_some_and(|order| !order.arm && !order.accept_empty && order.log_level.is_none()) {
                let data = ConfigLoaded::Changed(report(&config, &message));
                journal.emit(Subject::Node, Payload::ConfigLoaded(data));
            }
            Ok((config, message))
        }
        Ok(config) => {
            let message = match changes(running, &config).join("; ") {
                same if same.is_empty() => String::from("unchanged but for which values are written"),
                changes => format!("changed: {changes}"),
            };
            let data = ConfigLoaded::Changed(report(&config, &message));
            journal.emit(Subject::Node, Payload::ConfigLoaded(data));
            Ok((config, message))
        }
        Err(refused) => {
            let message = format!("the running configuration stays in force: {}", crate::chain(&refused));
            tracing::warn!("{message}");
            let data = report(running, &message);
            journal.emit(Subject::Node, Payload::ConfigRejected(data));
            Err(message)
        }
    }
}

/// Reads the manifests as well, and answers once they are in force; or answers why nothing was done.
pub(super) fn read_manifests(
    order: Option<ReloadOrder>,
    outcome: Result<String, String>,
    pods: &StaticDir,
    (config, journal): (&Config, &Journal),
) {
    // SIGHUP needs no answer, and reads them whatever the outcome for the configuration.
    let Some(ReloadOrder { arm, accept_empty, log_level, peer, answer }) = order else {
        return pods.look(false, None);
    };
    let said = match outcome {
        Ok(_) if pods.is_stuck() => {
            let folder = config.static_pod_path.display();
            Err(No::Busy(format!("{folder} does not answer: its pods stay as last read")))
        }
        Ok(message) => Ok(message),
        Err(why) => Err(No::Refused(format!("{why}; the manifests were not read again"))),
    };
    let said = said.and_then(|message| {
        let Some(level) = log_level else { return Ok(message) };
        // Every change that is ordered is an event.
        logging::set(&level).map_err(No::Wrong)?;
        let data = ConfigChanged {
            uid: Some(peer.uid),
            pid: Some(peer.pid),
            ..changed_to(config, format!("the log level is {level}, by order of uid {}", peer.uid))
        };
        journal.emit(Subject::Node, Payload::ConfigLoaded(ConfigLoaded::Changed(data)));
        Ok(format!("{message}; the log level is {level}"))
    });
    if arm && said.is_ok() {
        let data = ConfigChanged {
            armed: true,
            uid: Some(peer.uid),
            pid: Some(peer.pid),
            ..changed_to(config, format!("every threshold is armed, by order of uid {}", peer.uid))
        };
        journal.emit(Subject::Node, Payload::ConfigLoaded(ConfigLoaded::Changed(data)));
    }
    let message = match said {
        Ok(message) if arm => format!("{message}; every threshold is armed"),
        Ok(message) => message,
        // The requester may have gone.
        Err(no) => return drop(answer.send(Err(no))),
    };
    if accept_empty {
        let folder = config.static_pod_path.display();
        let message = format!("the present content of {folder} is accepted, by order of uid {}", peer.uid);
        tracing::warn!("{message}");
        let data = ConfigChanged {
            accept_empty: true,
            uid: Some(peer.uid),
            pid: Some(peer.pid),
            ..changed_to(config, message)
        };
        journal.emit(Subject::Node, Payload::ConfigLoaded(ConfigLoaded::Changed(data)));
    }
    let folder = config.static_pod_path.display().to_string();
    let answer = move |loaded: &crate::source::Loaded| {
        let pods = match loaded.pods.len() {
            1 => String::from("1 pod"),
            count => format!("{count} pods"),
        };
        let wrong = loaded.errors.iter().map(|error| format!("; {error}"));
        let odd = loaded.warnings.iter().map(|warning| format!("; {warning}"));
        let message = format!("{message}; {folder}: {pods}{}", wrong.chain(odd).collect::<String>());
        // The requester may have gone.
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
    let config = settled(running, loaded?, host, kubelets);
    let fixed: Vec<_> = changed(running, &config).into_iter().filter(|field| FIXED.contains(field)).collect();
    if !fixed.is_empty() {
        return Err(Refused::Fixed(fixed));
    }
    if needs_another_hook(running, &config) {
        return Err(Refused::Hook);
    }
    incompatible_host::check(&config, host, kubelets)?;
    Ok(config)
}

/// Whether another program is to run before a kill: the process that runs it was started for one alone, with rights that the
/// daemon no longer has. None at all, and another time for it, need no more.
fn needs_another_hook(running: &Config, wanted: &Config) -> bool {
    let program = |config: &Config| config.pre_kill_hook.as_ref().map(|hook| hook.program.clone());
    program(wanted).is_some_and(|wanted| program(running).as_ref() != Some(&wanted))
}

/// The configuration with what this host and a kubelet decide, whatever the file says.
fn settled(running: &Config, mut config: Config, host: &Host, kubelets: bool) -> Config {
    if kubelets {
        // The kubelet's own, whatever the file says.
        config.settings.cgroup_driver = running.settings.cgroup_driver;
        let source = ValueSource::Kubelet(String::from("its kubepods"));
        config.value_sources.set("cgroupDriver", source);
        // And its own root, as it was found at the start, unless a file of ours says one.
        if config.cgroup_root_at.0.is_none() && running.cgroup_root_at.0.is_none() {
            config.settings.cgroup_root = running.settings.cgroup_root.clone();
            config.value_sources.take("cgroupRoot", &running.value_sources);
        }
    }
    container_node::settle(&mut config, host.container.as_ref(), kubelets);
    config
}

/// The fields that differ.
fn changed(before: &Config, after: &Config) -> Vec<&'static str> {
    FIELDS
        .iter()
        .filter(|field| (field.show)(before) != (field.show)(after))
        .map(|field| field.name)
        .collect()
}

/// Fields whose values may hold secrets, such as the address of a webhook: events go far.
const UNSHOWN: &[&str] = &["preKillHook", "sinks"];

/// What differs, each as `FIELD: OLD → NEW`.
fn changes(before: &Config, after: &Config) -> Vec<String> {
    let differs = |field: &&config::Field| (field.show)(before) != (field.show)(after);
    let shown = |field: &config::Field| {
        if UNSHOWN.contains(&field.name) {
            return format!("{}: changed", field.name);
        }
        format!("{}: {} → {}", field.name, value((field.show)(before)), value((field.show)(after)))
    };
    FIELDS.iter().filter(differs).map(shown).collect()
}

/// A value on one line, of bounded length: it becomes part of an event.
fn value(value: Value) -> String {
    let text = match value {
        Value::Null => String::from("not set"),
        Value::String(text) => text,
        other => other.to_string(),
    };
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// What is in force.
fn changed_to(config: &Config, message: String) -> ConfigChanged {
    ConfigChanged {
        mode: config.mode.as_str().into(),
        config_hash: config.hash(),
        message,
        armed: false,
        accept_empty: false,
        uid: None,
        pid: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Absent, OnDrift},
        config::{Mode, PreKillHook},
        evict::HookProgram,
        journal::{Batch, Filter},
        model::CgroupPath,
        sense::PidNamespace,
    };

    fn host() -> Host {
        let node = crate::sample::node();
        let pid_namespace = Some(PidNamespace::new(4, 0xEFFF_FFFC));
        Host {
            name: "host".into(),
            machine_name: "host".into(),
            boot_id: "boot".into(),
            node,
            systemd: Err(Absent::Init),
            pid_namespace,
            cpus: "0-3".parse().ok(),
            container: None,
        }
    }

    #[test]
    fn the_page_of_the_configuration_names_what_is_fixed() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, rest) = page.split_once("a field that is fixed while the daemon runs").unwrap();
        let (list, _) = rest.split_once("leaves the running configuration in force").unwrap();
        let named: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        // The sockets' owners and groups are "the like" of the first of them.
        let fixed: Vec<&str> = FIXED
            .iter()
            .copied()
            .filter(|field| {
                !field.contains("Socket") || *field == "observeSocketOwner" || *field == "criSocket"
            })
            .collect();
        assert_eq!(named, fixed);
    }

    #[test]
    fn what_can_change_does_and_what_cannot_is_reported() {
        let (running, journal) = (Config::default(), Journal::new("n", "b"));
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            reload(&running, Ok(config), (&host(), false), None, &journal)
        };
        let same = with(|_| ()).unwrap();
        assert_eq!(same.0, running, "it closes an open breaker, and is no news");
        assert_eq!(
            with(|config| config.on_drift = OnDrift::Report).unwrap().1,
            "changed: onDrift: restore → report"
        );
        assert!(with(|config| config.mode = Mode::Enforce).unwrap_err().contains("mode cannot change"));
        let broken = Config::parse("c.yaml", "kind: Other");
        assert!(
            reload(&running, broken, (&host(), false), None, &journal).unwrap_err().contains("c.yaml:1: ")
        );
        let mut reader = journal.reader(None, Filter::default());
        let Some(Batch::Records(records)) = reader.read() else { panic!() };
        let reported: Vec<String> =
            records.iter().map(|record| String::from_utf8_lossy(&record.line).into_owned()).collect();
        assert_eq!(reported.len(), 3, "{reported:?}");
        assert!(
            reported[0].contains("config.loaded")
                && reported[0].contains("changed: onDrift: restore → report"),
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
    fn another_program_before_a_kill_needs_a_restart_and_less_of_it_does_not() {
        let hook = |path: &str, timeout_ms| {
            let program = HookProgram { path: path.into(), args: Vec::new() };
            Config { pre_kill_hook: Some(PreKillHook { program, timeout_ms }), ..Config::default() }
        };
        let none = Config::default();
        assert!(
            needs_another_hook(&none, &hook("/a", 1)) && needs_another_hook(&hook("/b", 1), &hook("/a", 1))
        );
        assert!(
            !needs_another_hook(&hook("/a", 1), &none) && !needs_another_hook(&hook("/a", 1), &hook("/a", 2))
        );
        let refused = check(&none, Ok(hook("/a", 1)), &host(), false).unwrap_err().to_string();
        assert!(refused.contains("preKillHook") && refused.ends_with("restart it"), "{refused}");
    }

    #[test]
    fn what_was_and_what_is_are_shown_and_long_values_are_cut() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            changes(&Config::default(), &config)
        };
        assert_eq!(with(|_| ()), Vec::<String>::new());
        assert_eq!(
            with(|config| {
                config.max_pods = 7;
                config.node_name = Some(String::from("n1"));
            }),
            ["nodeName: not set → n1", "maxPods: 110 → 7"]
        );
        let long = with(|config| config.metrics_hosts = vec!["é".repeat(300)]);
        assert!(long[0].chars().count() < 2 * MOST_SHOWN && long[0].ends_with('…'), "{long:?}");
    }

    /// Otherwise each reload of the same file would be refused there.
    #[test]
    fn where_the_node_is_a_container_a_file_that_says_enforce_still_observes() {
        let journal = Journal::new("n", "b");
        let file = || Ok(Config { mode: Mode::Enforce, ..Config::default() });
        let running = Config { mode: Mode::Observe, ..Config::default() };
        let pid_namespace = Some(PidNamespace::new(4, 7));
        let kind = Host { container: Some(String::from("kind")), pid_namespace, ..host() };
        let (config, _message) = reload(&running, file(), (&kind, true), None, &journal).unwrap();
        assert_eq!(config.mode, Mode::Observe);
        let machine = Host { container: None, ..kind };
        assert!(reload(&running, file(), (&machine, true), None, &journal).is_err());
    }

    /// The file does not say it, and what it says cannot change.
    #[test]
    fn the_cgroup_root_that_was_found_beside_a_kubelet_stays() {
        let journal = Journal::new("n", "b");
        let parsed = |text: &str| {
            let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\n";
            Config::parse("c.yaml", &format!("{head}{text}")).unwrap()
        };
        let mut running = parsed("");
        running.settings.cgroup_root = CgroupPath::parse("/kubelet").unwrap();
        running.value_sources.set("cgroupRoot", ValueSource::Kubelet(String::from("its flag")));
        let reload = |running: &Config, text, kubelets| {
            reload(running, Ok(parsed(text)), (&host(), kubelets), None, &journal).map(|(config, _)| config)
        };
        let config = reload(&running, "", true).unwrap();
        assert_eq!(config.settings.cgroup_root, running.settings.cgroup_root);
        assert_eq!(config.value_sources.of("cgroupRoot"), "kubelet: its flag");
        assert!(reload(&running, "cgroupRoot: /kubelet\n", true).is_ok(), "it says the same");
        let own = parsed("cgroupRoot: /other\n");
        for (running, text) in [(&running, "cgroupRoot: /other\n"), (&running, "cgroupRoot: /\n"), (&own, "")]
        {
            let refused = reload(running, text, true).unwrap_err();
            assert!(refused.contains("cgroupRoot cannot change"), "{refused}");
        }
        assert!(reload(&running, "", false).is_err(), "no kubelet is followed");
    }

    #[tokio::test]
    async fn a_changed_file_that_says_what_is_in_force_is_no_news() {
        let running = Config::default();
        let other = Config { on_drift: OnDrift::Report, ..Config::default() };
        let loads = std::sync::Mutex::new(vec![other.clone(), running.clone(), running.clone()]);
        let load = move || Ok(loads.lock().unwrap().pop().unwrap());
        let mut reloader = Reloader::start(Box::new(load), &running, "/c.yaml".into()).unwrap();
        reloader.causes.send(Cause::Changed).unwrap();
        reloader.ask(None);
        reloader.causes.send(Cause::Changed).unwrap();
        reloader.causes.send(Cause::Gone).unwrap();
        let (host, journal) = (host(), Journal::new("n", "b"));
        let (first, _) = reloader.next(&running, (&host, false), &journal).await;
        assert_eq!(first.unwrap(), running, "SIGHUP, which closes an open breaker");
        let (second, _) = reloader.next(&running, (&host, false), &journal).await;
        assert_eq!(second.unwrap(), other, "the change without news is passed over");
        let (third, _) = reloader.next(&running, (&host, false), &journal).await;
        let error = crate::chain(&third.unwrap_err());
        assert!(error.contains("/c.yaml") && error.contains("gone"), "{error}");
        assert!(
            journal.reader(None, Filter::default()).read().is_none(),
            "and reported by whom it is given to"
        );
    }

    #[tokio::test]
    async fn a_refused_file_that_says_what_is_in_force_again_is_reported_once() {
        let running = Config::default();
        let load = {
            let same = running.clone();
            move || Ok(same.clone())
        };
        let mut reloader = Reloader::start(Box::new(load), &running, "/c.yaml".into()).unwrap();
        let (host, journal) = (host(), Journal::new("n", "b"));
        reloader.causes.send(Cause::Gone).unwrap();
        let (gone, _) = reloader.next(&running, (&host, false), &journal).await;
        reloader.note(reload(&running, gone, (&host, false), None, &journal).is_err());
        for _ in 0..2 {
            reloader.causes.send(Cause::Changed).unwrap();
        }
        reloader.ask(None);
        let (asked, _) = reloader.next(&running, (&host, false), &journal).await;
        assert_eq!(asked.unwrap(), running, "SIGHUP, and neither of the changes before it");
        let Some(Batch::Records(records)) = journal.reader(None, Filter::default()).read() else { panic!() };
        let reported: Vec<_> = records.iter().map(|record| String::from_utf8_lossy(&record.line)).collect();
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(
            reported[0].contains("config.rejected")
                && reported[1].contains("config.loaded")
                && reported[1].contains("the file says what is in force again"),
            "{reported:?}"
        );
    }

    #[tokio::test]
    async fn with_auto_a_file_that_changes_is_read_and_a_bad_one_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let write = |rest: &str| {
            let head = "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nconfigReload: auto\n";
            let new = folder.path().join("new");
            std::fs::write(&new, format!("{head}{rest}")).unwrap();
            std::fs::rename(new, &file).unwrap();
        };
        write("");
        let running = Config::load(Some(&file)).unwrap();
        let path = file.clone();
        let load = move || Config::load(Some(&path));
        let mut reloader = Reloader::start(Box::new(load), &running, file.clone()).unwrap();
        let (host, journal) = (host(), Journal::new("n", "b"));
        write("onDrift: repo");
        let (bad, order) = reloader.next(&running, (&host, false), &journal).await;
        assert!(order.is_none());
        let refused = reload(&running, bad, (&host, false), None, &journal).unwrap_err();
        assert!(refused.contains("config.yaml:4: onDrift"), "{refused}");
        write("onDrift: report\n");
        let (config, message) = loop {
            let (loaded, _) = reloader.next(&running, (&host, false), &journal).await;
            match reload(&running, loaded, (&host, false), None, &journal) {
                Ok(outcome) => break outcome,
                // The bad one may be read twice: when the daemon began to follow the file, and when that was replaced.
                Err(refused) => assert!(refused.contains("config.yaml:4: onDrift"), "{refused}"),
            }
        };
        assert_eq!((config.on_drift, &*message), (OnDrift::Report, "changed: onDrift: restore → report"));
    }

    /// A change of any other field needs no restart with `configReload: auto`.
    #[test]
    fn the_chart_restarts_the_daemons_for_the_fixed_fields() {
        let template = include_str!("../../../packaging/helm/enforcer/templates/_helpers.tpl");
        let (_, rest) = template.split_once("pick $config ").unwrap();
        let (list, _) = rest.split_once(" | toYaml").unwrap();
        let picked: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(picked, FIXED);
    }

    #[test]
    fn every_fixed_field_is_a_field() {
        for fixed in FIXED {
            assert!(FIELDS.iter().any(|field| field.name == *fixed), "{fixed}");
        }
    }
}
