//! Decides which pods of the roster may run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Active, Change, Entry, HeldBack, Roster, State};
use crate::{
    model::{Node, Pod, PodUid, ResourceList},
    policy::{
        Settings,
        admission::{
            Admitter, CpuAdmitter, CpuRejection, Cpus, Place, Rejection, under_conditions, wanted_of,
        },
        cpus::Assignments,
        critical,
        threshold::NodeCondition,
    },
    source::AdmittedBy,
};

/// What the decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Grounds<'a> {
    /// What the node has.
    pub node: &'a Node,
    /// What of it pods may have.
    pub settings: &'a Settings,
    /// What is reserved for others than pods.
    pub reserved: &'a ResourceList,
    /// What the node lacks now.
    pub conditions: &'a [NodeCondition],
    /// The pods that have a cgroup: even those that are not to run may still use what they request.
    pub standing: &'a BTreeSet<PodUid>,
    /// The CPUs that containers get for themselves; `None` if none does.
    pub cpus: Option<CpuGrounds<'a>>,
}

/// What decisions about CPUs depend on.
#[derive(Clone, Copy, Debug)]
pub struct CpuGrounds<'a> {
    /// The machine's.
    pub cpus: &'a Cpus,
    /// Who has which by now.
    pub assignments: &'a Assignments,
    /// Whether pods that are not known keep theirs even without a cgroup, as they may come yet.
    pub keeps_unknown: bool,
}

/// The decisions that differ from before.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Decisions {
    /// The pods that may not run, and why: each once while the reason is the same. A pod of which only the changed
    /// manifest does not fit is listed too, as it is in that manifest.
    pub rejected: Vec<(Arc<Pod>, Rejection)>,
    /// Those of them that ran, and must end for a critical pod.
    pub preempted: Vec<PodUid>,
    /// The changed manifests that were rejected before, and are in force now.
    pub in_force: Vec<Change>,
    /// Who has which CPUs from now on; `None` if none has.
    pub cpus: Option<Assignments>,
}

impl Roster {
    /// Decides which pods may run.
    ///
    /// An admitted pod stays admitted. A changed manifest comes into force if it fits in place of the old one, else the
    /// old one stays. Then the others are looked at in order of arrival. A critical pod may make others end, and waits
    /// until they are gone; those that are ending already count as gone for it. Pods that another admitted take their
    /// room, and are not decided on.
    pub fn admit(&mut self, grounds: &Grounds<'_>) -> Decisions {
        let mut decisions = Decisions::default();
        let entries: Vec<Entry> = self.entries().into_iter().cloned().collect();
        let mut round = Round::new(&entries, grounds);
        for entry in &entries {
            let State::Active(active) = &entry.state else { continue };
            let mut active = active.clone();
            let mut pod = &entry.pod;
            active.awaits.retain(|uid| grounds.standing.contains(uid));
            if let Some(held_back) = entry.held_back() {
                match round.replace(&entry.pod, &held_back.pod) {
                    Ok(()) => {
                        active.held_back = None;
                        if held_back.rejection.is_some() {
                            let (old, new) = (Arc::clone(&entry.pod), Arc::clone(&held_back.pod));
                            decisions.in_force.push(Change::Changed { old, new });
                        }
                        pod = &held_back.pod;
                    }
                    Err(rejection) => {
                        if is_news(held_back.rejection.as_ref(), &rejection) {
                            decisions.rejected.push((Arc::clone(&held_back.pod), rejection.clone()));
                        }
                        let pod = Arc::clone(&held_back.pod);
                        active.held_back = Some(HeldBack { pod, rejection: Some(rejection) });
                    }
                }
            }
            self.settle(pod, State::Active(active));
        }
        for entry in &entries {
            let State::Waiting { rejection: before } = &entry.state else { continue };
            match round.decide(&entry.pod) {
                Ok(Room { victims, awaits }) => {
                    self.admissions += 1;
                    let active = Active { admission: self.admissions, awaits, held_back: None };
                    self.settle(&entry.pod, State::Active(active));
                    for victim in victims {
                        self.settle(&victim, State::Preempted);
                        decisions.preempted.push(victim.uid.clone());
                        decisions.rejected.push((victim, Rejection::Preempted));
                    }
                }
                Err(rejection) => {
                    if is_news(before.as_ref(), &rejection) {
                        decisions.rejected.push((Arc::clone(&entry.pod), rejection.clone()));
                    }
                    self.settle(&entry.pod, State::Waiting { rejection: Some(rejection) });
                }
            }
        }
        let requested = round.admitter.requested_by_pods(grounds.reserved);
        self.requested = requested;
        decisions.cpus = round.cpus.map(CpuAdmitter::into_assignments);
        decisions
    }

