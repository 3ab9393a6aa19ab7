//! `enforcer exec`: enters a container's cgroup, then becomes the command; or stays outside as its parent.

mod back_off;
mod scope;
mod supervisor;

use std::{
    ffi::OsString,
    fmt, fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{self, Command},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};

use self::supervisor::{Restart, supervise};
use super::{Context, Failure, client, render::escape};
use crate::{
    cgroup::CgroupDir,
    model::CgroupId,
    nearest::nearest,
    policy::{name, threshold::NodeCondition},
    serve::{ContainerView, PodState, PodView, View},
};

/// How long a pod may take to become known.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the daemon may take to set the limits of a scope. This process is already in it: giving up means exiting.
const TAKE_OVER: Duration = Duration::from_secs(30);
/// The first interval between two polls, and the longest.
const POLL: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(320);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Stays as a parent, in the caller's cgroup, which starts the command again when it ends: after 1 s, then after 10 s,
    /// twice as long each time, up to 5 minutes. It passes signals on, ends with the command's status after SIGTERM or SIGINT,
    /// and with 77 once the pod was evicted
    #[arg(long, value_enum, value_name = "WHEN")]
    restart: Option<Restart>,
    /// The container; without CONTAINER the pod's only app container
    #[arg(value_name = "NAMESPACE/POD[/CONTAINER]")]
    target: Target,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The requested container.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Target {
    namespace: String,
    pod: String,
    container: Option<String>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.pod)?;
        self.container.iter().try_for_each(|container| write!(f, "/{container}"))
    }
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<_> = text.split('/').map(str::to_owned).collect();
        if parts.iter().any(String::is_empty) {
            return Err(String::from("write NAMESPACE/POD or NAMESPACE/POD/CONTAINER"));
        }
        match <[String; 2]>::try_from(parts) {
            Ok([namespace, pod]) => Ok(Self { namespace, pod, container: None }),
            Err(parts) => match <[String; 3]>::try_from(parts) {
                Ok([namespace, pod, container]) => Ok(Self { namespace, pod, container: Some(container) }),
                Err(_) => Err(String::from("write NAMESPACE/POD or NAMESPACE/POD/CONTAINER")),
            },
        }
    }
}

/// Why a process cannot be in its container.
#[derive(Debug)]
struct Obstacle {
    failure: Failure,
    /// Whether it will be so until someone changes something: trying again is of no use.
    is_final: bool,
}

impl Obstacle {
    fn for_good(failure: Failure) -> Self {
        Self { failure, is_final: true }
    }
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Self { failure, is_final: false }
    }
}

impl From<anyhow::Error> for Obstacle {
    fn from(error: anyhow::Error) -> Self {
        Failure::from(error).into()
    }
}

pub(super) fn exec(context: &Context, args: &Args) -> Result<(), Failure> {
    let Args { restart, target, command } = args;
    let run_dir = &context.config.run_dir;
    let (program, arguments) =
        command.split_first().ok_or_else(|| Failure::usage(anyhow!("there is no command to run")))?;
    if let Some(restart) = restart {
        return Err(Failure::ended(supervise(run_dir, target, command, *restart)?));
    }
    client::block_on(async { join(run_dir, target).await.map_err(|obstacle| obstacle.failure) })?;
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::command(error, &program.to_string_lossy()))
}

/// Moves this process into the container's cgroup and sets the container's `oom_score_adj`.
async fn join(run_dir: &Path, target: &Target) -> Result<(), Obstacle> {
    let container = container(run_dir, target).await?;
    let root =
        CgroupDir::mount(Path::new(crate::cgroup::MOUNT)).context("cannot join the container's cgroup")?;
    let path = &container.cgroup;
    if name::is_scope(path) {
        let cgroup = scope::enter(&root, path, process::id()).await?;
        taken_over(run_dir, target, cgroup.id()).await?;
    } else {
        let cgroup = root.open(path).context("cannot join the container's cgroup")?;
        if Some(cgroup.id()) != container.cgroup_id.map(CgroupId) {
            return Err(anyhow!("cgroup {path} was replaced a moment ago: try again").into());
        }
        // 0 is the writing process.
        cgroup.write("cgroup.procs", "0").context("cannot join the container's cgroup")?;
    }
    set_score(&root, &container, process::id())?;
    // An eviction between the daemon's answer and the join did not kill this process, which must not outlive it.
    recheck(run_dir, target).await
}

/// Gives a process in the container's cgroup the container's score.
fn set_score(root: &CgroupDir, container: &ContainerView, pid: u32) -> anyhow::Result<()> {
    let (file, score) = (format!("/proc/{pid}/oom_score_adj"), container.oom_score_adj);
    let before = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(before) = before
        && before != score
    {
        // For a cleanup. Without the right to record it the process starts all the same.
        let _unrecorded = root.open(&container.cgroup).and_then(|dir| dir.note_score(before, score));
    }
    fs::write(&file, score.to_string())
        .with_context(|| format!("cannot set the oom_score_adj of process {pid} to {score}"))
}

