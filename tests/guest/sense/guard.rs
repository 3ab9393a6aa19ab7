//! The guard of scores and files, on real kernels: each edge names who and whose, and floods are counted.
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::{Child, Command},
    time::Duration,
};

use enforcer::{
    model::CgroupId,
    sense::{
        ForeignWrite, Guard, GuardError, GuardEvent, Kept, KindCounts, Programs, ScoreCause, Sight,
        WrongScore,
    },
};
use enforcer_tests::wait::wait_until;
use tokio::{runtime::Runtime, time::timeout};

use super::{TIMEOUT, cgroup::Cgroup, tracer};

/// How long nothing must come until it is believed that nothing does.
const SILENCE: Duration = Duration::from_millis(500);

/// The guard at work.
struct Watch {
    runtime: Runtime,
    guard: Guard,
    _programs: Programs,
}

impl Watch {
    fn start() -> Self {
        let attached = Programs::load(&tracer::choice()).unwrap();
        assert!(attached.failed.is_empty(), "{:#?}", attached.failed);
        assert_eq!(attached.guard.sight(), Sight { scores: true, writes: true });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, guard: attached.guard, _programs: attached.programs }
    }

    fn scores(scores: &[(&Cgroup, i16)]) -> Self {
        let mut watch = Self::start();
        let wanted = scores.iter().map(|(cgroup, score)| (cgroup.id(), *score)).collect::<BTreeMap<_, _>>();
        watch.guard.set_wanted(&wanted).unwrap();
        watch
    }

    fn files(cgroups: &[Cgroup]) -> Self {
        let mut watch = Self::start();
        watch.guard.set_guarded(&cgroups.iter().map(Cgroup::id).collect::<BTreeSet<_>>()).unwrap();
        watch
    }

    fn within(&mut self, patience: Duration) -> Option<GuardEvent> {
        let Self { runtime, guard, _programs } = self;
        runtime.block_on(async { timeout(patience, guard.next()).await }).ok().map(Result::unwrap)
    }

    fn score(&mut self) -> WrongScore {
        match self.within(TIMEOUT) {
            Some(GuardEvent::Score(score)) => score,
            other => panic!("{other:?} and no wrong score; {:?}", self.guard.counts()),
        }
    }

    fn written(&mut self) -> ForeignWrite {
        match self.within(TIMEOUT) {
            Some(GuardEvent::Written(write)) => write,
            other => panic!("{other:?} and no write; {:?}", self.guard.counts()),
        }
    }

    fn assert_silent(&mut self) {
        assert_eq!(self.within(SILENCE), None);
    }

    /// Everything that comes until nothing does any more.
    fn drain(&mut self) -> Vec<GuardEvent> {
        std::iter::from_fn(|| self.within(SILENCE)).collect()
    }
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

fn balanced(counts: KindCounts) -> bool {
    counts.seen == counts.delivered + counts.dropped + counts.held
}

