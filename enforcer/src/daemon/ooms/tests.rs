//! From the bytes in a ring to the events in the journal, with a ring that behaves as the kernel's does.
use std::path::Path;

use enforcer_common::record::{
    CGROUP_KNOWN, GROUP_DEAD, Header, KILL_WATCHED, LIMIT_KNOWN, MarkVictim, ProcessExit, VERSION,
    VICTIM_KILLED,
};
use serde_json::Value;
use zerocopy::IntoBytes as _;

use super::*;
use crate::{
    clock,
    journal::{Batch, EventType, Filter},
    model::{CgroupPath, OwnerLevel, PodName, PodUid},
    sense::{
        fake_ring::{Producer, ring},
        recorded,
    },
};

/// As the kernel's.
const RING_BYTES: usize = 512 * 1024;
/// Ids that no cgroup of this machine has.
const FIRST_CGROUP: u64 = 1 << 40;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The daemon's reader of a ring, on a machine of so many pods with one container each.
struct Reader {
    producer: Producer,
    journal: Journal,
    seen: Vec<Value>,
    next: u64,
    task: tokio::task::JoinHandle<()>,
    /// Held until the task has gone.
    _run_dir: tempfile::TempDir,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn ooms(journal: &Journal, index: Index, run_dir: &Path) -> Ooms {
    let backlog = Backlog::open(run_dir, "00000000-0000-0000-0000-000000000000", journal);
    let mut world = Names::new(index, None, BeingEvicted::default(), backlog);
    // This machine's own cgroups are none of this.
    world.root = None;
    Ooms::new(journal, &Counts::default(), world, Tracing::On)
}

impl Reader {
    fn start(pods: u64, ring_bytes: usize) -> Self {
        let container = |pod: u64| {
            let uid = PodUid::new(&format!("u{pod}")).unwrap();
            let name = PodName { namespace: "default".into(), name: format!("p{pod}") };
            let path = CgroupPath::parse(&format!("/kubepods/podu{pod}/c")).unwrap();
            let level = OwnerLevel::Container { pod: name.into(), uid, container: "c".into() };
            (CgroupId(FIRST_CGROUP + pod), Owner { path, level })
        };
        Self::with((0..pods).map(container), ring_bytes)
    }

    fn with(owners: impl Iterator<Item = (CgroupId, Owner)>, ring_bytes: usize) -> Self {
        let journal = Journal::new("n1", "b1");
        let run_dir = tempfile::tempdir().unwrap();
        let index = Index::new();
        for (cgroup, owner) in owners {
            index.insert(cgroup, owner);
        }
        let (producer, ring) = ring(ring_bytes, 0);
        let task = tokio::spawn(ooms(&journal, index, run_dir.path()).read(ring, Ticks::start().unwrap()));
        Self { producer, journal, seen: Vec::new(), next: 0, task, _run_dir: run_dir }
    }

    /// Takes what the journal has now.
    fn look(&mut self) {
        let mut reader = self.journal.reader(Some(self.next), Filter::default());
        while let Some(batch) = reader.read() {
            let Batch::Records(records) = batch else { panic!("the journal keeps too little for this test") };
            for record in records {
                self.next = record.sequence;
                self.seen.push(serde_json::from_slice(&record.line).unwrap());
            }
        }
    }

    /// Waits until so many events of that type have come, and gives all of them.
    async fn reported(&mut self, kind: EventType, count: usize) -> Vec<Value> {
        let end = Instant::now() + TIMEOUT;
        loop {
            self.look();
            let reported = self.events(kind).count();
            if reported >= count {
                return self.of(kind);
            }
            assert!(Instant::now() < end, "{reported} of {count} {kind:?}: {:#?}", self.seen.last());
            let mut reader = self.journal.reader(Some(self.next), Filter::default());
            drop(tokio::time::timeout(Duration::from_millis(100), reader.readable()).await);
        }
    }

    fn of(&self, kind: EventType) -> Vec<Value> {
        self.events(kind).cloned().collect()
    }

