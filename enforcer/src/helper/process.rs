//! The process's side: it gives up its rights, and serves the socket on its standard input until that is closed.

use std::{
    io::{self, Write as _},
    os::{fd::AsFd, unix::net::UnixStream as StdStream},
    process::ExitCode,
};

use rustix::{
    io::Errno,
    process::{Gid, Resource, Rlimit, Signal, Uid},
    thread::CapabilitySet,
};
use tokio::{
    net::UnixStream,
    runtime::Runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{
    privilege::{self, Unfiltered},
    raw, threads,
};

/// The user and group of the first kind of process. The kinds have one each, which no distribution gives to anyone: what else
/// runs as `nobody` could signal them, and they each other.
const FIRST_USER: u32 = 65_520;

/// All memory that it may map. Requests and answers are far below that. Its `oom_score_adj` stays the daemon's: systemd
/// stops a service of which the kernel kills any process.
const MOST_BYTES: u64 = 256 << 20;

/// A kind of process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// It makes requests to other machines.
    Network,
    /// It asks the container runtime.
    Runtime,
    /// It asks for specs.
    Specs,
    /// It asks the API server to evict.
    Kube,
    /// It serves the metrics over TLS.
    Metrics,
}

impl Kind {
    /// Its user and its group.
    fn user(self) -> u32 {
        FIRST_USER
            + match self {
                Self::Network => 0,
                Self::Runtime => 1,
                Self::Specs => 2,
                Self::Kube => 3,
                Self::Metrics => 4,
            }
    }

    /// Whether others connect to it.
    fn accepts_connections(self) -> bool {
        self == Self::Metrics
    }
}

/// Runs a helper process: gives up all rights, makes the runtime with all its threads, and serves the socket on the
/// standard input. No other thread may exist yet, and nothing may be open but the standard streams.
#[must_use]
pub(crate) fn main<F>(
    (name, kind): (&str, Kind),
    runtime: impl FnOnce() -> io::Result<Runtime>,
    serve: impl FnOnce(UnixStream) -> F,
) -> ExitCode
where
    F: Future<Output = io::Result<()>>,
{
    match run(name, kind, runtime, serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "the {name} process of enforcer: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run<F>(
    name: &str,
    kind: Kind,
    runtime: impl FnOnce() -> io::Result<Runtime>,
    serve: impl FnOnce(UnixStream) -> F,
) -> io::Result<()>
where
    F: Future<Output = io::Result<()>>,
{
    raw::close_all_but_standard();
    let socket = standard_socket(&io::stdin())?;
    // Before there is another thread: users and capabilities are a thread's.
    give_up_rights(kind)?;
    let runtime = runtime()?;
    // It has all its threads. There is no process of its own either.
    limit(Resource::Nproc, 0);
    match privilege::confine_helper(kind.accepts_connections()) {
        Ok(()) => {}
        // As `doctor` says of this kernel.
        Err(missing @ Unfiltered::Missing(_)) => {
            drop(writeln!(io::stderr(), "the {name} process of enforcer is not confined: {missing}"));
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    let served = runtime.block_on(async {
        // systemd signals this process too when the service stops; it ends with the daemon, after the last requests.
        let _terminate = signal(SignalKind::terminate())?;
        let _interrupt = signal(SignalKind::interrupt())?;
        serve(UnixStream::from_std(socket)?).await
    });
    // A name lookup that still runs is not waited for.
    runtime.shutdown_background();
    served
}

/// A standard stream of this process that the daemon made a socket.
pub(crate) fn standard_socket(stream: &impl AsFd) -> io::Result<StdStream> {
    let socket = stream.as_fd().try_clone_to_owned()?;
    if rustix::net::sockopt::socket_type(&socket).is_err() {
        return Err(io::Error::other("it is started by `enforcer run`, and by nothing else"));
    }
    let socket = StdStream::from(socket);
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Becomes a user without rights, who dies with the daemon. As root it must succeed: what remained would be root.
fn give_up_rights(kind: Kind) -> io::Result<()> {
    let user = kind.user();
    let nice = if kind == Kind::Kube { threads::EVICTION_NICE } else { 0 };
    let _nice = rustix::process::setpriority_process(None, nice);
    limit(Resource::As, MOST_BYTES);
    limit(Resource::Core, 0);
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
    if rustix::process::geteuid().is_root() {
        let cannot = |what: &str, error: Errno| {
            io::Error::other(format!("cannot give up {what} (CAP_SETUID and CAP_SETGID are needed): {error}"))
        };
        rustix::thread::set_thread_groups(&[]).map_err(|error| cannot("its groups", error))?;
        rustix::thread::set_thread_res_gid(group, group, group)
            .map_err(|error| cannot("its group", error))?;
        rustix::thread::set_thread_res_uid(user, user, user).map_err(|error| cannot("its user", error))?;
    }
    rustix::thread::set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let none = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none)?;
    // After the user: changing that one takes it back.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    // `doctor` says whether this kernel has it.
    let _has_landlock = raw::touch_nothing()?;
    Ok(())
}

/// Lowers a limit, as far as it is above that.
fn limit(resource: Resource, most: u64) {
    let present = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(present));
    let _unchanged = rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_user_of_its_own_as_the_page_says() {
        let page = include_str!("../../../docs/privileges.md");
        for (verb, kind) in [
            ("network-process", Kind::Network),
            ("runtime-process", Kind::Runtime),
            ("specs-process", Kind::Specs),
            ("kube-process", Kind::Kube),
            ("metrics-process", Kind::Metrics),
        ] {
            let start = format!("| `enforcer {verb}`");
            let row = page.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
            assert_eq!(row.split('|').nth(1).unwrap().trim(), kind.user().to_string(), "{verb}");
        }
    }
}
