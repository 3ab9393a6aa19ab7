//! Stalls on real kernels: who was stalled, by whose limit, how long; beside what the kernel's own trace and pressure say.
use std::{
    collections::HashMap,
    fs,
    time::{Duration, Instant},
};

use enforcer::{
    model::CgroupId,
    sense::{Choice, Counters, LimitArgument, MuchStall, Programs, Stall, StallKind, StallRing, Stalls},
};
use enforcer_tests::{
    cgroup::Cgroup,
    host::Swap,
    load::Load,
    trace::{Seen, Trace, Watched},
    wait::wait_until,
};
use tokio::{runtime::Runtime, time::timeout};

use super::{TIMEOUT, tracer};

/// How long nothing must come until it is believed that nothing does.
const SILENCE: Duration = Duration::from_millis(500);
const LOAD: &str = "workload";
const NEVER_NS: u64 = u64::MAX;

/// The programs at work.
struct Watch {
    runtime: Runtime,
    stalls: Stalls,
    records: StallRing,
    counters: Counters,
    _programs: Programs,
}

impl Watch {
    fn start() -> Self {
        Self::with(&tracer::choice())
    }

    /// One that reports stalls of that length, or as much within a second; each cgroup once.
    fn reporting(stall_ns: u64, budget_ns: u64) -> Self {
        let mut choice = tracer::choice();
        choice.stall_limits.stall_ns = stall_ns;
        choice.stall_limits.budget_ns = budget_ns;
        choice.stall_limits.gap_ns = NEVER_NS;
        Self::with(&choice)
    }

    fn with(choice: &Choice) -> Self {
        assert_ne!(choice.reclaim.limit, LimitArgument::None, "these kernels all report whose limit it is");
        let attached = Programs::load(choice).unwrap();
        assert!(attached.failed.is_empty(), "{:#?}", attached.failed);
        Self {
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            stalls: attached.stalls,
            records: attached.stall_records,
            counters: attached.counters,
            _programs: attached.programs,
        }
    }

    fn within(&mut self, patience: Duration) -> Option<MuchStall> {
        let Self { runtime, records, .. } = self;
        runtime.block_on(async { timeout(patience, records.next()).await }).ok().map(Result::unwrap)
    }

    /// What came together of that kind in that cgroup, whoever's limit it was.
    fn of(&mut self, cgroup: &Cgroup, kind: StallKind) -> Vec<Stall> {
        let mut stalls = self.stalls.read().unwrap();
        stalls.retain(|stall| stall.cgroup == id(cgroup) && stall.kind == kind);
        stalls
    }

    fn assert_nothing_lost(&self) {
        let drops = self.counters.drops().unwrap();
        assert!(drops.iter().all(|(_, count)| *count == 0), "{drops:?}");
    }
}

fn id(cgroup: &Cgroup) -> CgroupId {
    use std::os::unix::fs::MetadataExt as _;

    CgroupId(fs::metadata(cgroup.path()).unwrap().ino())
}

/// A load that needs more than it may have, and finds the rest in swap again and again.
fn thrash(cgroup: &Cgroup) -> Load {
    cgroup.write("memory.max", "16M").unwrap();
    let mut load = Load::start(cgroup, &["hold", "--size", "24Mi", "--touch-every", "2ms"]).unwrap();
    load.wait_for("ready").unwrap();
    load
}

/// Two traces of the same tracepoints, between which our programs attach. The kernel calls those first that attached first,
/// so each moment of ours lies between the two traces' moments, however slow the machine is and whoever else runs.
struct Bracket<'a> {
    /// What our measure begins with, and the events that begin and end the stall.
    first: &'a str,
    events: [&'a str; 2],
    before: Trace,
    after: Trace,
}

/// How often the load did it, and the least and the most that our programs can have measured for all of it.
struct Bounds {
    count: u64,
    least_us: u64,
    most_us: u64,
}

impl<'a> Bracket<'a> {
    /// Records the events that begin and end a stall, and the function that our measure begins with if it is not the
    /// event. Our programs attach between the two traces.
    fn around(function: Option<&'a str>, events: [&'a str; 2]) -> (Self, Watch) {
        let paths = events.map(|event| format!("vmscan/{event}"));
        let watched = paths.each_ref().map(|path| Watched::Event(path, ""));
        let with_function: Vec<_> = watched.into_iter().chain(function.map(Watched::Function)).collect();
        let before = Trace::record_as("before", &with_function).unwrap();
        let watch = Watch::start();
        let after = Trace::record_as("after", &watched).unwrap();
        (Self { first: function.unwrap_or(events[0]), events, before, after }, watch)
    }

    fn bounds(&self) -> Bounds {
        let [begin, end] = self.events;
        let (before, after) = (self.before.seen().unwrap(), self.after.seen().unwrap());
        let (count, most_us) = pairs(&moments(&before, self.first), &moments(&after, end));
        let (_, least_us) = pairs(&moments(&after, begin), &moments(&before, end));
        // Traces leave out what is less than a microsecond.
        Bounds { count, least_us: least_us.saturating_sub(count), most_us: most_us + count }
    }
}

