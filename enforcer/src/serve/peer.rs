//! The peer of an admin socket connection, and whether it is allowed to change something.
use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, PidfdFlags},
    time::Timespec,
};
use tokio::net::UnixStream;

use super::{Access, View};
use crate::{model::CgroupPath, raw};

/// The caller, as the kernel identifies it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// The user id.
    pub uid: u32,
    /// The process id.
    pub pid: u32,
}

/// Why a caller may not change anything.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The kernel does not identify it.
    #[error("cannot identify the caller: {0}")]
    Unknown(String),
    /// It is neither root nor the daemon's own user, nor named in the configuration.
    #[error(
        "uid {uid} may not change anything: only root, uid {own}, adminSocketOwner and members of adminSocketGroup may"
    )]
    User {
        /// The caller's user id.
        uid: u32,
        /// The daemon's user id.
        own: u32,
    },
    /// It is in a PID namespace that this daemon does not see.
    #[error("a process that the node does not see may not change anything")]
    Unseen,
    /// Its process is in a pod.
    #[error("a process in a pod (cgroup {cgroup}) may not change anything: ask from the node")]
    InPod {
        /// The cgroup.
        cgroup: String,
    },
    /// The daemon is in a cgroup namespace of its own, as in a container, and the process is outside of it.
    #[error(
        "a process outside of the daemon's cgroup namespace may be in a pod, and may not change anything: ask from within \
         the daemon's own container (kubectl exec)"
    )]
    Outside,
}

impl Peer {
    /// Returns the peer if it may change something: root, the daemon's own user, or the owner or group of the socket,
    /// but not a process in a pod.
    pub(super) fn admit(
        stream: &UnixStream,
        access: &Access,
        kubepods: &CgroupPath,
        view: &View,
    ) -> Result<Self, PeerError> {
        let unknown = |error: io::Error| PeerError::Unknown(error.to_string());
        let credentials = stream.peer_cred().map_err(unknown)?;
        let (uid, own) = (credentials.uid(), rustix::process::geteuid().as_raw());
        let is_owner = access.owner.as_ref().is_some_and(|owner| owner.id == uid);
        if uid != 0
            && uid != own
            && !is_owner
            && !is_member(stream, credentials.gid(), access).map_err(unknown)?
        {
            return Err(PeerError::User { uid, own });
        }
        let pid = credentials.pid().filter(|pid| *pid > 0).ok_or(PeerError::Unseen)?;
        let pidfd = pidfd(stream.as_fd(), pid).map_err(unknown)?;
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(unknown)?;
        // If it still runs, its pid was not reused before the read.
        if has_ended(&pidfd).map_err(unknown)? {
            return Err(PeerError::Unknown(String::from("it has ended")));
        }
        if let Some(cgroup) = pod_cgroup(&cgroups, kubepods, view) {
            return Err(PeerError::InPod { cgroup: cgroup.escape_debug().to_string() });
        }
        if is_outside(&cgroups) {
            return Err(PeerError::Outside);
        }
        let pid = u32::try_from(pid).map_err(|_error| PeerError::Unseen)?;
        Ok(Self { uid, pid })
    }
}

/// Whether the peer was in the socket's group when it connected.
fn is_member(stream: &UnixStream, gid: u32, access: &Access) -> io::Result<bool> {
    let Some(group) = &access.group else { return Ok(false) };
    Ok(gid == group.id || raw::peer_groups(stream.as_fd())?.contains(&group.id))
}

fn pidfd(socket: BorrowedFd<'_>, pid: i32) -> io::Result<OwnedFd> {
    match raw::peer_pidfd(socket) {
        // An older kernel: open the pidfd by pid.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
            Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
        }
        answered => answered,
    }
}

fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| {
        rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    })?;
    Ok(ready > 0)
}

