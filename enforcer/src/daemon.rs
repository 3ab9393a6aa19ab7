//! The wiring of the daemon: which part runs where, and what the parts exchange.
//!
//! | part | runs on | gets | gives |
//! |---|---|---|---|
//! | `Desired` | the runtime; blocking work on its blocking threads | pods, cgroup changes, the guard's events, evictions, periodic looks | cgroups, scores, candidates, events |
//! | `evict::Reflex` | threads of its own | candidates, kernel edges, meminfo | evictions, reports |
//! | `Forecaster` | a thread of its own | pods, thresholds, candidates, periodic looks | warnings of crossings to come, candidates that must not be killed any more |
//! | `Ticks` | a task | a timer of the kernel | a tick every ten seconds |
//! | `Ooms` | a task | ring buffer records, ticks | OOM events |
//! | `Stalling` | the task of `Ooms` | records of stalls, aggregated stalls | pressure events |
//! | `OrderBook` | the runtime; a thread that writes | requests, its clock | orders in force: settings, protected pods |
//! | `Repeating` | a thread of its own | candidates, evictions that the API server is asked for | kills of restarted containers |
//! | `Sinks` | a thread for each sink | the journal | deliveries, events about them |
//! | `StaticDir` | a thread of its own | the manifest folder, its changes | pods |
//! | `Reloader` | a thread of its own, and with `configReload: auto` one for the file | SIGHUP, `enforcer reload`, changes of the file | the reloaded configuration |
//! | `serve::Observe` | a thread of its own, and two that may block | journal, view | answers |
//! | `serve::{Admin, View}` | tasks | requests | answers |
//! | `Metering` | a blocking thread, on request | the journal's counts, candidates, kernel files | metrics |

mod armed;
mod backlog;
pub mod cleanup;
mod config_watch;
mod container_node;
mod cpu_state;
mod desired;
mod edges;
mod emit;
mod ended_pods;
mod evictors;
mod fit;
mod forecaster;
mod foreign;
mod handover;
mod hierarchy;
mod hook_watch;
mod host;
mod incompatible_host;
mod instance_lock;
mod kept_names;
mod kept_specs;
mod kubelet_threshold;
mod kubernetes;
mod metrics;
mod naming;
mod ooms;
mod open_files;
mod orders;
mod ownership;
mod past;
mod problems;
mod ranking;
mod reach;
mod readiness;
mod recording;
mod recovery;
mod reload;
mod repeats;
mod reports;
mod reserve;
mod schedule;
mod signals;
mod sinks;
mod specifying;
mod stalls;
mod start;
mod start_line;
mod stop;
mod system;
mod ticks;
mod tracing_report;
mod trimming;
mod watchdog;
mod watching;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use tokio::sync::{mpsc, watch};

use self::{
    backlog::Backlog,
    desired::Desired,
    edges::Edges,
    forecaster::Forecaster,
    host::Host,
    kubelet_threshold::KubeletThreshold,
    metrics::Metering,
    naming::Naming,
    ooms::{BeingEvicted, Ooms},
    orders::{Evictions, OrderBook},
    readiness::{emit_ready, sd_notify},
    recording::Recording,
    reload::Reloader,
    repeats::Repeating,
    reports::{ReportTargets, lock, start_reflex},
    reserve::Reserve,
    signals::Asked,
    sinks::Sinks,
    specifying::{Access, Specifying},
    start::{emit_start, permits},
    stop::{detach, restore_on_exit, shutdown},
    ticks::Ticks,
    trimming::Trimming,
    watchdog::Watchdog,
    watching::{Guarded, Watched},
};
pub(crate) use self::{
    cpu_state::look as cpu_assignments,
    desired::{cpu_machine, cpu_machine_of},
    signals::Signals,
};
pub use self::{
    evictors::{Evictors, evictors, settled},
    fit::{fits, machine},
    incompatible_host::IncompatibleHost,
    metrics::unbindable,
    reload::Load,
};
use crate::{
    cgroup::{Index, MOUNT},
    config::Config,
    evict::{EventBuilder, Reflex},
    metrics::Counts,
    model::PodUid,
    policy::{
        self,
        engine::{self, EngineSettings},
        pressure::Conditions,
    },
    sense::{HostFacts, NODE_PRESSURE},
    serve::{Admin, Vital},
    source::{Identities, Kubelet, StaticDir},
    threads::{self, Workers},
};

/// How long a soft eviction waits for its decision to be on the disk.
const RECORDING: Duration = Duration::from_secs(2);

