//! Long stalls in reclaim, reported as pressure of pods.
use std::{
    collections::HashSet,
    future,
    path::Path,
    time::{Duration, Instant},
};

use super::emit;
use crate::{
    cgroup::{Handles, Index, Sought},
    clock,
    journal::Journal,
    model::{CgroupId, CgroupPath, Owner},
    sense::{ByKind, PressureEvent, Pressures, Stall, StallRing, StallWorld, Stalls},
    source::Kubelet,
};

/// How often cgroups that are gone are forgotten. There is no other work at rest.
const SWEEP: Duration = Duration::from_mins(1);

/// How long a reading of the map is fresh enough for a report.
const FRESH: Duration = Duration::from_millis(500);

/// The most levels above a cgroup in which its pod is looked for: containers may make cgroups of their own.
const MAX_LEVELS: usize = 16;

/// How long an event waits for the names of its pod and container, at most: as long as an OOM incident does. It is less
/// than the time after which a stall is over.
const NAMED: Duration = Duration::from_secs(5);

/// How often they are looked for.
const NAME_LOOK: Duration = Duration::from_millis(100);

/// The most events that wait for names.
const MOST_WAITING: usize = 256;

/// Turns stalls into pressure events.
pub(super) struct Stalling {
    journal: Journal,
    ring: StallRing,
    pressures: Pressures,
    known: Known,
    waiting: Waiting,
    unreported: u64,
}

/// Events about pods or containers that have no name yet.
#[derive(Debug, Default)]
struct Waiting {
    /// Each with the time until which it waits.
    events: Vec<(Instant, PressureEvent)>,
    /// When names are looked for.
    look_at: Option<Instant>,
}

impl Waiting {
    /// Keeps an event; returns one that cannot wait, as too many do.
    fn keep(&mut self, event: PressureEvent, now: Instant) -> Option<PressureEvent> {
        if self.events.len() >= MOST_WAITING {
            return Some(event);
        }
        self.events.push((now + NAMED, event));
        self.look_at.get_or_insert(now + NAME_LOOK);
        None
    }

    /// The events that need not wait any more, oldest first.
    fn due(&mut self, now: Instant, mut awaits_name: impl FnMut(CgroupId) -> bool) -> Vec<PressureEvent> {
        let due = self.events.extract_if(.., |(until, event)| *until <= now || !awaits_name(event.cgroup()));
        let due = due.map(|(_, event)| event).collect();
        self.look_at = (!self.events.is_empty()).then(|| now + NAME_LOOK);
        due
    }
}

impl Stalling {
    /// `kubelet` is the one that owns the pods' cgroups, if there is one.
    pub(super) fn new(
        journal: Journal,
        (index, kubelet): (Index, Option<Kubelet>),
        stalls: Stalls,
        ring: StallRing,
    ) -> Self {
        let handles = Handles::of(Path::new(crate::cgroup::MOUNT)).ok();
        let known = Known { index, kubelet, handles, stalls, read: None };
        let (pressures, waiting) = (Pressures::default(), Waiting::default());
        Self { journal, ring, pressures, known, waiting, unreported: 0 }
    }

    /// Turns records into events until it is aborted.
    pub(super) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            let due = self.pressures.due_ns().map(|due_ns| due_ns.saturating_sub(clock::boottime_ns()));
            let look = self.waiting.look_at.map(|at| at.saturating_duration_since(Instant::now()));
            tokio::select! {
                stall = self.ring.next() => match stall {
                    Ok(stall) => {
                        let event = self.pressures.stalled(clock::boottime_ns(), &stall, &mut self.known);
                        if let Some(event) = event {
                            self.rising(event);
                        }
                    }
                    Err(error) => {
                        let message = format!("stalls in reclaim are no longer reported: cannot read the ring: {error}");
                        emit::degraded(&self.journal, "stalls", &message);
                        return;
                    }
                },
                () = sleep(due.map(Duration::from_nanos)) => {
                    for event in self.pressures.quiet(clock::boottime_ns(), &mut self.known) {
                        self.emit(event);
                    }
                }
                () = sleep(look) => {
                    let known = &self.known;
                    for event in self.waiting.due(Instant::now(), |cgroup| known.awaits_name(cgroup)) {
                        self.emit(event);
                    }
                }
                _ = sweep.tick() => self.sweep(),
            }
        }
    }

    /// Emits it, once its pod and container have names.
    fn rising(&mut self, event: PressureEvent) {
        let event = if self.known.awaits_name(event.cgroup()) {
            self.waiting.keep(event, Instant::now())
        } else {
            Some(event)
        };
        if let Some(event) = event {
            self.emit(event);
        }
    }

    fn emit(&mut self, mut event: PressureEvent) {
        event.name_again(&mut self.known);
        let subject = event.subject();
        self.journal.emit(subject, event.into_payload());
    }

    fn sweep(&mut self) {
        self.known.forget_gone();
        let unreported = self.pressures.unreported();
        if unreported > self.unreported {
            let message = format!(
                "{} stalls were not reported: too many pods are stalled at a time",
                unreported - self.unreported
            );
            emit::degraded(&self.journal, "stallsUntold", &message);
            self.unreported = unreported;
        }
    }
}

