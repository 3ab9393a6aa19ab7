//! `GET /v1/containers`: memory read on request, shared by requests that come together.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use axum::{
    Json,
    extract::{Query as Pairs, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Mutex;

use super::{PodView, View, server::Shared};
use crate::{
    cgroup::{self, CgroupDir},
    model::{CgroupPath, Limit, PodUid},
    sense::{
        NODE_PRESSURE,
        snapshot::{ChargeFiles, Stalls},
    },
};

/// The most cgroups that are read for one answer: about 50 µs each, and a fifth of a second for all.
const MAX_CGROUPS: usize = 4_096;

/// The most pods that one request may name.
const MAX_UIDS: usize = 256;

/// How long an answer is reused for equal requests. On each read of `memory.stat` the kernel sums up its counters under
/// a lock (`cgroup_rstat_flush`) that the daemon needs for an eviction decision.
const FRESH: Duration = Duration::from_millis(100);

/// The time, the request and the answer of the last read. The lock allows one read at a time, so frequent requests
/// never take more than one thread.
static LAST: Mutex<Option<(Instant, Vec<String>, Memories)>> = Mutex::const_new(None);

/// The memory of pods and their containers right now: the answer to `GET /v1/containers`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memories {
    /// The node's memory stall; `None` if the kernel does not report it.
    pub node_stall: Option<StallView>,
    /// The requested pods, in the order of `GET /v1/pods`, without those that have no cgroup.
    pub pods: Vec<PodMemory>,
    /// How many pods were not read because there were too many. Request them by `uid`.
    pub omitted: usize,
}

/// The share of the last ten seconds that was lost waiting for memory, in per cent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StallView {
    /// By at least one task: `some avg10`, 0 to 100.
    pub some_avg10_percent: f64,
    /// By all tasks that could run: `full avg10`, 0 to 100.
    pub full_avg10_percent: f64,
}

/// A pod's memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodMemory {
    /// The pod's uid.
    pub uid: String,
    /// The memory of its own cgroup.
    #[serde(flatten)]
    pub memory: MemoryView,
    /// Its containers whose cgroups exist.
    pub containers: Vec<ContainerMemory>,
}

/// A container's memory.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerMemory {
    /// The container's name.
    pub name: String,
    /// The memory of its cgroup.
    #[serde(flatten)]
    pub memory: MemoryView,
}

/// The memory of a cgroup.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryView {
    /// `memory.current`.
    pub current_bytes: u64,
    /// `anon`.
    pub anon_bytes: u64,
    /// `file`.
    pub file_bytes: u64,
    /// `shmem`.
    pub shmem_bytes: u64,
    /// `memory.max`; `None` means no limit.
    pub limit_bytes: Option<u64>,
    /// `memory.pressure`; `None` if the kernel does not report it.
    pub stall: Option<StallView>,
}

impl From<Stalls> for StallView {
    fn from(stalls: Stalls) -> Self {
        let percent = |centipercent: u32| f64::from(centipercent) / 100.0;
        Self {
            some_avg10_percent: percent(stalls.some.avg10_centipercent),
            full_avg10_percent: percent(stalls.full.avg10_centipercent),
        }
    }
}

/// The values of `uid`; none means all pods. Any other parameter is an error.
fn wanted(pairs: Vec<(String, String)>) -> Result<Vec<String>, String> {
    let mut uids = Vec::new();
    for (name, value) in pairs {
        match name.as_str() {
            "uid" if uids.len() < MAX_UIDS => uids.push(value),
            "uid" => {
                return Err(format!("uid: at most {MAX_UIDS} pods may be named; without one, all are read"));
            }
            _ => return Err(format!("{name:?} is not a parameter: there is only uid")),
        }
    }
    Ok(uids)
}

pub(super) async fn containers(
    State(shared): State<Shared>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Response {
    let uids = match wanted(pairs) {
        Ok(uids) => uids,
        Err(message) => return (StatusCode::BAD_REQUEST, Json(json!({"error": message}))).into_response(),
    };
    let mut last = LAST.lock().await;
    if let Some((at, of, memories)) = &*last
        && *of == uids
        && at.elapsed() < FRESH
    {
        return Json(memories).into_response();
    }
    let view = shared.view.borrow().clone();
    let asked = uids.clone();
    let read = move || {
        let root = CgroupDir::mount(Path::new(cgroup::MOUNT))?;
        Ok::<_, cgroup::Error>(read(&root, &view, &uids))
    };
    match crate::threads::blocking(read).await {
        Ok(memories) => {
            let memories = Memories { node_stall: node_stall(), ..memories };
            let answer = Json(&memories).into_response();
            *last = Some((Instant::now(), asked, memories));
            answer
        }
        Err(error) => {
            let error = crate::chain(&error);
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error}))).into_response()
        }
    }
}

fn node_stall() -> Option<StallView> {
    let text = std::fs::read(NODE_PRESSURE).ok()?;
    Stalls::parse(&text).ok().map(StallView::from)
}

/// Reads the pods of these uids, or all of them.
fn read(root: &CgroupDir, view: &View, uids: &[String]) -> Memories {
    let mut memories = Memories::default();
    let mut left = MAX_CGROUPS;
    // Large enough for the largest file, so that nothing is cut off.
    let mut buffer = vec![0; 16 * 1_024];
    let is_wanted = |uid: &PodUid| uids.is_empty() || uids.iter().any(|wanted| wanted == uid.as_str());
    for pod in view.pods.iter().filter(|pod| is_wanted(&pod.uid)) {
        let needs = 1 + pod.containers.len();
        if needs > left {
            memories.omitted += 1;
            continue;
        }
        left -= needs;
        memories.pods.extend(read_pod(root, pod, &mut buffer));
    }
    memories
}

