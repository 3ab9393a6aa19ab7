//! Ranks the candidates on request, apart from the reflex.
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::lock;
use crate::{
    clock,
    evict::{Candidate, Identity},
    model::{CgroupId, PodUid},
    policy::{
        engine::{
            CandidateFacts, Candidates, Engine, EngineSettings, Excluded, Ranked, Ranking, Reading, Resource,
        },
        rank::{DecidedBy, MemoryRankKey},
        threshold::Signal,
    },
    recorder::Asker,
    serve::{ExcludedView, RankedView, Ranker, RankingView},
};

/// How far apart two readings must be to show growth: closer ones show noise, and between readings further apart the
/// growth may have varied.
const SPAN: Duration = Duration::from_millis(250);
const LONGEST_SPAN_NS: u64 = 10_000_000_000;

/// How long a reading is shared by requests: each read of `memory.stat` makes the kernel sum up its counters under a
/// lock (`cgroup_rstat_flush`) that the reflex needs too.
const FRESH_NS: u64 = 100_000_000;

/// The last reading made apart from the reflex, shared by all requests.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Option<(Vec<CgroupId>, Arc<Readings>)>>);

impl Recent {
    /// Returns the candidates' usage, at most a moment old. One caller reads at a time; others wait for it.
    pub(super) fn take(&self, candidates: &[Arc<Candidate>]) -> Arc<Readings> {
        self.take_at(clock::boottime_ns, candidates)
    }

    fn take_at(&self, now_ns: impl FnOnce() -> u64, candidates: &[Arc<Candidate>]) -> Arc<Readings> {
        let mut last = lock(&self.0);
        let cgroups: Vec<_> = candidates.iter().map(|candidate| candidate.facts().cgroup).collect();
        // Taken under the lock, when no other reading is under way.
        let now_ns = now_ns();
        if let Some((of, readings)) = &*last
            && *of == cgroups
            && now_ns.saturating_sub(readings.at_ns) < FRESH_NS
        {
            return Arc::clone(readings);
        }
        let readings = Arc::new(Readings::take(now_ns, candidates));
        *last = Some((cgroups, Arc::clone(&readings)));
        readings
    }
}

/// An earlier reading: its time, and each working set.
#[derive(Clone, Debug, Default)]
struct Before {
    at_ns: u64,
    working_set_bytes: HashMap<CgroupId, u64>,
}

/// The inputs of a ranking. The flight recorder adds the engine's own state, such as pods that could not be evicted;
/// without a recorder that is left out.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    candidates: Arc<Mutex<Vec<Arc<Candidate>>>>,
    settings: Arc<Mutex<EngineSettings>>,
    recent: Arc<Recent>,
    recorder: Option<Asker>,
}

impl Ranks {
    pub(super) fn new(
        candidates: Arc<Mutex<Vec<Arc<Candidate>>>>,
        settings: Arc<Mutex<EngineSettings>>,
        recent: Arc<Recent>,
        recorder: Option<Asker>,
    ) -> Self {
        Self { candidates, settings, recent, recorder }
    }

    /// The candidates at present.
    pub(super) fn candidates(&self) -> Vec<Arc<Candidate>> {
        // Read without the lock: the daemon does not wait for it.
        lock(&self.candidates).clone()
    }

    /// Ranks the candidates, with the growth of each. Without a recent request, measuring growth takes [`SPAN`].
    pub(super) fn ranker(self) -> Ranker {
        let past = Mutex::new(Past::default());
        Ranker::by(move |signal| {
            // One ranking at a time, however many requests there are.
            let mut past = lock(&past);
            let candidates = self.candidates();
            let mut reading = self.recent.take(&candidates);
            if past.at(reading.at_ns).is_none() {
                past.take_in(reading.before(&candidates));
                thread::sleep(SPAN);
                reading = self.recent.take(&candidates);
            }
            let ranking = self.order(&candidates, &reading, signal);
            let now = reading.before(&candidates);
            let growth = past.at(now.at_ns).map(|before| growth(before, &now)).unwrap_or_default();
            past.take_in(now);
            view(signal, &candidates, &reading.readings, &ranking, &growth)
        })
    }