    fn settle(&mut self, pod: &Arc<Pod>, state: State) {
        if let Some(entry) = self.entries.get_mut(&pod.uid) {
            // An ended pod stays ended until its source has another manifest than it has now.
            entry.pod = if state == State::Preempted { Arc::clone(entry.wanted()) } else { Arc::clone(pod) };
            entry.state = state;
        }
    }
}

/// The numbers in a message change with every pod that comes and goes; only a new reason is reported.
fn is_news(before: Option<&Rejection>, now: &Rejection) -> bool {
    before.is_none_or(|before| before.reason() != now.reason())
}

/// Room for a pod.
struct Room {
    /// The pods that must end for it.
    victims: Vec<Arc<Pod>>,
    /// The pods that must be gone before it starts.
    awaits: BTreeSet<PodUid>,
}

/// One round of decisions.
struct Round<'a> {
    grounds: &'a Grounds<'a>,
    admitter: Admitter<'a>,
    /// The running pods, by place.
    running: BTreeMap<Place, &'a Arc<Pod>>,
    /// The pods that are ending, and still use what they request.
    dying: Vec<&'a Arc<Pod>>,
    cpus: Option<CpuAdmitter<'a>>,
}

impl<'a> Round<'a> {
    fn new(entries: &'a [Entry], grounds: &'a Grounds<'a>) -> Self {
        let mut round = Self {
            grounds,
            admitter: Admitter::new(grounds.node, grounds.settings),
            running: BTreeMap::new(),
            dying: Vec::new(),
            cpus: grounds.cpus.map(|cpus| cpu_admitter(entries, grounds.standing, cpus)),
        };
        round.admitter.reserve(grounds.reserved);
        let mut active: Vec<(u64, &Arc<Pod>)> = Vec::new();
        for entry in entries {
            let stands = grounds.standing.contains(&entry.pod.uid);
            match &entry.state {
                State::Active(_) if entry.admitted_by == AdmittedBy::Other => {
                    round.admitter.occupy(&entry.pod);
                }
                State::Active(own) => active.push((own.admission, &entry.pod)),
                State::Evicted | State::Preempted if stands => round.die(&entry.pod),
                State::Waiting { .. } | State::Leaving if stands => round.admitter.occupy(&entry.pod),
                State::Waiting { .. } | State::Leaving | State::Evicted | State::Preempted => {}
            }
        }
        active.sort_unstable_by_key(|(admission, _)| *admission);
        for (_, pod) in active {
            round.keep(pod);
        }
        round
    }

    fn keep(&mut self, pod: &'a Arc<Pod>) {
        let place = self.admitter.keep(pod);
        self.running.insert(place, pod);
    }

    fn die(&mut self, pod: &'a Arc<Pod>) {
        self.admitter.occupy(pod);
        self.dying.push(pod);
    }

    /// Puts the new pod into the old one's place, or returns why it does not fit there.
    fn replace(&mut self, old: &'a Arc<Pod>, new: &'a Arc<Pod>) -> Result<(), Rejection> {
        let place = self.running.iter().find(|(_, pod)| pod.uid == old.uid).map(|(place, _)| *place);
        if let Some(place) = place {
            self.admitter.end(place);
            self.running.remove(&place);
        }
        let shortage = self.admitter.shortages(new).into_iter().next().map(Rejection::Insufficient);
        let rejection = self.other_cpus(old, new).or(shortage);
        self.keep(if rejection.is_none() { new } else { old });
        rejection.map_or(Ok(()), Err)
    }