fn read_pod(root: &CgroupDir, pod: &PodView, buffer: &mut [u8]) -> Option<PodMemory> {
    let memory = memory(root, &pod.cgroup, None, buffer)?;
    let containers = pod.containers.iter().filter_map(|container| {
        let memory = self::memory(root, &container.cgroup, container.cgroup_id, buffer)?;
        Some(ContainerMemory { name: container.name.clone(), memory })
    });
    Some(PodMemory { uid: pod.uid.to_string(), memory, containers: containers.collect() })
}

/// A cgroup's memory; `None` if it is gone or was replaced.
fn memory(root: &CgroupDir, path: &CgroupPath, id: Option<u64>, buffer: &mut [u8]) -> Option<MemoryView> {
    let dir = root.open(path).ok()?;
    if id.is_some_and(|id| id != dir.id().0) {
        return None;
    }
    let usage = ChargeFiles::open(&dir).ok()?.usage(buffer).ok()?;
    let limit_bytes = dir.read("memory.max").ok().as_deref().and_then(Limit::parse).and_then(Limit::amount);
    let stall = dir.read("memory.pressure").ok();
    let stall = stall.and_then(|text| Stalls::parse(text.as_bytes()).ok()).map(StallView::from);
    Some(MemoryView {
        current_bytes: usage.current_bytes,
        anon_bytes: usage.anon_bytes,
        file_bytes: usage.file_bytes,
        shmem_bytes: usage.shmem_bytes,
        limit_bytes,
        stall,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::serve::{ContainerView, PodState};

    fn pod(uid: &str, containers: &[(&str, Option<u64>)]) -> PodView {
        let path = CgroupPath::parse(&format!("/kubepods/pod{uid}")).unwrap();
        let container = |(name, cgroup_id): &(&str, Option<u64>)| ContainerView {
            name: (*name).to_owned(),
            kind: "app".into(),
            attempt: None,
            oom_score_adj: 0,
            cgroup: path.child(name).unwrap(),
            cgroup_id: *cgroup_id,
        };
        PodView {
            spec: None,
            labels: crate::model::Labels::default(),
            controller: None,
            namespace: "default".into(),
            name: uid.to_owned(),
            uid: PodUid::new(uid).unwrap(),
            qos_class: "BestEffort".into(),
            priority: 0,
            critical: false,
            request_bytes: 0,
            limit_bytes: None,
            state: PodState::Active,
            reason: None,
            starts_under_memory_pressure: false,
            cgroup: path.clone(),
            sandbox: None,
            containers: containers.iter().map(container).collect(),
        }
    }

    fn cgroup(temp: &tempfile::TempDir, path: &str, current: u64, max: &str) {
        let folder = temp.path().join(path);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("memory.current"), format!("{current}\n")).unwrap();
        fs::write(folder.join("memory.stat"), "anon 700\nfile 200\nshmem 50\ninactive_file 100\n").unwrap();
        fs::write(folder.join("memory.max"), max).unwrap();
        let pressure = "some avg10=1.25 avg60=0.40 avg300=0.09 total=9\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=7\n";
        fs::write(folder.join("memory.pressure"), pressure).unwrap();
    }

    #[test]
    fn pods_and_containers_are_read_as_far_as_they_stand() {
        let temp = tempfile::tempdir().unwrap();
        cgroup(&temp, "kubepods/poda", 1_000, "max\n");
        cgroup(&temp, "kubepods/poda/app", 900, "4096\n");
        cgroup(&temp, "kubepods/poda/other", 900, "4096\n");
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let containers = [("app", None), ("gone", None), ("other", Some(1))];
        let view = View { pods: vec![pod("a", &containers).into(), pod("b", &[]).into()], ..View::default() };
        let memories = read(&root, &view, &[]);
        // The cgroup that stands at `other` is not the one that was the container's.
        assert_eq!(memories.pods.len(), 1);
        let PodMemory { uid, memory, containers } = &memories.pods[0];
        assert_eq!((uid.as_str(), memory.current_bytes, memory.limit_bytes), ("a", 1_000, None));
        assert_eq!((memory.anon_bytes, memory.file_bytes, memory.shmem_bytes), (700, 200, 50));
        assert_eq!(memory.stall, Some(StallView { some_avg10_percent: 1.25, full_avg10_percent: 0.5 }));
        assert_eq!(containers.len(), 1);
        assert_eq!((containers[0].name.as_str(), containers[0].memory.limit_bytes), ("app", Some(4_096)));
        assert_eq!(read(&root, &view, &["b".into()]).pods, []);
    }

    #[test]
    fn one_answer_reads_only_so_many_and_says_so() {
        let temp = tempfile::tempdir().unwrap();
        let root = CgroupDir::unchecked(temp.path()).unwrap();
        let pods = (0..MAX_CGROUPS + 3).map(|number| pod(&number.to_string(), &[]).into()).collect();
        let view = View { pods, ..View::default() };
        assert_eq!(read(&root, &view, &[]).omitted, 3);
        assert_eq!(read(&root, &view, &["4098".into()]).omitted, 0);
    }

    #[test]
    fn a_wrong_parameter_is_reported() {
        let uid = |count: usize| vec![(String::from("uid"), String::from("a")); count];
        assert_eq!(wanted(uid(MAX_UIDS)).unwrap().len(), MAX_UIDS);
        assert!(wanted(uid(MAX_UIDS + 1)).unwrap_err().contains("at most 256"));
        assert!(wanted(vec![("pod".into(), "a".into())]).unwrap_err().contains("uid"));
    }
}
