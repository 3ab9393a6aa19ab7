//! The requests to the daemon, over the observe socket.

use std::{path::Path, sync::Arc, time::Instant};

use serde::de::DeserializeOwned;

use super::{
    model::About,
    picture::Look,
    tally::{KINDS, Tally},
    why,
};
use crate::{
    cli::{Context, Failure, client, events::MAX_LINE_BYTES, freshness, render, select, times::Times},
    serve::{Memories, View},
};

/// How many events of a pod are shown; the newest ones.
const MAX_EVENTS: usize = 500;

/// Requests everything about the chosen pods. `uids` are those whose containers are read; empty means all.
pub(super) async fn look(
    run_dir: &Path,
    uids: &[String],
    pods: &select::Args,
    start: Instant,
) -> Result<Look, Failure> {
    let mut view: View = client::get_json(run_dir, "/v1/pods").await?;
    view.pods.retain(|pod| pods.takes(&pod.namespace, Some(&pod.labels)));
    let orders = client::get_json(run_dir, "/v1/orders").await?;
    let memories = optional(memories(run_dir, uids).await)?;
    let ranking = optional(client::get_json(run_dir, "/v1/ranking").await)?;
    let headroom = optional(client::get_json(run_dir, "/v1/headroom").await)?;
    Ok(Look { at_ms: since(start), wall_ms: freshness::now_ms(), view, memories, ranking, headroom, orders })
}

/// Milliseconds since then.
pub(super) fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The memory of the containers of these pods; empty means all.
pub(super) async fn memories(run_dir: &Path, uids: &[String]) -> Result<Memories, Failure> {
    let query: Vec<_> = uids.iter().map(|uid| format!("uid={}", client::encode(uid))).collect();
    client::get_json(run_dir, &format!("/v1/containers?{}", query.join("&"))).await
}

/// An answer that may be an error while others succeed; an unreachable daemon is a failure.
fn optional<T: DeserializeOwned>(answer: Result<T, Failure>) -> Result<Result<T, String>, Failure> {
    match answer {
        Ok(answer) => Ok(Ok(answer)),
        Err(failure) if failure.is_unreachable() => Err(failure),
        Err(failure) => Ok(Err(failure.to_string())),
    }
}

/// The tally of the events until now.
pub(super) async fn tally(run_dir: &Path) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let now_ms = jiff::Timestamp::now().as_millisecond();
    events(run_dir, &tally_query(false), |line| tally.take(line, now_ms)).await?;
    Ok(tally)
}

/// Follows the events; `emit` gets the tally each time that events arrive.
pub(super) async fn follow(run_dir: &Path, mut emit: impl FnMut(Tally)) -> Result<(), Failure> {
    let mut tally = Tally::default();
    let mut answer = events_answer(run_dir, &tally_query(true)).await?;
    let mut pending = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        let now_ms = jiff::Timestamp::now().as_millisecond();
        lines(&mut pending, &chunk, |line| tally.take(line, now_ms))?;
        emit(tally.clone());
    }
    Ok(())
}

/// The query for the events that are counted.
pub(in crate::cli) fn tally_query(follow: bool) -> String {
    let kinds: Vec<_> = KINDS.iter().map(|kind| format!("&type={kind}")).collect();
    format!("follow={follow}{}", kinds.concat())
}

/// The text of a panel about a pod.
pub(super) async fn about(context: Arc<Context>, what: About, namespace: &str, name: &str) -> Vec<String> {
    let reported = match what {
        About::Why => why::lines(context, namespace, name).await,
        About::Events => pod_events(&context.config.run_dir, namespace, name).await,
    };
    match reported {
        Ok(lines) if lines.is_empty() => vec![String::from("the log contains no events about it")],
        Ok(lines) => lines,
        Err(failure) => vec![failure.to_string()],
    }
}

/// A pod's newest events as lines for people, the newest first.
async fn pod_events(run_dir: &Path, namespace: &str, name: &str) -> Result<Vec<String>, Failure> {
    let query = format!("namespace={}&pod={}", client::encode(namespace), client::encode(name));
    let mut newest = std::collections::VecDeque::new();
    events(run_dir, &query, |line| {
        if newest.len() == MAX_EVENTS {
            newest.pop_front();
        }
        newest.push_back(line.to_vec());
    })
    .await?;
    let now = jiff::Timestamp::now();
    Ok(newest.iter().rev().map(|line| render::event(line, false, Times::Ages, now)).collect())
}

/// Takes each event that the query asks for, a line each, the oldest first.
pub(in crate::cli) async fn events(
    run_dir: &Path,
    query: &str,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Failure> {
    let mut answer = events_answer(run_dir, query).await?;
    let mut pending = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        lines(&mut pending, &chunk, &mut take)?;
    }
    Ok(())
}

async fn events_answer(run_dir: &Path, query: &str) -> Result<client::Answer, Failure> {
    let answer = client::get(run_dir, &format!("/v1/events?{query}")).await?;
    let status = answer.status;
    if status.is_success() { Ok(answer) } else { Err(client::refusal(status, &answer.bytes().await?)) }
}

/// Passes on the complete lines; the rest stays in `pending`. An empty line is a heartbeat.
fn lines(pending: &mut Vec<u8>, chunk: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), Failure> {
    pending.extend_from_slice(chunk);
    let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in pending.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
        if !line.is_empty() {
            take(line);
        }
    }
    pending.drain(..whole);
    if pending.len() > MAX_LINE_BYTES {
        return Err(anyhow::anyhow!("the daemon sent a line of more than {MAX_LINE_BYTES} bytes").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn lines_are_whole_however_they_come() {
        let (mut pending, mut taken) = (Vec::new(), Vec::new());
        for chunk in [&b"one\ntw"[..], b"o", b"\n\nthree\n", b"four"] {
            lines(&mut pending, chunk, |line| taken.push(String::from_utf8_lossy(line).into_owned()))
                .unwrap();
        }
        assert_eq!(taken, ["one", "two", "three"]);
        assert_eq!(pending, b"four");
        assert!(lines(&mut pending, &vec![b'x'; 2 << 20], |_| ()).is_err());
    }
}