    /// Returns the next victims if memory runs short, the first one first, at most that many.
    pub(super) fn next(&self, candidates: &[Arc<Candidate>], most: usize) -> Vec<Arc<Candidate>> {
        let ranking = self.order(candidates, &self.recent.take(candidates), Signal::MemoryAvailable);
        let next = ranking.order.iter().take(most);
        next.filter_map(|ranked| candidates.get(ranked.index.0).map(Arc::clone)).collect()
    }

    /// Returns all in their order if memory runs short, without the pod of that uid if its usage cannot be read any more: it
    /// is gone, and would come first.
    pub(super) fn order_beside(&self, candidates: &[Arc<Candidate>], gone: &PodUid) -> Vec<Arc<Candidate>> {
        let reading = self.recent.take(candidates);
        let ranking = self.order(candidates, &reading, Signal::MemoryAvailable);
        let is_there = |ranked: &&Ranked| {
            let is_it =
                candidates.get(ranked.index.0).is_some_and(|candidate| candidate.identity().uid == *gone);
            !is_it || reading.readings.get(ranked.index.0).and_then(Reading::usage).is_some()
        };
        let ranked = ranking.order.iter().filter(is_there);
        ranked.filter_map(|ranked| candidates.get(ranked.index.0).map(Arc::clone)).collect()
    }

    fn order(&self, candidates: &[Arc<Candidate>], reading: &Readings, signal: Signal) -> Ranking {
        let mut engine = self
            .recorder
            .as_ref()
            .and_then(Asker::engine)
            .unwrap_or_else(|| Engine::new(&lock(&self.settings).clone()));
        let facts: Vec<_> = candidates.iter().map(|candidate| candidate.facts()).collect();
        drop(engine.replace(Candidates::new(&facts)));
        engine.rank(reading.at_ns, signal, &reading.readings)
    }
}

/// Each candidate's usage.
#[derive(Debug)]
pub(super) struct Readings {
    at_ns: u64,
    /// In the order of the candidates.
    pub(super) readings: Vec<Reading>,
}

impl Readings {
    fn take(at_ns: u64, candidates: &[Arc<Candidate>]) -> Self {
        Self { at_ns, readings: candidates.iter().map(|candidate| candidate.usage_apart()).collect() }
    }

    fn before(&self, candidates: &[Arc<Candidate>]) -> Before {
        let usage = |(candidate, reading): (&Arc<Candidate>, &Reading)| {
            Some((candidate.facts().cgroup, reading.usage()?.working_set_bytes))
        };
        Before {
            at_ns: self.at_ns,
            working_set_bytes: candidates.iter().zip(&self.readings).filter_map(usage).collect(),
        }
    }
}

/// The latest readings, and those before them: a request right after another gets the growth since the latter.
#[derive(Debug, Default)]
struct Past {
    latest: Before,
    earlier: Before,
}

impl Past {
    /// Returns the latest reading that shows growth until then.
    fn at(&self, now_ns: u64) -> Option<&Before> {
        let span = nanos(SPAN)..=LONGEST_SPAN_NS;
        [&self.latest, &self.earlier]
            .into_iter()
            .find(|before| span.contains(&now_ns.saturating_sub(before.at_ns)))
    }

