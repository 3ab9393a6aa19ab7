//! The kube process: it asks the API server, one question of a lane after the other.

use std::{io, process::ExitCode, time::Duration};

use tokio::{
    net::{UnixStream, unix::OwnedWriteHalf},
    runtime::{Builder, Runtime},
    sync::mpsc::{self, error::TrySendError},
    time::{Instant, timeout_at},
};

use super::{
    api::Api,
    client::KubeApi,
    message::{Ask, Lane, Outcome},
};
use crate::{
    helper::{self, Kind, Numbered, Protocol as _},
    raw, threads,
};

/// The hidden verb that this program is started with.
pub const VERB: &str = "kube-process";

/// The server's name is looked up on a thread of its own, which must exist before the limit of processes is set.
const LOOKUPS: usize = 1;

/// How many questions of a lane, and answers, may wait.
const WAITING: usize = 8;

/// Serves the socket on its standard input until that is closed.
#[must_use]
pub fn main() -> ExitCode {
    helper::main((KubeApi::NAME, Kind::Kube), runtime, serve)
}

fn runtime() -> io::Result<Runtime> {
    raw::look_up_names_plainly();
    threads::runtime(Builder::new_current_thread().enable_all().thread_name("names"), LOOKUPS)
}

/// Answers the questions that come through a socket, until it is closed.
pub(super) async fn serve(stream: UnixStream) -> io::Result<()> {
    let (mut reader, writer) = stream.into_split();
    let (answers, outgoing) = mpsc::channel(WAITING);
    let lane = || {
        let (questions, asked) = mpsc::channel(WAITING);
        tokio::spawn(work(asked, answers.clone()));
        questions
    };
    let (evictions, looks, events) = (lane(), lane(), lane());
    let writing = tokio::spawn(write_all(writer, outgoing));
    while let Some((question, _body)) =
        helper::read::<Numbered<Ask>>(&mut reader, KubeApi::MOST_ASK_BYTES).await?
    {
        let lane = match question.content.lane {
            Lane::Evictions => &evictions,
            Lane::Looks => &looks,
            Lane::Events => &events,
        };
        let deadline = Instant::now() + Duration::from_millis(question.content.timeout_ms);
        // One that is full must not hold up the others.
        let refused = match lane.try_send((deadline, question)) {
            Ok(()) => continue,
            Err(TrySendError::Closed(_)) => break,
            Err(TrySendError::Full((_deadline, refused))) => refused,
        };
        let content = Outcome::Failed(String::from("too many questions wait for the API server"));
        if answers.send(Numbered { id: refused.id, content }).await.is_err() {
            break;
        }
    }
    writing.abort();
    Ok(())
}

/// Answers the questions of one lane, each by its deadline, with a connection of its own.
async fn work(mut asked: mpsc::Receiver<(Instant, Numbered<Ask>)>, answers: mpsc::Sender<Numbered<Outcome>>) {
    let mut api = Api::default();
    while let Some((deadline, question)) = asked.recv().await {
        let Numbered { id, content: Ask { access, call, timeout_ms, lane: _ } } = question;
        let content = if Instant::now() >= deadline {
            // Who has asked no longer waits, and must not find it done later.
            Outcome::Failed(format!("it waited for {timeout_ms} ms behind other questions"))
        } else {
            let answer = timeout_at(deadline, api.ask(&access, &call, deadline)).await;
            let is_resent = api.is_resent();
            let outcome = match answer {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(failure)) => Outcome::Failed(crate::chain(&failure)),
                Err(_elapsed) => {
                    // An answer that comes later is none to the next question.
                    api = Api::default();
                    Outcome::Failed(format!("no answer within {timeout_ms} ms"))
                }
            };
            if is_resent { Outcome::Resent(Box::new(outcome)) } else { outcome }
        };
        if answers.send(Numbered { id, content }).await.is_err() {
            return;
        }
    }
}

async fn write_all(
    mut writer: OwnedWriteHalf,
    mut answers: mpsc::Receiver<Numbered<Outcome>>,
) -> io::Result<()> {
    while let Some(answer) = answers.recv().await {
        helper::write(&mut writer, &helper::encode(&answer, &[], KubeApi::MOST_ANSWER_BYTES)?).await?;
    }
    Ok(())
}