#[guest_test(kernel)]
fn a_process_that_comes_forks_and_executes_is_reported_until_its_score_is_right() {
    let container = Cgroup::root("guard-comes");
    let id = container.id();
    let mut watch = Watch::scores(&[(&container, 500)]);
    // Not both at once: from Linux 7.0 on the kernel leaves out a program that is begun where the same was preempted.
    let aside = "i=0; while [ $i -lt 5000 ]; do i=$((i + 1)); done";
    let mut child = container.run(&format!("sleep 600 & {aside}; exec sleep 601"));
    let attached = watch.score();
    let own = (attached.pid, attached.process.pid, attached.writer.pid);
    assert_eq!(own, (Some(child.id()), child.id(), child.id()), "{attached:?}");
    assert_eq!((attached.container, attached.cause), (id, ScoreCause::Attached));
    assert_eq!((attached.score, attached.wanted), (0, 500));
    assert_eq!((attached.process.comm.as_str(), attached.writer.comm.as_str()), ("sh", "sh"));
    // As /proc shows it: in hundredths of a second, field 22.
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let ticks: u64 = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
    assert_eq!(attached.process.start_ns.unwrap() / 10_000_000, ticks);

    let forked = watch.score();
    assert_eq!((forked.container, forked.cause), (id, ScoreCause::Forked));
    assert_eq!(forked.writer.pid, child.id(), "its parent");
    assert_ne!(forked.pid, Some(child.id()));
    let executed = [watch.score(), watch.score()];
    assert!(executed.iter().all(|score| score.cause == ScoreCause::Executed), "{executed:?}");
    let mut pids: Vec<_> = executed.iter().map(|score| score.pid.unwrap()).collect();
    pids.sort_unstable();
    let mut expected = vec![child.id(), forked.pid.unwrap()];
    expected.sort_unstable();
    assert_eq!(pids, expected);

    // What we write ourselves is not reported, wrong or right.
    for score in ["400", "500"] {
        fs::write(format!("/proc/{}/oom_score_adj", child.id()), score).unwrap();
    }
    watch.assert_silent();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[guest_test(kernel)]
fn a_score_that_somebody_else_writes_is_reported_with_the_writer() {
    let container = Cgroup::root("guard-written");
    let inner = container.child("inner");
    // The right score from the start on: only the write is wrong.
    let mut watch = Watch::scores(&[(&container, 0)]);
    let mut child = inner.run("exec sleep 600");
    let pid = child.id();
    watch.assert_silent();
    let mut writer =
        shell(&format!("echo 300 > /proc/{pid}/oom_score_adj; echo 0 > /proc/{pid}/oom_score_adj"));
    writer.wait().unwrap();
    let written = watch.score();
    assert_eq!((written.pid, written.cause, written.score), (Some(pid), ScoreCause::Written, 300));
    assert_eq!(written.container, container.id(), "the container, and not the cgroup in it");
    assert_eq!((written.writer.pid, written.writer.comm.as_str()), (writer.id(), "sh"));
    watch.assert_silent();
    child.kill().unwrap();
    child.wait().unwrap();
    let counts = watch.guard.counts().unwrap();
    assert_eq!((counts.scores.seen, counts.scores.delivered), (1, 1));
}

#[guest_test(kernel)]
fn right_scores_and_others_processes_emit_nothing() {
    let (container, other) = (Cgroup::root("guard-right"), Cgroup::root("guard-other"));
    let mut watch = Watch::scores(&[(&container, 0)]);
    for cgroup in [&container, &other] {
        let script =
            "echo 0 > /proc/self/oom_score_adj; i=0; while [ $i -lt 10 ]; do sleep 0; i=$((i+1)); done";
        assert!(cgroup.run(script).wait().unwrap().success());
    }
    assert!(other.run("echo 77 > /proc/self/oom_score_adj").wait().unwrap().success());
    watch.assert_silent();
    assert_eq!(watch.guard.counts().unwrap().scores.seen, 0);
    // A container that is no longer guarded reports nothing either.
    watch.guard.set_wanted(&BTreeMap::from([(container.id(), 100)])).unwrap();
    watch.guard.set_wanted(&BTreeMap::new()).unwrap();
    assert!(container.run("true").wait().unwrap().success());
    watch.assert_silent();
}

#[guest_test(kernel)]
fn a_foreign_write_is_reported_with_file_and_writer() {
    let (kept, other) = (Cgroup::root("guard-file"), Cgroup::root("guard-file-other"));
    let id = kept.id();
    let kept = [kept];
    let mut watch = Watch::files(&kept);
    let [kept] = kept;
    kept.write("memory.max", "64M");
    let folder = "/sys/fs/cgroup/guard-file";
    // Refused, a move of a process, and another cgroup's: none of them changes what is kept.
    let refused = shell(&format!("echo nonsense > {folder}/memory.max; true")).wait().unwrap();
    assert!(refused.success());
    kept.run("true").wait().unwrap();
    shell("echo 1G > /sys/fs/cgroup/guard-file-other/memory.max").wait().unwrap();
    watch.assert_silent();

    let mut writer =
        shell(&format!("echo 96M > {folder}/memory.max; echo 2 > {folder}/cgroup.max.descendants"));
    writer.wait().unwrap();
    for file in ["memory.max", "cgroup.max.descendants"] {
        let write = watch.written();
        assert_eq!((write.cgroup, write.file.as_str()), (id, file));
        assert_eq!((write.writer.pid, write.writer.comm.as_str()), (writer.id(), "sh"));
        assert!(write.writer.start_ns.is_some_and(|start_ns| start_ns < write.time_ns), "{write:?}");
    }
    watch.assert_silent();
    drop(other);
}

#[guest_test(kernel)]
fn one_cgroup_that_is_written_to_without_end_is_held_back_and_hides_no_other() {
    let cgroups = [Cgroup::root("guard-flood"), Cgroup::root("guard-quiet")];
    let ids = [cgroups[0].id(), cgroups[1].id()];
    let mut watch = Watch::files(&cgroups);
    let over = "/tmp/guard-flood-over";
    let mut flood = shell(&format!(
        "cd /sys/fs/cgroup/guard-flood; i=0; while [ ! -e {over} ]; do i=$((i+1)); echo $i > cgroup.max.depth; done"
    ));
    // As a keeper would: with every event the file is looked at.
    let depth = || fs::read_to_string("/sys/fs/cgroup/guard-flood/cgroup.max.depth").unwrap();
    let (mut overruns, mut of_quiet, mut last_seen) = (0, 0, String::new());
    let mut take_one = |watch: &mut Watch| {
        match watch.within(TIMEOUT) {
            Some(GuardEvent::Written(write)) if write.cgroup == ids[1] => of_quiet += 1,
            Some(GuardEvent::Written(_)) => last_seen = depth(),
            Some(GuardEvent::Overrun { cgroup, of }) => {
                assert_eq!((cgroup, of), (ids[0], Kept::Files));
                overruns += 1;
                last_seen = depth();
            }
            other => panic!("{other:?}"),
        }
        (overruns, of_quiet, last_seen.trim().to_owned())
    };
    // Nothing is read until the flood has been held back, however slow it is. It goes on beside another cgroup's write.
    wait_until("writes are held back", || watch.guard.counts().unwrap().writes.held > 0);
    let mut taken = take_one(&mut watch);
    while taken.0 == 0 {
        taken = take_one(&mut watch);
    }
    shell("echo 1G > /sys/fs/cgroup/guard-quiet/memory.high").wait().unwrap();
    while taken.1 == 0 {
        taken = take_one(&mut watch);
    }
    fs::write(over, "").unwrap();
    assert!(flood.wait().unwrap().success());
    let last = depth();
    // What was held back is looked at in the end.
    while taken.2 != last.trim() {
        taken = take_one(&mut watch);
    }
    let events = watch.drain();
    let counts = watch.guard.counts().unwrap();
    println!("{:?}, then {events:?}", counts.writes);
    assert_eq!(counts.writes.seen, last.trim().parse::<u64>().unwrap() + 1);
    assert_eq!((counts.writes.dropped, counts.unusable), (0, 0));
    assert!(balanced(counts.writes) && counts.writes.held > 0, "{counts:?}");
    assert!(
        events.iter().all(|event| matches!(event, GuardEvent::Written(write) if write.cgroup == ids[0])
            || matches!(event, GuardEvent::Overrun { cgroup, .. } if *cgroup == ids[0])),
        "{events:?}"
    );
    fs::remove_file(over).unwrap();
}

#[guest_test(kernel)]
fn what_the_ring_has_no_room_for_is_counted_and_reported_together() {
    // The ring is not read while more is reported than it holds: 16 cgroups use up their credit of 64 records each.
    let cgroups: Vec<_> = (0..16).map(|i| Cgroup::root(&format!("guard-many{i}"))).collect();
    let ids: BTreeSet<CgroupId> = cgroups.iter().map(Cgroup::id).collect();
    let mut watch = Watch::files(&cgroups);
    let script = "cd /sys/fs/cgroup; for c in guard-many*; do i=0; while [ $i -lt 64 ]; do echo $i > $c/cgroup.max.depth; \
                  i=$((i+1)); done; done";
    assert!(shell(script).wait().unwrap().success());
    let before = watch.guard.counts().unwrap().writes;
    assert_eq!((before.seen, before.held), (1024, 0));
    assert!(before.dropped > 0, "{before:?}");
    // What is reported and what is lost is all that there was.
    let (mut reported, mut lost) = (0, 0);
    while reported + lost < before.seen {
        match watch.within(TIMEOUT) {
            Some(GuardEvent::Lost(count)) => lost += count,
            Some(GuardEvent::Written(_)) => reported += 1,
            // Whoever used all its credit is looked at.
            Some(GuardEvent::Overrun { .. }) => {}
            other => panic!("{other:?} after {reported} reported and {lost} lost"),
        }
    }
    watch.drain();
    let counts = watch.guard.counts().unwrap().writes;
    println!("{counts:?}");
    assert!(balanced(counts), "{counts:?}");
    assert_eq!((reported, lost), (counts.delivered, counts.dropped));
    // Everybody has credit again.
    assert!(
        shell("cd /sys/fs/cgroup; for c in guard-many*; do echo 9 > $c/cgroup.max.depth; done")
            .wait()
            .unwrap()
            .success()
    );
    let mut reported = BTreeSet::new();
    while reported.len() < ids.len() {
        reported.insert(watch.written().cgroup);
    }
    assert_eq!(reported, ids);
}

/// Whoever relies on reports has to look at the rest by itself.
#[guest_test(kernel)]
fn a_guard_that_is_too_small_for_all_says_that_it_does_not_see_all() {
    const TOO_MANY: usize = 100_000;
    let mut watch = Watch::start();
    let ids = || (1..).map(CgroupId).take(TOO_MANY);
    let most = |error: GuardError| match error {
        GuardError::TooMany { map: _, max, more } if max + more == TOO_MANY => max,
        error => panic!("{error:?}"),
    };

    let most_scores = most(watch.guard.set_wanted(&ids().map(|id| (id, 500)).collect()).unwrap_err());
    assert_eq!(watch.guard.sight(), Sight { scores: false, writes: true });
    let most_files = most(watch.guard.set_guarded(&ids().collect()).unwrap_err());
    assert_eq!(watch.guard.sight(), Sight { scores: false, writes: false });

    watch.guard.set_wanted(&ids().take(most_scores).map(|id| (id, 500)).collect()).unwrap();
    assert_eq!(watch.guard.sight(), Sight { scores: true, writes: false });
    watch.guard.set_guarded(&ids().take(most_files).collect()).unwrap();
    assert_eq!(watch.guard.sight(), Sight { scores: true, writes: true });
}