/// At the end nothing looks for names any more.
impl Drop for Stalling {
    fn drop(&mut self) {
        for event in self.waiting.due(Instant::now(), |_| false) {
            self.emit(event);
        }
    }
}

async fn sleep(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => future::pending().await,
    }
}

/// The known cgroups and their stalls.
struct Known {
    index: Index,
    /// The kubelet that owns the pods' cgroups; `None` without one.
    kubelet: Option<Kubelet>,
    handles: Option<Handles>,
    stalls: Stalls,
    read: Option<(Instant, Vec<Stall>)>,
}

impl Known {
    fn find(&self, cgroup: CgroupId) -> Option<CgroupPath> {
        match self.handles.as_ref()?.find(cgroup) {
            Sought::Found(path) => Some(path),
            Sought::Gone | Sought::Unknown => None,
        }
    }

    /// Whether the cgroup's pod or container has no name yet.
    fn awaits_name(&self, cgroup: CgroupId) -> bool {
        let Some(kubelet) = &self.kubelet else { return false };
        self.find(cgroup).is_some_and(|path| kubelet.awaits_name(&path))
    }

    /// Removes the map's entries for cgroups that no longer exist.
    fn forget_gone(&mut self) {
        let Self { index, kubelet: _, handles, stalls, read } = self;
        *read = None;
        let Some(handles) = handles else { return };
        let found = match stalls.read() {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(error = %crate::chain(&error), "cannot read stalls");
                return;
            }
        };
        let ids: HashSet<_> =
            found.iter().flat_map(|stall| [Some(stall.cgroup), stall.limit]).flatten().collect();
        let is_alive = |id: &CgroupId| index.resolve(*id).is_some_and(|resolved| resolved.alive);
        let gone: HashSet<_> =
            ids.into_iter().filter(|id| !is_alive(id) && matches!(handles.find(*id), Sought::Gone)).collect();
        if gone.is_empty() {
            return;
        }
        match stalls.forget(|id| gone.contains(&id)) {
            Ok(removed) => tracing::debug!(removed, "removed stalls of cgroups that are gone"),
            Err(error) => {
                tracing::debug!(error = %crate::chain(&error), "cannot remove stalls of cgroups that are gone");
            }
        }
    }
}

impl StallWorld for Known {
    fn owner(&mut self, cgroup: CgroupId) -> Option<Owner> {
        let handles = self.handles.as_ref();
        let above = || handles.map_or_else(Vec::new, |handles| handles.above(cgroup, MAX_LEVELS));
        owner_of(cgroup, (&self.index, self.kubelet.as_ref()), above, || self.find(cgroup))
    }

    fn path(&mut self, cgroup: CgroupId) -> Option<CgroupPath> {
        let of_pod = self.index.resolve(cgroup).map(|resolved| resolved.owner.path.clone());
        of_pod.or_else(|| self.find(cgroup))
    }

    fn stalled_ns(&mut self, cgroup: CgroupId) -> ByKind {
        if self.read.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH) {
            let read = self.stalls.read().unwrap_or_else(|error| {
                tracing::debug!(error = %crate::chain(&error), "cannot read stalls");
                Vec::new()
            });
            self.read = Some((Instant::now(), read));
        }
        let read = self.read.as_ref().map_or(&[][..], |(_, read)| read);
        Stall::sum_ns(read.iter().filter(|stall| stall.cgroup == cgroup))
    }
}