    /// Why the new manifest is not in force, if it wants other CPUs than the old one: a kubelet does not resize such a
    /// container either.
    fn other_cpus(&self, old: &Pod, new: &Pod) -> Option<Rejection> {
        self.cpus.as_ref()?;
        (wanted_of(old) != wanted_of(new)).then_some(Rejection::Cpus(CpuRejection::Changed))
    }

    fn decide(&mut self, pod: &'a Arc<Pod>) -> Result<Room, Rejection> {
        let stands = self.grounds.standing.contains(&pod.uid);
        if stands {
            // What it still uses is its own.
            self.admitter.vacate(pod);
        }
        let decided = self.room(pod);
        match &decided {
            Ok(_) => self.keep(pod),
            Err(_) if stands => self.admitter.occupy(pod),
            Err(_) => {}
        }
        decided
    }

    /// Decides on a pod's CPUs first, as the kubelet does.
    fn room(&mut self, pod: &Pod) -> Result<Room, Rejection> {
        under_conditions(pod, self.grounds.conditions)?;
        if let Some(cpus) = &mut self.cpus {
            cpus.admit(pod)?;
        }
        let room = self.room_beside(pod);
        if room.is_err()
            && let Some(cpus) = &mut self.cpus
            && !self.grounds.standing.contains(&pod.uid)
        {
            cpus.withdraw(pod);
        }
        room
    }

    fn room_beside(&mut self, pod: &Pod) -> Result<Room, Rejection> {
        let beside_the_dying = self.admitter.decide(pod, self.grounds.conditions);
        // Only a critical pod makes others end, or waits for the end of others.
        if !critical::is_critical(pod) || beside_the_dying.as_ref().is_ok_and(Vec::is_empty) {
            return beside_the_dying.map(|_| Room { victims: Vec::new(), awaits: BTreeSet::new() });
        }
        for dying in &self.dying {
            self.admitter.vacate(dying);
        }
        let decided = self.admitter.decide(pod, self.grounds.conditions);
        for dying in &self.dying {
            self.admitter.occupy(dying);
        }
        let mut victims = Vec::new();
        for place in decided? {
            self.admitter.end(place);
            if let Some(victim) = self.running.remove(&place) {
                self.die(victim);
                victims.push(Arc::clone(victim));
            }
        }
        let awaits = self.dying.iter().map(|dying| dying.uid.clone()).collect();
        Ok(Room { victims, awaits })
    }
}

/// What containers have of the CPUs before anything is decided: active pods what they want, and others that still stand, or
/// may come yet, what they have.
fn cpu_admitter<'a>(
    entries: &[Entry],
    standing: &BTreeSet<PodUid>,
    CpuGrounds { cpus, assignments, keeps_unknown }: CpuGrounds<'a>,
) -> CpuAdmitter<'a> {
    let mut known: BTreeMap<&PodUid, bool> = BTreeMap::new();
    let mut active: Vec<(u64, &Arc<Pod>)> = Vec::new();
    for entry in entries {
        let is_active = match &entry.state {
            State::Active(own) if entry.admitted_by == AdmittedBy::Roster => {
                active.push((own.admission, &entry.pod));
                true
            }
            State::Active(_) | State::Waiting { .. } | State::Evicted | State::Preempted | State::Leaving => {
                false
            }
        };
        // One that was never looked at may have had some before a restart.
        let is_new = matches!(entry.state, State::Waiting { rejection: None });
        known.insert(&entry.pod.uid, !is_active && (is_new || standing.contains(&entry.pod.uid)));
    }
    active.sort_unstable_by_key(|(admission, _)| *admission);
    // One whose manifest went while no daemon ran is in no source, and its processes may run on.
    let keeps =
        |uid: &PodUid| known.get(uid).copied().unwrap_or_else(|| keeps_unknown || standing.contains(uid));
    let mut holders = CpuAdmitter::holders(assignments, keeps);
    holders.extend(active.iter().flat_map(|(_, pod)| wanted_of(pod)));
    CpuAdmitter::new(cpus, assignments, holders)
}