/// When each thread of the load did it, in microseconds.
fn moments(seen: &[Seen], what: &str) -> HashMap<u32, Vec<u64>> {
    let mut moments: HashMap<u32, Vec<u64>> = HashMap::new();
    for seen in seen.iter().filter(|seen| seen.comm == LOAD && seen.what == what) {
        moments.entry(seen.tid).or_default().push(seen.time_us);
    }
    moments
}

/// Begins and ends that belong together: how many, and how long in microseconds.
fn pairs(begins: &HashMap<u32, Vec<u64>>, ends: &HashMap<u32, Vec<u64>>) -> (u64, u64) {
    let (mut count, mut total_us) = (0, 0);
    for (tid, begins) in begins {
        let ends = ends.get(tid).map_or(&[][..], Vec::as_slice);
        assert_eq!(begins.len(), ends.len(), "every stall ends");
        for (begin_us, end_us) in begins.iter().zip(ends) {
            count += 1;
            total_us += end_us.saturating_sub(*begin_us);
        }
    }
    (count, total_us)
}

#[guest_test(kernel)]
fn thrashing_at_its_own_limit_is_counted_as_the_kernels_trace_has_it() {
    let _swap = Swap::on(64 << 20).unwrap();
    let events = ["mm_vmscan_memcg_reclaim_begin", "mm_vmscan_memcg_reclaim_end"];
    // Where the event does not pass the cgroup, our measure begins with the function around it.
    let is_by_function = tracer::choice().reclaim.limit == LimitArgument::Function;
    let function = is_by_function.then_some("try_to_free_mem_cgroup_pages");
    let (bracket, mut watch) = Bracket::around(function, events);
    let cgroup = Cgroup::create("stalls-own").unwrap();
    let mut load = thrash(&cgroup);
    wait_until("a hundred stalls", || {
        watch.of(&cgroup, StallKind::MemcgReclaim).iter().any(|stall| stall.count >= 100)
    });
    cgroup.kill().unwrap();
    load.wait().unwrap();

    let Bounds { count, least_us, most_us } = bracket.bounds();
    assert!(count >= 100, "it did not thrash: {count}");
    let stalls = watch.of(&cgroup, StallKind::MemcgReclaim);
    assert_eq!(stalls.len(), 1, "{stalls:?}");
    let stall = &stalls[0];
    assert_eq!(stall.limit, Some(id(&cgroup)));
    assert_eq!(stall.count, count);
    assert_eq!(stall.buckets.iter().sum::<u64>(), stall.count);
    assert!(stall.max_ns <= stall.total_ns && stall.max_ns >= stall.total_ns / stall.count, "{stall:?}");
    assert_eq!(watch.of(&cgroup, StallKind::DirectReclaim), [], "the machine is not short");
    watch.assert_nothing_lost();
    let total_us = stall.total_ns / 1_000;
    println!("{total_us} us in {count} stalls, {least_us} to {most_us} by the trace");
    assert!((least_us..=most_us).contains(&total_us), "{total_us} us and not {least_us} to {most_us}");
}

#[guest_test(kernel)]
fn a_sibling_that_hits_the_pods_limit_stalls_by_the_pods_limit() {
    let _swap = Swap::on(64 << 20).unwrap();
    let mut watch = Watch::start();
    let pod = Cgroup::create("stalls-pod").unwrap();
    pod.write("memory.max", "24M").unwrap();
    pod.write("cgroup.subtree_control", "+memory").unwrap();
    let (first, second) =
        (Cgroup::create("stalls-pod/c1").unwrap(), Cgroup::create("stalls-pod/c2").unwrap());
    second.write("memory.max", "20M").unwrap();
    let mut idle = Load::start(&first, &["hold", "--size", "18Mi", "--touch-every", "10s"]).unwrap();
    idle.wait_for("ready").unwrap();
    let mut load = Load::start(&second, &["spike", "--size", "16Mi"]).unwrap();
    load.wait_for("ready").unwrap();
    let stalls = watch.of(&second, StallKind::MemcgReclaim);
    assert!(!stalls.is_empty(), "it did not stall");
    for stall in &stalls {
        assert_eq!(stall.limit, Some(id(&pod)), "{stall:?}");
    }
    drop((load, idle));
}