/// The first pod cgroup among those of a process (`/proc/<pid>/cgroup`): one below kubepods, or one elsewhere that
/// a pod uses. On a hybrid host each hierarchy has its own line, and any of them counts.
fn pod_cgroup<'text>(cgroups: &'text str, kubepods: &CgroupPath, view: &View) -> Option<&'text str> {
    let taken = view.pods.iter().flat_map(|pod| {
        std::iter::once(&pod.cgroup).chain(pod.containers.iter().map(|container| &container.cgroup))
    });
    let pods: Vec<&str> = std::iter::once(kubepods)
        .chain(taken)
        // The root is never a pod's, and every process is below it.
        .filter(|path| !path.is_root())
        .map(CgroupPath::as_str)
        .collect();
    let is_pods = |path: &&str| {
        pods.iter()
            .any(|pod| path.strip_prefix(pod).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    };
    paths(cgroups).find(is_pods)
}

/// Whether a cgroup of a process is outside of our cgroup namespace. The kernel shows such a path relative to the
/// namespace's root, which does not show whether it is a pod's.
fn is_outside(cgroups: &str) -> bool {
    paths(cgroups).any(|path| path == "/.." || path.starts_with("/../"))
}

/// The cgroups of a process, one for each hierarchy.
fn paths(cgroups: &str) -> impl Iterator<Item = &str> {
    // hierarchy:controllers:path, and a path may hold colons.
    cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::PodUid,
        serve::{ContainerView, PodState, PodView},
    };

    fn view() -> View {
        let container = ContainerView {
            name: "app".into(),
            kind: "app".into(),
            attempt: None,
            oom_score_adj: 0,
            cgroup: CgroupPath::parse("/system.slice/web.service").unwrap(),
            cgroup_id: None,
        };
        let pod = PodView {
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
            state: PodState::Active,
            reason: None,
            starts_under_memory_pressure: false,
            cgroup: CgroupPath::parse("/kubepods/besteffort/podu").unwrap(),
            sandbox: None,
            containers: vec![container],
        };
        View { pods: vec![pod.into()], ..View::default() }
    }

    #[test]
    fn a_pods_processes_are_known_by_their_cgroup() {
        let kubepods = CgroupPath::parse("/kubepods").unwrap();
        let found = |cgroups: &'static str| pod_cgroup(cgroups, &kubepods, &view());
        for pods in [
            "0::/kubepods/besteffort/podu/app\n",
            "0::/kubepods\n",
            "0::/kubepods/podx:y/app (deleted)\n",
            "0::/system.slice/web.service/inner\n",
            "12:pids:/\n4:memory:/kubepods/burstable/podz\n0::/\n",
        ] {
            assert!(found(pods).is_some(), "{pods}");
        }
        for others in
            ["0::/\n", "0::/kubepods2/x\n", "0::/system.slice/web.service2\n", "0::/user.slice\n", ""]
        {
            assert_eq!(found(others), None, "{others}");
        }
    }

    #[test]
    fn what_is_outside_of_our_cgroup_namespace_may_be_a_pods() {
        for outside in ["0::/../../besteffort/podu/app\n", "0::/..\n", "4:memory:/\n0::/../x (deleted)\n"] {
            assert!(is_outside(outside), "{outside}");
        }
        for inside in ["0::/\n", "0::/inner\n", "0::/..inner\n", "0::/x:/../y\n", ""] {
            assert!(!is_outside(inside), "{inside}");
        }
    }

    #[tokio::test]
    async fn a_peer_is_known_as_long_as_it_lives() {
        let (here, _there) = UnixStream::pair().unwrap();
        let own = Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() };
        let elsewhere = CgroupPath::parse("/no/such/kubepods").unwrap();
        assert_eq!(Peer::admit(&here, &Access::default(), &elsewhere, &View::default()), Ok(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&pidfd).unwrap());
    }

    #[tokio::test]
    async fn a_member_of_the_group_is_known() {
        let (here, _there) = UnixStream::pair().unwrap();
        let access = |id: u32| {
            let group = Some(crate::serve::Account { name: id.to_string(), id });
            Access { owner: None, group }
        };
        let gid = rustix::process::getegid().as_raw();
        assert!(is_member(&here, gid, &access(gid)).unwrap());
        for group in rustix::process::getgroups().unwrap() {
            assert!(is_member(&here, u32::MAX, &access(group.as_raw())).unwrap(), "{group:?}");
        }
        assert!(!is_member(&here, gid, &access(4_294_967_294)).unwrap());
        assert!(!is_member(&here, gid, &Access::default()).unwrap());
    }
}