/// How many threads wait for the end of pods that an operator has evicted. More threads are started while there are
/// more such pods, as far as the kernel allows.
const ENDING_THREADS: usize = 4;

/// How many such pods may wait for a thread.
const ENDING_WAITING: usize = 1_024;

/// What the reflex did that the desired state must know.
#[derive(Debug)]
enum EngineEvent {
    /// A pod was asked to end, or killed, under that number; 0 is an operator's eviction.
    Evicted { uid: PodUid, number: u64 },
    /// The node's conditions from now on.
    Conditions(Conditions),
}

/// Gives the calling thread the daemon's nice value. If that is not permitted, the daemon reports it at its start.
pub fn prefer_thread() {
    threads::set_nice(threads::NICE);
}

/// What happens to values, scores and cgroups when the daemon is stopped. When it is killed, they stay.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnExit {
    /// They stay in force without the daemon.
    #[default]
    Keep,
    /// Values and scores are restored to what they were before, and empty cgroups that the daemon made are removed.
    Restore,
}

/// Why the daemon has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Ended {
    /// It was stopped.
    Stopped,
    /// A kubelet has come, to which everything was given back: the daemon is to start again, beside it.
    KubeletCame,
}

/// Runs the daemon until SIGTERM or SIGINT, or until a kubelet comes. Fails with an [`IncompatibleHost`] if nothing was
/// started.
///
/// On SIGHUP, `load` reads the configuration again. It is in `file`.
#[expect(
    clippy::too_many_lines,
    reason = "the wiring: every part is made, connected, waited for and ended here"
)]
pub async fn run(
    mut config: Config,
    on_exit: OnExit,
    (file, mut load): (PathBuf, Box<Load>),
) -> anyhow::Result<Ended> {
    let mut signals = Signals::listen()?;
    let host = Host::read(&config)?;
    let kubelets = ownership::kubelet_owns_cgroups(&config, &host.boot_id);
    let access = Access::new(&config, &host.machine_name);
    if kubelets {
        ownership::follow_kubelet(&mut config, &host.boot_id, &access.running_kubelet());
    }
    let threshold = kubelets.then(|| KubeletThreshold::new(&config, &access));
    if let Some(threshold) = &threshold {
        evictors::settle(&mut config, threshold, host.node.memory_bytes);
        load = evictors::settling(load, threshold.clone(), host.node.memory_bytes);
    }
    let (mut config, only_observes) = fit::checked(config, &host, kubelets)?;
    let taken = unless_stopped(&mut signals, start::take(&config)).await?;
    let Some((instance_lock, observe)) = taken else { return Ok(Ended::Stopped) };
    if kubelets {
        ownership::remember_kubepods(&config, &host.boot_id);
        access.remember(&config.state_dir);
    }
    // A predecessor has ended by now, and no daemon watches the node until this one knows its pods.
    let unwatched_since = Instant::now();
    let admin = Admin::bind(&config.run_dir, &config.sockets)?;
    let counts = Counts::default();
    let opened = unless_stopped(&mut signals, Sinks::open(&config, &host, &counts, &access)).await?;
    let Some((journal, mut sinks)) = opened else { return Ok(Ended::Stopped) };
    // Before this daemon's first event: recovery reports evictions that an earlier one did not live to report.
    let api_evictions = kubernetes::evictions(&config, kubelets, &journal, sinks.api_server())
        .context("cannot start the thread for the API server")?;
    let node_marks = kubernetes::node_marks(&config, kubelets, &journal, sinks.api_server())
        .context("cannot start the thread for the node's condition")?;
    let mut disk = kubernetes::disk_pressure(kubelets, sinks.api_server())
        .context("cannot start the thread for the node's disk pressure")?;
    let host_facts = HostFacts::gather();
    tracing::info!("{}", start_line::start_line(&config, kubelets));
    emit_start(&journal, &config, &host, &host_facts);
    if let Some(message) = &only_observes {
        emit::degraded(&journal, "container", message);
    }
    instance_lock.emit(&journal);
    hook_watch::watch(&journal);
    // These threads inherit the nice value that the daemon has now.
    let workers = Workers::start("ending", ENDING_THREADS, ENDING_WAITING).context("cannot start threads")?;
    let workers = Arc::new(workers);

    let mut ticks = Ticks::start().context("cannot create a timer")?;
    let index = Index::new();
    let kubelet = kubelets.then(|| Kubelet {
        kubepods: policy::name::kubepods(&config.settings.cgroup_root, config.settings.cgroup_driver),
        driver: config.settings.cgroup_driver,
        identities: Identities::default(),
    });
    let being_evicted = BeingEvicted::default();
    let backlog = Backlog::open(&config.run_dir, &host.boot_id, &journal);
    // Attaching the programs is most of the start's duration. Evictions do not wait for it.
    let attaching = {
        let (journal, counts) = (journal.clone(), counts.clone());
        let (named, being_evicted) = ((index.clone(), kubelet.clone()), being_evicted.clone());
        threads::blocking(move || Ooms::attach(&journal, &counts, named, being_evicted, backlog))
    };
    let mut attaching = tokio::spawn(attaching);

    let permits = permits(&config, kubelets, &journal);
    let (mut desired, watched) = Desired::new(
        config.clone(),
        host.clone(),
        (journal.clone(), counts.clone()),
        index,
        permits,
        kubelet.as_ref().map(|kubelet| kubelet.identities.clone()),
    );
    desired.set_being_evicted(being_evicted.clone());
    let recorded = Arc::new(AtomicU64::new(0));
    let may_request = kubernetes::requests(&config, kubelets);
    let left = recovery::take_up(&config, &host, &journal, may_request, &recorded, &mut desired);
    let (sender, mut engine_events) = mpsc::unbounded_channel();
    let pods = Path::new(MOUNT).join(desired.kubepods().as_str().trim_start_matches('/'));
    let events = EventBuilder::new(config.hash())
        .with_pressure(Path::new(NODE_PRESSURE))
        .with_shared_memory(Path::new("/proc"), &pods);
    let events = Arc::new(Mutex::new(events));
    let mut recording = Recording::start(&config, &host, &journal);
    let mut orders = OrderBook::open(&config.state_dir, &host.boot_id, &journal, kubelets);
    // Before any pod is admitted: what is reserved is not free for them.
    orders.put_reservations_in_force(&mut desired);
    let being_ended = desired.being_ended();
    let evictions =
        Evictions::new(&journal, &being_evicted, being_ended.clone(), orders.view(), &sender, &workers);
    // At once, as no thread may be had later; the pods come when they are known.
    let repeating = kubernetes::repeating(api_evictions.as_ref(), &orders, &journal)
        .context("cannot start the thread for restarted containers")?;
    let (forecaster, fill_waker) =
        Forecaster::start(&config, host.node.max_pids, &journal, counts.clone(), recording.asker());
    let requester = kubernetes::requester(&config, kubelets, &journal, sinks.api_server());
    let reporting = ReportTargets {
        events: events.clone(),
        journal: journal.clone(),
        being_evicted,
        sender,
        fill_waker,
        requester,
        kills: api_evictions.as_ref().map(crate::kube::Evictions::kills),
    };
    let reflex = start_reflex(&config, &orders.settings(&config), &host, reporting, left, &mut recording)?;

    let mut edges = Edges::new(&journal, desired.kubepods());
    edges.keep(&reflex);
    let mut pods = StaticDir::start(config.static_pod_path.clone(), &config.run_dir)
        .context("cannot start the manifest thread")?;
    desired.restore_names();
    desired.restore_specs();
    desired.restore_cpus(access.running_kubelet());
    desired.follow_cgroup_root(access.running_kubelet());
    desired.find_pods().await?;
    let naming = kubelet
        .as_ref()
        .map(|kubelet| Naming::start(&config, access.running_kubelet(), kubelet.identities.clone()));
    let mut naming = naming.transpose().context("cannot start threads")?;
    let specifying = kubelets.then(|| Specifying::start(&config, &access, forecaster.concern())).transpose();
    let mut specifying = specifying.context("cannot start threads")?.flatten();
    naming::want(naming.as_ref(), &desired);
    let mut news = pods.next().await;
    if let Some(loaded) = news.loaded.take() {
        desired.load(loaded).await?;
    }
    // Protection applies before the first candidates are handed on.
    orders.put_in_force(&mut desired, &reflex, &config);
    hand_on(&mut desired, (&reflex, repeating.as_ref()), &forecaster, &recording);
    let unwatched_ms = u64::try_from(unwatched_since.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(unwatched_ms, "watching the node: evictions can be decided");
    news.answer();
    let attached = loop {
        tokio::select! {
            attached = &mut attaching => break attached,
            listing = naming::next(&mut naming) => desired.name_pods(listing).await?,
            news = specifying::next(&mut specifying) => desired.specify_pods(news).await?,
        }
        naming::want(naming.as_ref(), &desired);
        hand_on(&mut desired, (&reflex, repeating.as_ref()), &forecaster, &recording);
    };
    let (mut ooms, ebpf_edges, guard) = attached.context("cannot attach the eBPF programs")?;
    for source in ebpf_edges {
        reflex.add_edges(source);
    }
    let doctor = ooms.doctor(&start::filled_in(&journal, host_facts));

    let (views, view) = watch::channel(desired.view().clone());
    let rivals = threshold.map(|threshold| {
        evictors::watch(&config, threshold, host.node.memory_bytes, view.clone(), journal.clone())
    });
    let (requests, taken) = watch::channel(orders.requested(&desired));
    let (ready, readiness) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let tracing = tokio::spawn(ooms.run(readiness.clone(), ticks.clone()));
    orders.serve(admin, desired.kubepods(), view.clone(), stopping.clone());
    let reporting = (&journal, &counts, sinks.healths());
    let metering = Metering::start(
        &config,
        (&host, &doctor, desired.members()),
        reporting,
        (&reflex, &recording),
        (&ticks, &stopping),
    );
    let observer = reflex.observer();
    let answers = (metering.scrape(), Vital::by(move || observer.is_alive()));
    let sources = recording.sources(
        journal.clone(),
        doctor,
        forecaster.headrooms(),
        view,
        (orders.view(), taken),
        answers,
    );
    let mut server = tokio::spawn(observe.serve(sources, readiness, stopping));
    Watchdog::start(reflex.observer(), &journal);

    let mut reloader =
        Reloader::start(load, &config, file).context("cannot start the configuration threads")?;
    let mut watched = Watched(watched);
    let mut guarded = Guarded(guard);
    desired.set_sight(guarded.sight());
    let (woken, boosted, kubelet_came) = (desired.woken(), forecaster.boosted(), desired.kubelet_came());
    let forbidden = forecaster.forbidden();
    start::refuse_what_is_not_used(&journal);
    let mut reserve = Reserve::default();
    let mut trimming = Trimming::default();
    trimming.note(Instant::now());
    let ended = loop {
        reserve.settle(&journal);
        sinks.retry();
        let due = desired.due();
        let due = trimming.due().map_or(due, |trim| due.min(trim));
        let mut manifests = None;
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break Ended::Stopped,
                Asked::Reload => reloader.ask(None),
            },
            (loaded, order) = reloader.next(&config, (&host, kubelets), &journal) => {
                let arm = order.as_ref().is_some_and(|order| order.arm);
                let outcome = reload::reload(&config, loaded, (&host, kubelets), order.as_ref(), &journal);
                reloader.note(outcome.is_err());
                let outcome = outcome.map(|(new, message)| {
                    config = new;
                    lock(&events).configured(config.hash());
                    recording.configured(&config);
                    metering.configure(&config);
                    journal.set_limits(config.journal);
                    orders.configure(&reflex, &config, arm);
                    forecaster.configure(&config);
                    sinks.configure(&config);
                    if let Some(rivals) = &rivals {
                        rivals.configure(&config);
                    }
                    message
                });
                if outcome.is_ok() {
                    desired.configure(&config).await?;
                }
                reload::read_manifests(order, outcome, &pods, (&config, &journal));
            }
            due = orders.next() => if let Some(order) = orders.take(due, &desired, &config, &evictions) {
                reloader.ask(Some(order));
            },
            Some(event) = engine_events.recv() => {
                kubernetes::note(node_marks.as_ref(), repeating.as_ref(), &event);
                desired.on_engine_event(&event);
            }
            mut news = pods.next() => {
                if let Some(loaded) = news.loaded.take() {
                    desired.load(loaded).await?;
                }
                manifests = Some(news);
            }
            changes = watched.next() => {
                desired.changed(changes, guarded.take()).await?;
                if desired.is_flooded() {
                    watched.rest();
                }
            }
            events = guarded.next() => {
                desired.guarded(events).await?;
                desired.set_sight(guarded.sight());
            }
            ended = &mut server => {
                ended.context("the server ended early")?.context("the observe socket failed")?;
                anyhow::bail!("the observe socket's server stopped unexpectedly");
            }
            listing = naming::next(&mut naming) => desired.name_pods(listing).await?,
            news = specifying::next(&mut specifying) => desired.specify_pods(news).await?,
            pressed = kubernetes::next(disk.as_mut()) => desired.set_disk_pressure(pressed),
            () = woken.notified() => desired.reconcile().await?,
            () = boosted.notified() => desired.boost(),
            () = forbidden.notified() => desired.reopen_candidates(),
            () = being_ended.changed() => desired.note_being_ended(),
            () = kubelet_came.notified() => break Ended::KubeletCame,
            () = metrics::sleep_until(due) => desired.look().await?,
            () = ticks.next() => desired.look_at_components(),
        }
        if let Guarded(Some(guard)) = &mut guarded {
            desired.put_in(guard);
        }
        naming::want(naming.as_ref(), &desired);
        specifying::look(specifying.as_ref(), &desired);
        edges.keep(&reflex);
        orders.put_in_force(&mut desired, &reflex, &config);
        desired.foreign.report(|| recording.ranks(), &journal);
        if hand_on(&mut desired, (&reflex, repeating.as_ref()), &forecaster, &recording) || desired.can_free()
        {
            trimming.note(Instant::now());
        }
        // A trim would return steps of the reserve that were released during this pass and are free again.
        let is_short = !reserve.settle(&journal) || desired.view().memory_pressure;
        trimming.settle(Instant::now(), is_short, &journal);
        orders.settle();
        views.send_if_modified(|view| has_changed(view, desired.view()));
        requests.send_if_modified(|before| has_changed(before, &orders.requested(&desired)));
        if let Some(news) = manifests {
            news.answer();
        }
        emit_ready(&ready, desired.is_loaded());
    };
    let why = match ended {
        Ended::Stopped => "it was stopped",
        Ended::KubeletCame => "a kubelet has come, and the daemon starts again beside it",
    };
    tracing::info!("stopping: {why}");
    match ended {
        Ended::Stopped => sd_notify(&[sd_notify::NotifyState::Stopping]),
        Ended::KubeletCame => {
            let shown = access.running_kubelet().last_places().cgroup_root;
            ownership::remember(&config, &host.boot_id, shown.as_ref().map(|root| &root.path));
        }
    }
    // The reflex ends first, so that its last reports still reach the journal.
    drop(reflex);
    drop(repeating);
    drop(node_marks);
    drop(recording);
    restore_on_exit(&mut desired, engine_events, (ended, on_exit)).await?;
    detach(tracing, on_exit, &journal).await;
    stop.send_replace(true);
    orders.close().await;
    shutdown(server, sinks, &journal).await?;
    // A signal that came meanwhile is not for the next process.
    let is_stopped = signals.stop().now_or_never().is_some();
    Ok(if is_stopped { Ended::Stopped } else { ended })
}