/// Waits until the daemon has found the scope and written its planned values.
async fn taken_over(run_dir: &Path, target: &Target, cgroup: CgroupId) -> Result<(), Obstacle> {
    let (start, mut poll) = (Instant::now(), Poll(POLL));
    loop {
        let view: View = client::get_json(run_dir, "/v1/pods").await?;
        match find(&view, target)? {
            Found::Ready(container) if container.cgroup_id == Some(cgroup.0) => return Ok(()),
            Found::Ready(_) | Found::Pending(_) | Found::Unknown => {}
        }
        if start.elapsed() >= TAKE_OVER {
            let Target { namespace, pod, .. } = target;
            return Err(Obstacle::from(anyhow!(
                "the daemon has not set the limits of the scope of pod {namespace}/{pod} within {} s: \
                 `enforcer events` shows why",
                TAKE_OVER.as_secs()
            )));
        }
        poll.wait().await;
    }
}

/// Waits until the container is known and its cgroup exists.
async fn container(run_dir: &Path, target: &Target) -> Result<ContainerView, Obstacle> {
    let (start, mut poll) = (Instant::now(), Poll(POLL));
    loop {
        let view: View = client::get_json(run_dir, "/v1/pods").await?;
        let (is_known, waiting_for) = match find(&view, target)? {
            Found::Ready(container) => return Ok(container),
            Found::Pending(Some(reason)) => (true, format!("has no cgroups yet ({reason})")),
            Found::Pending(None) => (true, String::from("has no cgroups yet")),
            Found::Unknown => (false, unknown(&view, target)),
        };
        if start.elapsed() >= TIMEOUT {
            let Target { namespace, pod, .. } = target;
            let error = anyhow!(
                "pod {namespace}/{pod} {waiting_for} after {} s: is its manifest in staticPodPath, and accepted? \
                 `enforcer events --type pod.rejected` shows why",
                TIMEOUT.as_secs()
            );
            return Err(if is_known {
                Failure::refused(error).into()
            } else {
                Obstacle::for_good(Failure::not_there(error))
            });
        }
        poll.wait().await;
    }
}

/// The message for an unknown pod, with the most similar known name.
fn unknown(view: &View, target: &Target) -> String {
    let names: Vec<_> = view.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    match nearest(&format!("{}/{}", target.namespace, target.pod), names.iter().map(String::as_str)) {
        Some(near) => format!("is not known (did you mean {near}?)"),
        None => String::from("is not known"),
    }
}

/// Polls with back-off: many waiting processes must not keep the daemon from the work that they wait for.
struct Poll(Duration);

impl Poll {
    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(POLL_MAX);
    }
}

async fn recheck(run_dir: &Path, target: &Target) -> Result<(), Obstacle> {
    let view: View = client::get_json(run_dir, "/v1/pods").await?;
    match find(&view, target)? {
        Found::Ready(_) => Ok(()),
        Found::Pending(_) | Found::Unknown => {
            let Target { namespace, pod, .. } = target;
            Err(Failure::refused(anyhow!(
                "pod {namespace}/{pod} went away meanwhile: `enforcer events --pod {namespace}/{pod}` shows why"
            ))
            .into())
        }
    }
}

enum Found {
    Ready(ContainerView),
    /// Its cgroups do not exist yet; with the reason, if there is one.
    Pending(Option<String>),
    Unknown,
}

/// Finds the container and decides whether it may be joined.
fn find(view: &View, target: &Target) -> Result<Found, Obstacle> {
    if view.mode != "enforce" {
        return Err(Failure::refused(anyhow!(
            "the daemon runs in mode {}, in which it creates no cgroups: set mode: enforce",
            view.mode
        ))
        .into());
    }
    let Some(pod) = view.pods.iter().find(|pod| pod.namespace == target.namespace && pod.name == target.pod)
    else {
        return Ok(Found::Unknown);
    };
    let refused = |what: &str| {
        let reason = pod.reason.as_deref().unwrap_or("no reason was given");
        Obstacle::for_good(Failure::refused(anyhow!("pod {}/{} {what}: {reason}", pod.namespace, pod.name)))
    };
    match pod.state {
        PodState::Evicted => {
            return Err(refused("was evicted, and stays so until its manifest changes or goes"));
        }
        PodState::Rejected => return Err(refused("was not admitted")),
        PodState::Removed => return Ok(Found::Unknown),
        PodState::Pending | PodState::Active => {}
    }
    let memory = NodeCondition::MemoryPressure.as_str();
    let of_memory = view.memory_pressure && !pod.starts_under_memory_pressure;
    let of_others = !pod.critical && view.conditions.iter().any(|name| name != memory);
    if of_memory || of_others {
        let conditions = match &view.conditions[..] {
            // An older daemon does not list the conditions.
            [] => String::from(memory),
            conditions => conditions.join(" "),
        };
        return Err(Failure::refused(anyhow!(
            "pod {}/{} is {} and the node had condition: [{}]. ",
            pod.namespace,
            pod.name,
            pod.qos_class,
            escape(&conditions)
        ))
        .into());
    }
    let container = choose(pod, target.container.as_deref()).map_err(Obstacle::for_good)?;
    let exists = container.cgroup_id.is_some()
        // A scope is created with its first process.
        || name::is_scope(&container.cgroup);
    Ok(if pod.state == PodState::Active && exists {
        Found::Ready(container.clone())
    } else {
        Found::Pending(pod.reason.clone())
    })
}