/// Whose a cgroup is, by the cgroups above it, nearest first, and its path. A cgroup in a container belongs to that
/// container. A kubelet's container may be stalled before the plan has it: then its path says whose it is.
fn owner_of(
    cgroup: CgroupId,
    (index, kubelet): (&Index, Option<&Kubelet>),
    above: impl FnOnce() -> Vec<CgroupId>,
    path: impl FnOnce() -> Option<CgroupPath>,
) -> Option<Owner> {
    if let Some(resolved) = index.resolve(cgroup) {
        return Some(Owner::clone(&resolved.owner));
    }
    let above = above().into_iter().find_map(|id| index.resolve(id)).map(|resolved| resolved.owner);
    let is_container = above.as_ref().is_some_and(|owner| owner.level.container().is_some());
    let by_path = kubelet.filter(|_| !is_container).and_then(|kubelet| kubelet.owner(&path()?));
    by_path.or_else(|| above.map(|owner| Owner::clone(&owner)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use enforcer_events::{pod::Place, pressure::StallsOver};

    use super::*;
    use crate::{
        cgroup::{ContainerCgroup, PodCgroup},
        cri::{Container, Listing, Sandbox},
        model::{ContainerId, OwnerLevel, PodName, PodUid, QosClass},
        policy::{CgroupDriver, name::PodPlace},
        source::{Identities, PlacedPods},
    };

    const UID: &str = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
    const POD: CgroupId = CgroupId(10);
    const CONTAINER: CgroupId = CgroupId(11);
    const NESTED: CgroupId = CgroupId(12);

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn pod_path() -> CgroupPath {
        CgroupPath::parse(&format!("/kubepods/pod{UID}")).unwrap()
    }

    fn container_path() -> CgroupPath {
        pod_path().child(&id('1')).unwrap()
    }

    /// A kubelet with one pod: its container is new, and the container runtime has not named anything yet.
    fn node() -> (Index, Kubelet, PlacedPods) {
        let identities = Identities::default();
        let kubelet = Kubelet {
            kubepods: CgroupPath::parse("/kubepods").unwrap(),
            driver: CgroupDriver::Cgroupfs,
            identities: identities.clone(),
        };
        let mut pods = PlacedPods::new(Duration::ZERO, identities);
        let container = ContainerId::new(&id('1')).unwrap();
        let containers = vec![ContainerCgroup { container, path: container_path(), score: None }];
        let place =
            PodPlace { uid: PodUid::new(UID).unwrap(), class: QosClass::Guaranteed, path: pod_path() };
        pods.take(vec![PodCgroup { place, id: POD, containers }], Instant::now());
        (Index::new(), kubelet, pods)
    }

    fn name_all(pods: &mut PlacedPods) {
        let sandbox = Sandbox {
            id: id('0'),
            pod_uid: UID.to_owned(),
            namespace: String::from("shop"),
            name: String::from("web"),
            attempt: 0,
            ready: true,
            is_static: false,
        };
        let app = Container {
            id: id('1'),
            sandbox_id: id('0'),
            name: String::from("app"),
            attempt: 0,
            running: true,
        };
        let listing = Listing {
            runtime: String::from("fake 1"),
            sandboxes: vec![sandbox],
            containers: vec![app],
            dropped: 0,
        };
        pods.learn(&listing, Instant::now());
    }

    fn pod_level() -> OwnerLevel {
        let pod = PodName { namespace: String::from("shop"), name: String::from("web") };
        OwnerLevel::Pod { pod: pod.into(), uid: PodUid::new(UID).unwrap() }
    }

    /// Pod, container and path.
    fn shown(owner: &Owner) -> (String, Option<String>, String) {
        let pod = owner.level.pod().map(ToString::to_string).unwrap_or_default();
        (pod, owner.level.container().map(str::to_owned), owner.path.to_string())
    }

    /// A stall of 50 ms is sooner than the next reading of the cgroups may be.
    #[test]
    fn a_container_that_the_plan_does_not_have_yet_is_named_by_its_kubelet() {
        let (index, kubelet, mut pods) = node();
        let find = |index: &Index| {
            let owner = owner_of(CONTAINER, (index, Some(&kubelet)), || vec![POD], || Some(container_path()));
            owner.map(|owner| (owner.level.uid().map(ToString::to_string), shown(&owner))).unwrap()
        };
        let path = container_path().to_string();
        let unnamed = (format!("(unknown)/{UID}"), Some(id('1')), path.clone());
        assert_eq!(find(&index), (Some(UID.to_owned()), unnamed));
        name_all(&mut pods);
        let named = (String::from("shop/web"), Some(String::from("app")), path);
        assert_eq!(find(&index), (Some(UID.to_owned()), named.clone()));
        // The plan may have the pod before it has the container.
        index.insert(POD, Owner { path: pod_path(), level: pod_level() });
        assert_eq!(find(&index).1, named);
    }

    fn event(cgroup: u64) -> PressureEvent {
        PressureEvent::Cleared(StallsOver {
            place: Place::default(),
            cgroup_id: cgroup,
            lasted_ms: 0,
            stalled_ms: BTreeMap::new(),
            longest_stall_ms: 0,
            records: 1,
        })
    }

    #[test]
    fn an_event_waits_for_its_names_and_not_for_ever() {
        let (mut waiting, begin) = (Waiting::default(), Instant::now());
        for cgroup in [1, 2, 3] {
            assert_eq!(waiting.keep(event(cgroup), begin), None);
        }
        assert_eq!(waiting.look_at, Some(begin + NAME_LOOK));
        // The second is named first.
        assert_eq!(waiting.due(begin + NAME_LOOK, |cgroup| cgroup != CgroupId(2)), [event(2)]);
        assert_eq!(waiting.look_at, Some(begin + 2 * NAME_LOOK));
        assert_eq!(waiting.due(begin + NAMED.saturating_sub(NAME_LOOK), |_| true), []);
        assert_eq!(waiting.due(begin + NAMED, |_| true), [event(1), event(3)]);
        assert_eq!(waiting.look_at, None);
    }

    #[test]
    fn of_a_flood_without_names_no_event_is_lost() {
        let (mut waiting, now) = (Waiting::default(), Instant::now());
        let most = u64::try_from(MOST_WAITING).unwrap();
        for cgroup in 0..most {
            assert_eq!(waiting.keep(event(cgroup), now), None);
        }
        assert_eq!(waiting.keep(event(most), now), Some(event(most)));
        assert_eq!(waiting.due(now, |_| false).len(), MOST_WAITING);
    }

    #[test]
    fn a_cgroup_in_a_container_that_the_plan_has_is_that_containers() {
        let (index, kubelet, _pods) = node();
        let level = OwnerLevel::Container {
            pod: PodName { namespace: String::from("shop"), name: String::from("web") }.into(),
            uid: PodUid::new(UID).unwrap(),
            container: String::from("app"),
        };
        index.insert(CONTAINER, Owner { path: container_path(), level });
        let nested = || container_path().child("inner").ok();
        let owner = owner_of(NESTED, (&index, Some(&kubelet)), || vec![CONTAINER, POD], nested).unwrap();
        let path = container_path().to_string();
        assert_eq!(shown(&owner), (String::from("shop/web"), Some(String::from("app")), path));
    }

    #[test]
    fn without_a_path_or_a_kubelet_the_cgroups_above_say_whose_one_is() {
        let (index, kubelet, mut pods) = node();
        name_all(&mut pods);
        index.insert(POD, Owner { path: pod_path(), level: pod_level() });
        let pod = (String::from("shop/web"), None, pod_path().to_string());
        let gone = owner_of(CONTAINER, (&index, Some(&kubelet)), || vec![POD], || None).unwrap();
        assert_eq!(shown(&gone), pod);
        let alone = owner_of(CONTAINER, (&index, None), || vec![POD], || Some(container_path())).unwrap();
        assert_eq!(shown(&alone), pod);
        let system = || CgroupPath::parse("/system.slice/db.service").ok();
        assert_eq!(owner_of(CgroupId(99), (&index, Some(&kubelet)), Vec::new, system), None);
    }
}