/// Returns the result of `work`; `None` if the daemon is stopped first.
async fn unless_stopped<T, E: Into<anyhow::Error>>(
    signals: &mut Signals,
    work: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<Option<T>> {
    tokio::select! {
        done = work => done.map(Some).map_err(Into::into),
        () = signals.stop() => Ok(None),
    }
}

/// Replaces the view if the new one differs; returns whether it did.
fn has_changed<T: Clone + PartialEq>(view: &mut T, new: &T) -> bool {
    let differs = view != new;
    if differs {
        view.clone_from(new);
    }
    differs
}

/// Hands on the candidates for eviction if they have changed; returns whether they have.
fn hand_on(
    desired: &mut Desired,
    (reflex, repeating): (&Reflex, Option<&Repeating>),
    forecaster: &Forecaster,
    recording: &Recording,
) -> bool {
    let Some(candidates) = desired.new_candidates() else { return false };
    recording.name(&candidates);
    if let Some(repeating) = repeating {
        repeating.set_candidates(&candidates);
    }
    forecaster.recheck(&candidates);
    reflex.set_candidates(candidates);
    if let Some(targets) = desired.targets() {
        forecaster.look_at(targets);
    }
    true
}

/// The eviction engine's settings.
pub(crate) fn engine_settings(config: &Config) -> EngineSettings {
    let eviction = &config.settings.eviction;
    EngineSettings {
        mode: config.mode,
        thresholds: engine::followed(&eviction.thresholds),
        pressure_transition_period_ms: eviction.pressure_transition_period_ms,
        max_pod_grace_period_ns: eviction.max_pod_grace_period_seconds.saturating_mul(1_000_000_000),
        hook_timeout_ns: config.pre_kill_hook.as_ref().map_or(0, |hook| hook.timeout_ms * 1_000_000),
        evict_within_request: eviction.evict_within_request,
        breaker: eviction.breaker,
        ..EngineSettings::default()
    }
}