fn choose<'a>(pod: &'a PodView, name: Option<&str>) -> Result<&'a ContainerView, Failure> {
    let names =
        || pod.containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = name {
        return pod.containers.iter().find(|container| container.name == name).ok_or_else(|| {
            Failure::not_there(anyhow!(
                "pod {}/{} has no container {name:?}: it has {}",
                pod.namespace,
                pod.name,
                names()
            ))
        });
    }
    let mut apps = pod.containers.iter().filter(|container| container.kind == "app");
    match (apps.next(), apps.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Failure::usage(anyhow!(
            "pod {}/{} has several containers: name one of {}",
            pod.namespace,
            pod.name,
            names()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CgroupPath, PodUid};

    fn view(state: PodState) -> View {
        let path = CgroupPath::parse("/kubepods/besteffort/podu").unwrap();
        let container = |name: &str, kind: &'static str| ContainerView {
            name: name.into(),
            kind: kind.into(),
            attempt: None,
            oom_score_adj: 1000,
            cgroup: path.child(name).unwrap(),
            cgroup_id: Some(7),
        };
        View {
            mode: "enforce".into(),
            memory_pressure: false,
            disk_pressure: None,
            conditions: Vec::new(),
            specs: None,
            pods: vec![
                PodView {
                    spec: None,
                    labels: crate::model::Labels::default(),
                    controller: None,
                    namespace: "default".into(),
                    name: "web".into(),
                    uid: PodUid::new("u").unwrap(),
                    qos_class: "BestEffort".into(),
                    priority: 0,
                    critical: false,
                    request_bytes: 0,
                    limit_bytes: None,
                    state,
                    reason: Some("the node was low".into()),
                    starts_under_memory_pressure: false,
                    cgroup: path.clone(),
                    sandbox: None,
                    containers: vec![container("setup", "init"), container("app", "app")],
                }
                .into(),
            ],
        }
    }

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn the_only_app_container_needs_no_name() {
        let Ok(Found::Ready(container)) = find(&view(PodState::Active), &target("default/web")) else {
            panic!()
        };
        assert_eq!(container.name, "app");
        let Ok(Found::Ready(container)) = find(&view(PodState::Active), &target("default/web/setup")) else {
            panic!()
        };
        assert_eq!(container.name, "setup");
        assert!(find(&view(PodState::Active), &target("default/web/none")).is_err());
    }

    #[test]
    fn who_may_not_run_is_refused_and_who_is_not_there_yet_is_waited_for() {
        assert!(find(&view(PodState::Evicted), &target("default/web")).is_err());
        assert!(find(&view(PodState::Rejected), &target("default/web")).is_err());
        assert!(
            matches!(find(&view(PodState::Pending), &target("default/web")), Ok(Found::Pending(Some(reason))) if reason == "the node was low")
        );
        assert!(matches!(find(&view(PodState::Active), &target("kube-system/web")), Ok(Found::Unknown)));
        let mut pressed = view(PodState::Active);
        pressed.memory_pressure = true;
        assert!(find(&pressed, &target("default/web")).is_err());
        pressed.pods[0].starts_under_memory_pressure = true;
        assert!(find(&pressed, &target("default/web")).is_ok());
        pressed.memory_pressure = false;
        // Of any other condition only critical pods are spared.
        pressed.conditions = vec![String::from("PIDPressure")];
        assert!(find(&pressed, &target("default/web")).is_err());
        pressed.pods[0].critical = true;
        assert!(find(&pressed, &target("default/web")).is_ok());
        pressed.conditions.clear();
        pressed.mode = "dry-run".into();
        assert!(find(&pressed, &target("default/web")).is_err());
    }

    #[test]
    fn a_scope_is_entered_before_it_is_there() {
        let mut scoped = view(PodState::Active);
        let container = &mut scoped.pods[0].containers[1];
        container.cgroup_id = None;
        assert!(matches!(find(&scoped, &target("default/web")), Ok(Found::Pending(_))));
        let container = &mut scoped.pods[0].containers[1];
        container.cgroup =
            CgroupPath::parse("/kubepods.slice/kubepods-podu.slice/enforcer-u-app.scope").unwrap();
        assert!(matches!(find(&scoped, &target("default/web")), Ok(Found::Ready(_))));
        scoped.pods[0].state = PodState::Pending;
        assert!(matches!(find(&scoped, &target("default/web")), Ok(Found::Pending(_))));
    }

    #[test]
    fn a_target_has_two_or_three_parts() {
        for wrong in ["web", "a/b/c/d", "a/", "/a", ""] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong:?} was accepted");
        }
    }
}