    fn events(&self, kind: EventType) -> impl Iterator<Item = &Value> {
        let name = serde_json::to_value(kind).unwrap();
        self.seen.iter().filter(move |event| event["type"] == name)
    }

    /// Writes a record, and lets the reader have its turn until there is room.
    async fn put(&mut self, record: &[u8]) {
        while !self.producer.output(record) {
            self.look();
            tokio::task::yield_now().await;
        }
    }
}

/// The kill of the process `pid` in the container of that pod, which hit its own limit.
fn mark(pod: u64, pid: u32) -> MarkVictim {
    let cgroup = FIRST_CGROUP + pod;
    MarkVictim {
        time_ns: clock::boottime_ns(),
        start_boottime_ns: 1_000 + u64::from(pid),
        cgroup_id: cgroup,
        trigger_cgroup_id: cgroup,
        limit_cgroup_id: cgroup,
        tid: pid,
        tgid: pid,
        trigger_tid: pid,
        trigger_tgid: pid,
        constraint: 3,
        flags: CGROUP_KNOWN | LIMIT_KNOWN | KILL_WATCHED | VICTIM_KILLED,
        ..MarkVictim::EMPTY
    }
}

fn exit(mark: &MarkVictim) -> ProcessExit {
    ProcessExit {
        time_ns: mark.time_ns + 1_000_000,
        marked_ns: mark.time_ns,
        cgroup_id: mark.cgroup_id,
        tid: mark.tid,
        tgid: mark.tid,
        exit_code: 9,
        flags: GROUP_DEAD,
        ..ProcessExit::EMPTY
    }
}

fn pid(pod: u64) -> u32 {
    1_000 + u32::try_from(pod).unwrap()
}

#[tokio::test]
async fn a_storm_of_four_thousand_is_reported_whole_and_each_of_its_own_pod() {
    const PODS: u64 = 4_000;
    // What a full ring holds becomes events at once where the reader runs late: fewer bytes than this journal keeps.
    let mut reader = Reader::start(PODS, RING_BYTES / 4);
    for pod in 0..PODS {
        let mark = mark(pod, pid(pod));
        reader.put(mark.as_bytes()).await;
        reader.put(exit(&mark).as_bytes()).await;
    }
    let count = usize::try_from(PODS).unwrap();
    let incidents = reader.reported(EventType::OomIncident, count).await;
    let mut pods = BTreeSet::new();
    for incident in &incidents {
        let victims = incident["data"]["victims"].as_array().unwrap();
        assert_eq!(victims.len(), 1, "{incident:#}");
        let name = incident["subject"].as_str().unwrap().strip_prefix("default/p").unwrap();
        assert_eq!(
            victims[0]["pid"].as_u64(),
            name.parse::<u64>().ok().map(|pod| pid(pod).into()),
            "{incident:#}"
        );
        assert!(pods.insert(name.to_owned()), "reported twice: {incident:#}");
    }
    assert_eq!((pods.len(), reader.of(EventType::OomDetected).len()), (count, count));
    assert_eq!(reader.producer.stored(), 2 * PODS);
}

#[tokio::test]
async fn what_found_no_room_is_counted_and_all_else_is_reported() {
    const PODS: u64 = 1_000;
    // The ring is not read meanwhile, and is too small for them all.
    let mut reader = Reader::start(PODS, 64 * 1024);
    let reported: Vec<_> =
        (0..PODS).filter(|pod| reader.producer.output(mark(*pod, pid(*pod)).as_bytes())).collect();
    let (stored, dropped) = (reader.producer.stored(), reader.producer.dropped());
    assert_eq!(
        (stored + dropped, u64::try_from(reported.len()).unwrap()),
        (PODS, stored),
        "seen = stored + dropped"
    );
    assert!(dropped > 0 && stored > 100, "{stored} stored, {dropped} dropped");
    let detected = reader.reported(EventType::OomDetected, reported.len()).await;
    let subjects: Vec<_> =
        detected.iter().map(|event| event["subject"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<_> = reported.iter().map(|pod| format!("default/p{pod}")).collect();
    assert_eq!(subjects, expected);
    // Later records are reported as ever.
    reader.put(mark(PODS - 1, 77).as_bytes()).await;
    let last = reader.reported(EventType::OomDetected, reported.len() + 1).await.pop().unwrap();
    assert_eq!(last["data"]["victim"]["pid"], 77, "{last:#}");
}

#[tokio::test]
async fn rubbish_between_records_costs_none_of_them() {
    let mut reader = Reader::start(3, RING_BYTES);
    let newer =
        MarkVictim { header: Header { version: VERSION + 1, ..MarkVictim::EMPTY.header }, ..mark(0, 9) };
    for pod in 0..3 {
        let mark = mark(pod, pid(pod));
        for rubbish in
            [&[][..], &[0xff], &mark.as_bytes()[..100], newer.as_bytes(), Header::new(999, 8).as_bytes()]
        {
            reader.put(rubbish).await;
        }
        if let Some(reserved) = reader.producer.reserve(24) {
            reserved.discard();
        }
        reader.put(mark.as_bytes()).await;
        reader.put(exit(&mark).as_bytes()).await;
    }
    let incidents = reader.reported(EventType::OomIncident, 3).await;
    assert_eq!((incidents.len(), reader.of(EventType::OomDetected).len()), (3, 3));
    assert!(incidents.iter().all(|incident| incident["data"]["victims"][0]["pid"] != 9));
}

#[tokio::test]
async fn records_out_of_order_make_one_incident() {
    let mut reader = Reader::start(1, RING_BYTES);
    // Three of one group, killed for the same trigger; an exit overtakes its mark, as each cpu writes its own.
    let [first, second, third] = [21, 22, 23].map(|pid| MarkVictim { trigger_tid: 21, ..mark(0, pid) });
    let exits = [first, second, third].map(|mark| exit(&mark));
    let records: [&[u8]; 6] = [
        exits[0].as_bytes(),
        second.as_bytes(),
        exits[1].as_bytes(),
        first.as_bytes(),
        third.as_bytes(),
        exits[2].as_bytes(),
    ];
    for record in records {
        reader.put(record).await;
    }
    let incident = reader.reported(EventType::OomIncident, 1).await.remove(0);
    let mut pids: Vec<_> = incident["data"]["victims"]
        .as_array()
        .unwrap()
        .iter()
        .map(|victim| victim["pid"].as_u64().unwrap())
        .collect();
    pids.sort_unstable();
    assert_eq!(pids, [21, 22, 23], "{incident:#}");
    assert_eq!(reader.of(EventType::OomDetected).len(), 1);
}

/// Older kernels pass a thread id and nothing else; the victim's cgroup comes with its exit.
#[tokio::test]
async fn the_old_event_is_placed_by_the_victims_exit() {
    let mut reader = Reader::start(2, RING_BYTES);
    let whole = mark(1, 31);
    let old = MarkVictim {
        time_ns: whole.time_ns,
        tid: 31,
        trigger_tid: 40,
        trigger_tgid: 40,
        trigger_cgroup_id: FIRST_CGROUP,
        flags: KILL_WATCHED | VICTIM_KILLED,
        ..MarkVictim::EMPTY
    };
    reader.put(old.as_bytes()).await;
    let detected = reader.reported(EventType::OomDetected, 1).await.remove(0);
    assert_eq!(detected["data"]["victim"].get("pod"), None, "{detected:#}");
    reader.put(exit(&whole).as_bytes()).await;
    let incident = reader.reported(EventType::OomIncident, 1).await.remove(0);
    let victim = &incident["data"]["victims"][0];
    assert_eq!((&victim["pod"], &victim["container"]), (&"p1".into(), &"c".into()), "{incident:#}");
    assert_eq!(incident["data"]["trigger"]["pod"], "p0", "{incident:#}");
}

#[tokio::test]
async fn a_task_that_was_dying_is_no_kill() {
    let mut reader = Reader::start(1, RING_BYTES);
    let dying = MarkVictim { flags: CGROUP_KNOWN | LIMIT_KNOWN | KILL_WATCHED, ..mark(0, 51) };
    reader.put(dying.as_bytes()).await;
    let averted = reader.reported(EventType::OomAverted, 1).await.remove(0);
    assert_eq!(
        (&averted["subject"], &averted["data"]["cause"]),
        (&"default/p0".into(), &"alreadyDying".into())
    );
    assert_eq!((reader.of(EventType::OomDetected).len(), reader.of(EventType::OomIncident).len()), (0, 0));
}

/// What the programs wrote on real kernels: a container over its own limit, a group of five, and one that dies because
/// its sibling allocates.
#[tokio::test]
async fn records_of_real_kernels_are_reported_as_what_they_were() {
    for (kernel, text) in recorded::ALL {
        let recorded = recorded::parse(text);
        let owners = recorded.cgroups.iter().map(|(id, path)| {
            let mut names = path.trim_start_matches('/').split('/');
            let uid = PodUid::new(names.next().unwrap()).unwrap();
            let pod = PodName { namespace: "default".into(), name: uid.as_str().into() };
            let level = match names.next() {
                Some(container) => {
                    OwnerLevel::Container { pod: pod.into(), uid, container: container.into() }
                }
                None => OwnerLevel::Pod { pod: pod.into(), uid },
            };
            (CgroupId(*id), Owner { path: CgroupPath::parse(path).unwrap(), level })
        });
        let mut reader = Reader::with(owners, RING_BYTES);
        for record in &recorded.records {
            reader.put(record).await;
        }
        // In the last scene the allocator goes on, and is killed after its sibling and what else is there.
        let first = reader.reported(EventType::OomIncident, 4).await.len();
        // One closes long after the last record was read, so that by now all are open.
        let opened = reader.of(EventType::OomDetected).len().max(first);
        let incidents = reader.reported(EventType::OomIncident, opened).await;
        let of = |pod: &str| -> Vec<&Value> {
            incidents.iter().filter(|incident| incident["subject"] == format!("default/{pod}")).collect()
        };
        let [own, group] = ["recorded-own", "recorded-group"].map(|pod| {
            let reported = of(pod);
            assert_eq!(reported.len(), 1, "{kernel}: {reported:#?}");
            &reported[0]["data"]
        });
        assert_eq!(own["scope"], "container", "{kernel}: {own:#}");
        for (data, victims) in [(own, 1), (group, 5)] {
            let reported = data["victims"].as_array().unwrap();
            assert_eq!(reported.len(), victims, "{kernel}: {data:#}");
            assert_eq!(data["trigger"]["comm"], "tail", "{kernel}: {data:#}");
            for victim in reported {
                assert_eq!(victim["container"], "c1", "{kernel}: {data:#}");
                assert!(victim["anonBytes"].is_u64() && victim["pid"].is_u64(), "{kernel}: {data:#}");
            }
        }
        let anon_bytes = own["victims"][0]["anonBytes"].as_u64().unwrap();
        assert!((48 << 20..64 << 20).contains(&anon_bytes), "{kernel}: {own:#}");
        let sibling = of("recorded-sibling");
        let by_other = |incident: &&&Value| {
            incident["data"]["victims"][0]["container"] == "c1"
                && incident["data"]["trigger"]["container"] == "c2"
        };
        let first = sibling.iter().find(by_other).unwrap_or_else(|| panic!("{kernel}: {sibling:#?}"));
        assert_eq!(first["data"]["scope"], "pod", "{kernel}: {first:#}");
        assert_eq!(first["data"]["limitOwner"], "/recorded-sibling", "{kernel}: {first:#}");
        assert_eq!(reader.of(EventType::OomDetected).len(), incidents.len(), "{kernel}");
    }
}