#[guest_test(kernel)]
fn a_node_that_runs_short_stalls_by_no_cgroups_limit() {
    let events = ["mm_vmscan_direct_reclaim_begin", "mm_vmscan_direct_reclaim_end"];
    let (bracket, mut watch) = Bracket::around(None, events);
    let cgroup = Cgroup::create("stalls-node").unwrap();
    // It dies of it, and no other process does.
    let mut load = Load::start(&cgroup, &["spike", "--size", "64Gi"]).unwrap();
    fs::write(format!("/proc/{}/oom_score_adj", load.pid()), "1000").unwrap();
    load.wait().unwrap();
    let Bounds { count, least_us, most_us } = bracket.bounds();
    assert!(count > 0, "the machine did not run short");
    let stalls = watch.of(&cgroup, StallKind::DirectReclaim);
    assert_eq!(stalls.len(), 1, "{stalls:?}");
    assert_eq!((stalls[0].limit, stalls[0].count), (None, count));
    let root = CgroupId(1);
    let of_root: Vec<_> = watch.stalls.read().unwrap();
    assert!(
        of_root.iter().all(|stall| stall.cgroup != root || stall.kind != StallKind::Throttled),
        "kswapd is throttled for no cgroup's limit: {of_root:?}"
    );
    let total_us = stalls[0].total_ns / 1_000;
    println!("{total_us} us in {count} stalls, {least_us} to {most_us} by the trace");
    assert!((least_us..=most_us).contains(&total_us), "{total_us} us and not {least_us} to {most_us}");
}

/// A load that is well over its cgroup's `memory.high`, with nothing that could be reclaimed: it sleeps.
fn sleeper(cgroup: &Cgroup) -> Load {
    cgroup.write("memory.high", "16M").unwrap();
    Load::start(cgroup, &["spike", "--size", "24Mi"]).unwrap()
}

/// How long the load's tasks were switched away from until something woke them that nothing interrupts, together.
fn slept_us(seen: &[Seen]) -> u64 {
    let mut asleep = HashMap::new();
    let mut total_us = 0;
    for Seen { tid, time_us, fields, .. } in seen {
        let field = |name| fields.split_whitespace().find_map(|word| word.strip_prefix(name));
        // A state ends in `+` where the task was to be preempted as well.
        if field("prev_comm=") == Some(LOAD)
            && field("prev_state=").is_some_and(|state| state.starts_with('D'))
        {
            asleep.insert(*tid, *time_us);
        }
        if let Some(since_us) = field("next_pid=").and_then(|tid| asleep.remove(&tid.parse().unwrap())) {
            total_us += time_us - since_us;
        }
    }
    total_us
}

#[guest_test(kernel)]
fn sleeps_of_memory_high_are_what_the_scheduler_says() {
    let load_only = format!("prev_comm == \"{LOAD}\" || next_comm == \"{LOAD}\"");
    let trace = Trace::record(&[Watched::Event("sched/sched_switch", &load_only)]).unwrap();
    let mut watch = Watch::start();
    let cgroup = Cgroup::create("stalls-high").unwrap();
    let begin = Instant::now();
    let mut load = sleeper(&cgroup);
    let sum_ns = |slept: &[Stall]| slept.iter().map(|stall| stall.total_ns).sum::<u64>();
    wait_until("three seconds of sleep", || {
        sum_ns(&watch.of(&cgroup, StallKind::MemoryHigh)) > 3_000_000_000
    });
    cgroup.kill().unwrap();
    load.wait().unwrap();
    let lived_us = u64::try_from(begin.elapsed().as_micros()).unwrap();
    let slept = watch.of(&cgroup, StallKind::MemoryHigh);
    assert!(slept.iter().all(|stall| stall.limit == Some(id(&cgroup))), "{slept:?}");
    // It sleeps within what we measure, and for nothing else: but for a moment, as nothing else is to be waited for.
    let (total_us, slept_us) = (sum_ns(&slept) / 1_000, slept_us(&trace.seen().unwrap()));
    println!("{total_us} us, {slept_us} us by the scheduler, {lived_us} us lived");
    assert!(total_us >= slept_us / 10 * 9, "{total_us} us measured and {slept_us} us slept");
    assert!(total_us <= lived_us, "{total_us} us measured of {lived_us} us lived");
    // Pressure is no sum: what is stalled on one cpu counts less as long as another runs something of the same cgroup
    // (`collect_percpu_times` in kernel/sched/psi.c), and the file is brought up to date every two seconds, also for
    // who reads it (`psi_show`).
    let pressure_us = || -> u64 {
        let pressure = cgroup.read("memory.pressure").unwrap();
        pressure.split_whitespace().find_map(|word| word.strip_prefix("total=")).unwrap().parse().unwrap()
    };
    wait_until("a third of it as pressure", || pressure_us() >= total_us / 3);
    assert!(pressure_us() <= lived_us, "{} us of {lived_us} us lived", pressure_us());
}