    fn take_in(&mut self, now: Before) {
        if now.at_ns.saturating_sub(self.latest.at_ns) >= nanos(SPAN) {
            self.earlier = std::mem::replace(&mut self.latest, now);
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Each candidate's growth, in bytes a second.
fn growth(before: &Before, now: &Before) -> HashMap<CgroupId, i64> {
    let span_ns = i128::from(now.at_ns.saturating_sub(before.at_ns));
    let of = |(cgroup, bytes): (&CgroupId, &u64)| {
        let grown = i128::from(*bytes) - i128::from(*before.working_set_bytes.get(cgroup)?);
        let a_second = (grown * 1_000_000_000).checked_div(span_ns)?;
        Some((*cgroup, i64::try_from(a_second).unwrap_or(if a_second < 0 { i64::MIN } else { i64::MAX })))
    };
    now.working_set_bytes.iter().filter_map(of).collect()
}

fn view(
    signal: Signal,
    candidates: &[Arc<Candidate>],
    readings: &[Reading],
    ranking: &Ranking,
    growth: &HashMap<CgroupId, i64>,
) -> RankingView {
    let Ranking { order, excluded } = ranking;
    let ranked = |(place, ranked): (usize, &Ranked)| {
        let candidate = candidates.get(ranked.index.0)?;
        let mut view = ranked_view(signal, candidate, readings.get(ranked.index.0)?);
        view.rank = place + 1;
        view.growth_bytes_per_second = growth.get(&ranked.cgroup).copied();
        let decided_by = order.get(place + 1).map(|next| ranked.compare(next).1);
        let is_alone = order.len() == 1;
        view.decided_by = (decided_by.is_some() || is_alone).then(|| DecidedBy::of(decided_by).to_owned());
        Some(view)
    };
    let left_out = |Excluded { index, reason, .. }: &Excluded| {
        let pod = &candidates.get(index.0)?.identity().pod;
        let reason = reason.as_str().to_owned();
        Some(ExcludedView { namespace: pod.namespace.clone(), name: pod.name.clone(), reason })
    };
    RankingView {
        signal: signal.as_str().to_owned(),
        order: order.iter().enumerate().filter_map(ranked).collect(),
        excluded: excluded.iter().filter_map(left_out).collect(),
    }
}

fn ranked_view(signal: Signal, candidate: &Candidate, reading: &Reading) -> RankedView {
    let (usage, process_count) = (reading.usage(), reading.process_count());
    let Identity { pod, uid, qos_class, limit_bytes, cgroup: _, controller: _, placed: _, spec: _ } =
        candidate.identity();
    let CandidateFacts { cgroup, priority, request_bytes, .. } = candidate.facts();
    let usage_bytes = usage.map(|usage| usage.working_set_bytes);
    let standing = MemoryRankKey { usage_bytes, request_bytes, priority, order: 0 };
    RankedView {
        rank: 0,
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: uid.as_str().to_owned(),
        qos_class: qos_class.as_str().to_owned(),
        evictable: true,
        stats_missing: match Resource::of(signal) {
            Some(Resource::Pids) => process_count.is_none(),
            Some(Resource::Memory) | None => usage.is_none(),
        },
        exceeds_request: standing.exceeds_request(),
        priority,
        usage_bytes,
        request_bytes,
        limit_bytes: *limit_bytes,
        above_request_bytes: standing.above_request_bytes(),
        anon_bytes: usage.map(|usage| usage.anon_bytes),
        file_bytes: usage.map(|usage| usage.file_bytes),
        shmem_bytes: usage.map(|usage| usage.shmem_bytes),
        current_bytes: usage.map(|usage| usage.current_bytes),
        process_count,
        growth_bytes_per_second: None,
        decided_by: None,
        cgroup_id: cgroup.0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        cgroup::{CgroupDir, Guard},
        policy::{Plan, PodPlan, Settings, admission::Admission, plan_decided},
        sample,
    };

    const MIB: u64 = 1 << 20;

    /// A cgroup of ordinary files, using that much.
    pub(in crate::daemon) fn write_usage(dir: &Path, used_bytes: u64) {
        fs::create_dir_all(dir).unwrap();
        for (file, text) in [
            ("cgroup.kill", String::new()),
            ("cgroup.procs", String::new()),
            ("cgroup.events", String::from("populated 1\nfrozen 0\n")),
            ("pids.current", String::from("3\n")),
            ("memory.current", format!("{used_bytes}\n")),
            ("memory.stat", format!("anon {used_bytes}\nfile 0\nshmem 0\ninactive_file 0\n")),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    #[test]
    fn a_reading_serves_all_that_ask_within_a_moment_about_the_same_candidates() {
        let temp = tempfile::tempdir().unwrap();
        let pods = ["a", "b"].map(|name| sample::pod(name, &["a"]));
        let decided: Vec<_> = pods.iter().map(|pod| (pod, Admission::plain())).collect();
        let plan: Plan = plan_decided(&sample::node(), &Settings::default(), &decided);
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let dir = |plan: &PodPlan| temp.path().join(plan.cgroup.path.as_str().trim_start_matches('/'));
        let open = |plan: &Arc<PodPlan>| {
            write_usage(&dir(plan), MIB);
            Arc::new(Candidate::open(&root, &guard, plan).unwrap())
        };
        let candidates: Vec<_> = plan.pods.iter().map(open).collect();
        let recent = Recent::default();
        let used = |at_ms: u64, candidates: &[Arc<Candidate>]| -> Vec<u64> {
            let taken = recent.take_at(|| at_ms * 1_000_000, candidates);
            taken
                .readings
                .iter()
                .filter_map(Reading::usage)
                .map(|usage| usage.working_set_bytes / MIB)
                .collect()
        };
        assert_eq!(used(1_000, &candidates), [1, 1]);
        write_usage(&dir(&plan.pods[0]), 5 * MIB);
        assert_eq!(used(1_099, &candidates), [1, 1]);
        assert_eq!(used(1_099, &candidates[..1]), [5]);
        assert_eq!(used(1_100, &candidates), [5, 1]);
        assert_eq!(used(1_200, &candidates), [5, 1]);
    }

    #[test]
    fn candidates_are_ranked_by_what_they_use_now_with_who_is_left_out() {
        let temp = tempfile::tempdir().unwrap();
        let pods = ["small", "hog", "spared"].map(|name| sample::pod(name, &["a"]));
        let decided: Vec<_> = pods.iter().map(|pod| (pod, Admission::plain())).collect();
        let plan: Plan = plan_decided(&sample::node(), &Settings::default(), &decided);
        let dir =
            |index: usize| temp.path().join(plan.pods[index].cgroup.path.as_str().trim_start_matches('/'));
        for (index, used_mib) in [(0, 10), (1, 500), (2, 900)] {
            write_usage(&dir(index), used_mib * MIB);
        }
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let guard = Arc::new(Guard::new(Path::new("/proc"), &[]));
        let open = |(index, plan): (usize, &Arc<PodPlan>)| {
            Arc::new(Candidate::open(&root, &guard, plan).unwrap().protected(index == 2))
        };
        let candidates: Vec<_> = plan.pods.iter().enumerate().map(open).collect();
        let settings = Arc::new(Mutex::new(EngineSettings::default()));
        let recent = Arc::new(Recent::default());
        let ranks = Ranks::new(Arc::new(Mutex::new(candidates)), settings, recent, None);
        let next = ranks.next(&ranks.candidates(), 3);
        let next: Vec<_> = next.iter().map(|candidate| candidate.identity().pod.name.as_str()).collect();
        assert_eq!(next, ["hog", "small"]);
        let ranker = ranks.ranker();
        let ranking = ranker.rank(Signal::MemoryAvailable);
        let order: Vec<_> = ranking
            .order
            .iter()
            .map(|row| (row.rank, row.name.as_str(), row.usage_bytes, row.decided_by.as_deref()))
            .collect();
        let expected =
            [(1, "hog", Some(500 * MIB), Some("aboveRequest")), (2, "small", Some(10 * MIB), None)];
        assert_eq!(order, expected);
        assert!(ranking.order.iter().all(|row| row.growth_bytes_per_second == Some(0) && row.evictable));
        let excluded: Vec<_> =
            ranking.excluded.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect();
        assert_eq!(excluded, [("spared", "protected")]);
        // A later ranking reports the growth since, and the pod that grew most goes first.
        write_usage(&dir(0), 700 * MIB);
        thread::sleep(SPAN);
        let ranking = ranker.rank(Signal::MemoryAvailable);
        let first = &ranking.order[0];
        assert_eq!(first.name, "small");
        let growth = first.growth_bytes_per_second.unwrap();
        assert!((1..=690 * 4 * 1_048_576).contains(&growth), "{growth}");
        thread::sleep(Duration::from_nanos(FRESH_NS));
        let by_pids = ranker.rank(Signal::PidAvailable);
        assert_eq!(by_pids.order.iter().map(|row| row.process_count).collect::<Vec<_>>(), [Some(3), Some(3)]);
        assert_eq!(by_pids.order[0].decided_by.as_deref(), Some("order"));
        fs::remove_dir_all(dir(0)).unwrap();
        fs::remove_dir_all(dir(1)).unwrap();
        thread::sleep(Duration::from_nanos(FRESH_NS));
        let alone = ranker.rank(Signal::MemoryAvailable);
        assert!(alone.order.is_empty() && alone.excluded.len() == 3, "{alone:?}");
    }
}
