//! The network process: it gives up its rights, and makes requests until its socket is closed.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream as StdStream},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use hyper::body::Incoming;
use rustix::{
    io::Errno,
    process::{Gid, Resource, Rlimit, Signal, Uid},
    thread::CapabilitySet,
};
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    signal::unix::{SignalKind, signal},
    sync::{Mutex, mpsc},
    task::AbortHandle,
};

use super::{
    connection::{Connection, ConnectionError, drain},
    frame,
    message::{Ask, Certificates, Endpoint, Outcome, Reply},
};
use crate::{raw, threads};

/// The hidden verb that this program is started with.
pub const VERB: &str = "network-process";

/// The user and group without rights, `nobody` on every distribution.
const NOBODY: u32 = 65_534;

/// All memory that it may map. Requests and answers are far below that. Its `oom_score_adj` stays the daemon's: systemd
/// stops a service of which the kernel kills any process.
const MOST_BYTES: u64 = 256 << 20;

/// How many names are looked up at once: one that hangs holds up no other.
const NAME_THREADS: usize = 4;

/// How many clients keep a connection. Beyond that all connections are closed and opened again as needed.
const MOST_CLIENTS: usize = 64;

/// How many replies may wait to be written.
const WAITING: usize = 64;

/// The stack of the thread that looks up names.
const STACK_BYTES: usize = 1 << 20;

/// What failed on the way to an answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the request cannot be written")]
    Request(#[from] hyper::http::Error),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("no answer within {timeout_ms} ms")]
    TimedOut { timeout_ms: u64 },
}

/// Serves the socket on its standard input until that is closed.
#[must_use]
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "the network process of enforcer: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    raw::close_all_but_standard();
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    if rustix::net::sockopt::socket_type(&socket).is_err() {
        return Err(io::Error::other("it is started by `enforcer run`, and by nothing else"));
    }
    let socket = StdStream::from(socket);
    socket.set_nonblocking(true)?;
    // Before there is another thread: users and capabilities are a thread's.
    give_up_rights()?;
    raw::look_up_names_plainly();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().thread_stack_size(STACK_BYTES).thread_name("names");
    let runtime = threads::runtime(builder, NAME_THREADS)?;
    // It has all its threads. There is no process of its own either.
    limit(Resource::Nproc, 0);
    runtime.block_on(async {
        // systemd signals this process too when the service stops; it ends with the daemon, after the last requests.
        let _terminate = signal(SignalKind::terminate())?;
        let _interrupt = signal(SignalKind::interrupt())?;
        serve(UnixStream::from_std(socket)?).await
    })?;
    // A name lookup that still runs is not waited for.
    runtime.shutdown_background();
    Ok(())
}

/// Becomes a user without rights, who dies with the daemon. As root it must succeed: what remained would be root.
fn give_up_rights() -> io::Result<()> {
    let _nice = rustix::process::setpriority_process(None, 0);
    limit(Resource::As, MOST_BYTES);
    limit(Resource::Core, 0);
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
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
    Ok(())
}

/// Lowers a limit, as far as it is above that.
fn limit(resource: Resource, most: u64) {
    let present = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(present));
    let _unchanged = rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most });
}

/// The open connection of a client, and what it was opened for.
struct Open {
    connection: Connection,
    endpoint: Endpoint,
    certificates: Option<Certificates>,
}

/// A client. It has one request at a time: the next one means that it has given up the one before.
#[derive(Default)]
struct Client {
    open: Arc<Mutex<Option<Open>>>,
    request: Option<AbortHandle>,
}

/// Makes the requests that come through a socket, until it is closed.
pub(super) async fn serve(stream: UnixStream) -> io::Result<()> {
    let (mut reader, writer) = stream.into_split();
    let (replies, outgoing) = mpsc::channel(WAITING);
    let writing = tokio::spawn(write_all(writer, outgoing));
    let read = read_all(&mut reader, &replies).await;
    drop(replies);
    writing.abort();
    read
}

async fn read_all(reader: &mut OwnedReadHalf, replies: &mpsc::Sender<Reply>) -> io::Result<()> {
    let mut clients: HashMap<String, Client> = HashMap::new();
    while let Some((ask, body)) = frame::read::<Ask>(reader, frame::MOST_BODY_BYTES).await? {
        if clients.len() >= MOST_CLIENTS && !clients.contains_key(&ask.endpoint.client) {
            clients.clear();
        }
        let client = clients.entry(ask.endpoint.client.clone()).or_default();
        if let Some(before) = client.request.take() {
            before.abort();
        }
        let answering = tokio::spawn(answer(ask, body, Arc::clone(&client.open), replies.clone()));
        client.request = Some(answering.abort_handle());
    }
    Ok(())
}

async fn write_all(mut writer: OwnedWriteHalf, mut replies: mpsc::Receiver<Reply>) -> io::Result<()> {
    while let Some(reply) = replies.recv().await {
        frame::write(&mut writer, &frame::encode(&reply, &[])?).await?;
    }
    Ok(())
}

/// Makes one request, and replies.
async fn answer(ask: Ask, body: Bytes, open: Arc<Mutex<Option<Open>>>, replies: mpsc::Sender<Reply>) {
    let (id, timeout_ms) = (ask.id, ask.timeout_ms);
    let exchange = async {
        let mut open = open.lock().await;
        let present = open.take();
        exchange(ask, &body, present).await.map(|exchanged| (exchanged, open))
    };
    let outcome = match tokio::time::timeout(Duration::from_millis(timeout_ms), exchange).await {
        Err(_elapsed) => Err(Failure::TimedOut { timeout_ms }),
        Ok(outcome) => outcome,
    };
    match outcome {
        Ok(((outcome, rest, opened), mut open)) => {
            // The other end may be gone.
            drop(replies.send(Reply { id, outcome }).await);
            // The connection can be used again only after the whole answer.
            if drain(rest).await {
                *open = Some(opened);
            }
        }
        Err(failure) => {
            let outcome = Outcome::Failed(crate::chain(&failure));
            drop(replies.send(Reply { id, outcome }).await);
        }
    }
}

/// Makes a request over the present connection, or over a new one if that has ended or is for something else.
async fn exchange(
    ask: Ask,
    body: &Bytes,
    present: Option<Open>,
) -> Result<(Outcome, Incoming, Open), Failure> {
    let endpoint = ask.endpoint.clone();
    let (request, certificates) = ask.into_request(body)?;
    let is_for_this = |open: &Open| open.endpoint == endpoint && open.certificates == certificates;
    if let Some(mut open) = present.filter(|open| is_for_this(open) && open.connection.is_open())
        // A receiver may close a connection just as it is used again: that is not a failure yet.
        && let Ok((status, headers, rest)) = open.connection.send(request.clone()).await
    {
        return Ok((Outcome::answered(status, &headers), rest, open));
    }
    let mut connection = Connection::open(&endpoint, certificates.as_ref()).await?;
    let (status, headers, rest) = connection.send(request).await?;
    Ok((Outcome::answered(status, &headers), rest, Open { connection, endpoint, certificates }))
}
