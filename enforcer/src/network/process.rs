//! The network process: it makes requests until its socket is closed.

use std::{collections::HashMap, io, process::ExitCode, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::body::Incoming;
use tokio::{
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Runtime,
    sync::{Mutex, mpsc},
    task::AbortHandle,
};

use super::{
    client::Http,
    connection::{Connection, ConnectionError, drain},
    message::{Ask, Certificates, Endpoint, Outcome, Security, Trust},
};
use crate::{
    helper::{self, Kind, Numbered, Protocol as _},
    raw, threads,
};

/// The hidden verb that this program is started with.
pub const VERB: &str = "network-process";

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
    helper::main((Http::NAME, Kind::Network), runtime, serve)
}

/// Names are looked up on threads.
fn runtime() -> io::Result<Runtime> {
    raw::look_up_names_plainly();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let builder = builder.enable_all().thread_stack_size(STACK_BYTES).thread_name("names");
    threads::runtime(builder, NAME_THREADS)
}

/// The open connection of a client, and what it was opened for.
struct Open {
    connection: Connection,
    endpoint: Endpoint,
    certificates: Option<Certificates>,
}

type Reply = Numbered<Outcome>;

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
    while let Some((Numbered { id, content: ask }, body)) =
        helper::read::<Numbered<Ask>>(reader, Http::MOST_ASK_BYTES).await?
    {
        if clients.len() >= MOST_CLIENTS && !clients.contains_key(&ask.endpoint.client) {
            clients.clear();
        }
        let client = clients.entry(ask.endpoint.client.clone()).or_default();
        if let Some(before) = client.request.take() {
            before.abort();
        }
        let answering = tokio::spawn(answer(id, ask, body, Arc::clone(&client.open), replies.clone()));
        client.request = Some(answering.abort_handle());
    }
    Ok(())
}

async fn write_all(mut writer: OwnedWriteHalf, mut replies: mpsc::Receiver<Reply>) -> io::Result<()> {
    while let Some(reply) = replies.recv().await {
        helper::write(&mut writer, &helper::encode(&reply, &[], Http::MOST_ANSWER_BYTES)?).await?;
    }
    Ok(())
}

/// Makes one request, and replies.
async fn answer(
    id: u64,
    ask: Ask,
    body: Bytes,
    open: Arc<Mutex<Option<Open>>>,
    replies: mpsc::Sender<Reply>,
) {
    let timeout_ms = ask.timeout_ms;
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
            drop(replies.send(Reply { id, content: outcome }).await);
            // The connection can be used again only after the whole answer.
            if drain(rest).await {
                *open = Some(opened);
            }
        }
        Err(failure) => {
            let outcome = Outcome::Failed(crate::chain(&failure));
            drop(replies.send(Reply { id, content: outcome }).await);
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
    let trust = certificates.clone().map_or(Trust::System, Trust::Roots);
    let security = Security { trust, ..Security::default() };
    let mut connection = Connection::open(&endpoint, &security).await?;
    let (status, headers, rest) = connection.send(request).await?;
    Ok((Outcome::answered(status, &headers), rest, Open { connection, endpoint, certificates }))
}