#[guest_test(kernel)]
fn a_stall_belongs_to_the_cgroup_that_it_began_in() {
    let mut watch = Watch::start();
    let (from, to) = (Cgroup::create("stalls-from").unwrap(), Cgroup::create("stalls-to").unwrap());
    let mut load = sleeper(&from);
    let stall = watch.within(TIMEOUT).expect("it does not sleep");
    assert_eq!((stall.cgroup, stall.kind), (id(&from), StallKind::MemoryHigh), "{stall:?}");
    // The longest sleeps are of two seconds: the next one is under way.
    wait_until("its next sleep", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", load.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('D')
    });
    let before: u64 = watch.of(&from, StallKind::MemoryHigh).iter().map(|stall| stall.count).sum();
    fs::write(to.path().join("cgroup.procs"), load.pid().to_string()).unwrap();
    wait_until("the end of the sleep that was under way", || {
        watch.of(&from, StallKind::MemoryHigh).iter().map(|stall| stall.count).sum::<u64>() > before
    });
    assert_eq!(watch.of(&to, StallKind::MemoryHigh), []);
    from.kill().unwrap();
    to.kill().unwrap();
    load.wait().unwrap();
}

#[guest_test(kernel)]
fn one_long_stall_is_one_record_and_the_rest_is_counted_as_held() {
    let _swap = Swap::on(64 << 20).unwrap();
    let mut watch = Watch::reporting(1_000, NEVER_NS);
    let cgroup = Cgroup::create("stalls-long").unwrap();
    let mut load = thrash(&cgroup);
    let record = watch.within(TIMEOUT).expect("no record");
    assert_eq!((record.cgroup, record.limit), (id(&cgroup), Some(id(&cgroup))));
    assert_eq!((record.kind, record.pid), (StallKind::MemcgReclaim, load.pid()));
    assert_eq!(record.comm, LOAD);
    assert!(record.stall_ns >= 1_000 && record.window_ns >= record.stall_ns, "{record:?}");
    wait_until("more stalls", || {
        watch.of(&cgroup, StallKind::MemcgReclaim).iter().any(|stall| stall.count >= 10)
    });
    cgroup.kill().unwrap();
    load.wait().unwrap();
    assert_eq!(watch.within(SILENCE), None, "another within the gap");
    let [stall] = &watch.of(&cgroup, StallKind::MemcgReclaim)[..] else { panic!("not one entry") };
    let long: u64 = stall.buckets.iter().skip(1).sum();
    assert_eq!(stall.held, long - 1, "{stall:?}");
    let seen = watch.counters.seen().unwrap();
    assert_eq!(seen.iter().find(|(name, _)| *name == "stall"), Some(&("stall", 1)));
}

#[guest_test(kernel)]
fn many_short_stalls_are_reported_when_their_budget_is_used_up() {
    let _swap = Swap::on(64 << 20).unwrap();
    let mut watch = Watch::reporting(NEVER_NS, 20_000_000);
    let cgroup = Cgroup::create("stalls-budget").unwrap();
    let mut load = thrash(&cgroup);
    let record = watch.within(TIMEOUT).expect("no record");
    assert_eq!((record.cgroup, record.kind), (id(&cgroup), StallKind::MemcgReclaim));
    assert!(record.window_ns >= 20_000_000, "{record:?}");
    assert!(
        record.window_ns - record.stall_ns < 20_000_000,
        "reported later than at the first excess: {record:?}"
    );
    cgroup.kill().unwrap();
    load.wait().unwrap();
    assert_eq!(watch.within(SILENCE), None, "another within the gap");
}

#[guest_test(kernel)]
fn both_ways_of_reading_agree_and_a_gone_cgroup_is_forgotten() {
    let _swap = Swap::on(64 << 20).unwrap();
    let mut watch = Watch::start();
    let (stays, goes) = (Cgroup::create("stalls-stays").unwrap(), Cgroup::create("stalls-goes").unwrap());
    for cgroup in [&stays, &goes] {
        let mut load = thrash(cgroup);
        cgroup.kill().unwrap();
        load.wait().unwrap();
    }
    let (gone, alive) = (id(&goes), id(&stays));
    drop(goes);
    let sorted = |mut stalls: Vec<Stall>| {
        stalls.retain(|stall| [gone, alive].contains(&stall.cgroup));
        stalls.sort_by_key(|stall| (stall.cgroup, stall.limit, stall.kind));
        stalls
    };
    let batch = sorted(watch.stalls.read().unwrap());
    assert!(batch.len() >= 2, "{batch:?}");
    assert_eq!(batch, sorted(watch.stalls.read_one_by_one().unwrap()));
    let removed = watch.stalls.forget(|cgroup| cgroup == gone).unwrap();
    assert_eq!(removed, batch.iter().filter(|stall| stall.cgroup == gone).count());
    let left = sorted(watch.stalls.read().unwrap());
    assert!(!left.is_empty() && left.iter().all(|stall| stall.cgroup == alive), "{left:?}");
}
