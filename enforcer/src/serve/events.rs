use std::{convert::Infallible, time::Duration};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Query as Pairs, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{Stream, stream};
use serde_json::json;

use super::server::Shared;
use crate::journal::{Batch, Cursor, EventType, Filter, Reader, Stale};

/// How often a reader that follows hears from us when nothing happens.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// What `GET /v1/events` was asked for.
#[derive(Debug, Default, PartialEq)]
struct Query {
    after: Option<Cursor>,
    follow: bool,
    filter: Filter,
}

impl Query {
    /// Reads a query string; a parameter that is unknown or wrong is an error that says what would be right.
    fn parse(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in pairs {
            match name.as_str() {
                // `?type=` asks for no type in particular.
                _ if value.is_empty() && name != "follow" => {}
                "after" => parsed.after = Some(value.parse().map_err(|error| format!("after: {error}"))?),
                "follow" => {
                    let follow = truth(&value);
                    parsed.follow =
                        follow.ok_or_else(|| format!("follow: {value:?} is not true or false"))?;
                }
                "type" => {
                    let kind = EventType::named(&value).map_err(|error| format!("type: {error}"))?;
                    parsed.filter.kinds.push(kind);
                }
                "namespace" => parsed.filter.namespace = Some(value),
                "pod" => parsed.filter.pod = Some(value),
                "since" => {
                    let since: jiff::Timestamp = value.parse().map_err(|_error| {
                        format!("since: {value:?} is not a time such as 2026-01-31T12:00:00Z")
                    })?;
                    parsed.filter.since_ms = Some(since.as_millisecond());
                }
                _ => {
                    return Err(format!(
                        "{name:?} is not a parameter: after, follow, type, namespace, pod or since"
                    ));
                }
            }
        }
        Ok(parsed)
    }
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "true" | "1" | "" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

pub(super) async fn events(
    State(shared): State<Shared>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Response {
    let query = match Query::parse(pairs) {
        Ok(query) => query,
        Err(message) => return (StatusCode::BAD_REQUEST, Json(json!({"error": message}))).into_response(),
    };
    let after = match query.after.map(|cursor| shared.journal.resume(&cursor)).transpose() {
        Ok(after) => after,
        Err(Stale { range, lost }) => {
            return (
                StatusCode::GONE,
                Json(json!({
                    "error": "the cursor is older than what is kept, or of another log",
                    "oldest": shared.journal.cursor(range.oldest).to_string(),
                    "newest": shared.journal.cursor(range.newest).to_string(),
                    "lost": lost,
                })),
            )
                .into_response();
        }
    };
    let reader = shared.journal.reader(after, query.filter);
    let body = Body::from_stream(lines(reader, shared, query.follow));
    ([(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-store")], body)
        .into_response()
}

/// The events as lines; an empty line is a heartbeat.
fn lines(reader: Reader, shared: Shared, follow: bool) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((reader, shared), move |(mut reader, shared)| async move {
        loop {
            let chunk = match reader.read() {
                Some(Batch::Records(records)) if records.is_empty() => continue,
                Some(Batch::Records(records)) => join(records.into_iter().map(|record| record.line)),
                Some(Batch::Gap { from, to }) => gap(&shared, from, to),
                None if !follow => return None,
                None => {
                    let mut stopping = shared.stopping.clone();
                    tokio::select! {
                        () = reader.readable() => continue,
                        () = tokio::time::sleep(HEARTBEAT) => Bytes::from_static(b"\n"),
                        // A stopping daemon ends its streams, when all that was appended has been sent.
                        _ = stopping.wait_for(|stopping| *stopping) => match reader.read() {
                            Some(Batch::Records(records)) => join(records.into_iter().map(|record| record.line)),
                            Some(Batch::Gap { .. }) | None => return None,
                        },
                    }
                }
            };
            return Some((Ok(chunk), (reader, shared)));
        }
    })
}

fn join(lines: impl Iterator<Item = Bytes>) -> Bytes {
    lines
        .fold(Vec::new(), |mut joined, line| {
            joined.extend_from_slice(&line);
            joined
        })
        .into()
}

/// A gap belongs to one reader, so it is told on its stream and is not in the log.
fn gap(shared: &Shared, from: u64, to: u64) -> Bytes {
    let line = json!({
        "specversion": "1.0",
        "id": format!("gap-{}", shared.journal.cursor(to)),
        "source": shared.journal.source(),
        "type": EventType::StreamGap,
        "datacontenttype": "application/json",
        "data": {"fromSequence": format!("{from:020}"), "toSequence": format!("{to:020}"), "count": to - from + 1},
    });
    Bytes::from(format!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Query, String> {
        Query::parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_query_says_what_is_wrong_with_it() {
        let query = parse(&[
            ("type", "oom.detected"),
            ("type", "dev.enforcer.pod.added"),
            ("namespace", "a"),
            ("follow", "true"),
            ("pod", ""),
        ])
        .unwrap();
        assert_eq!(query.filter.kinds, [EventType::OomDetected, EventType::PodAdded]);
        assert_eq!(query.filter.namespace.as_deref(), Some("a"));
        assert_eq!(query.filter.pod, None);
        assert!(query.follow);
        for wrong in
            [("type", "oom"), ("after", "12"), ("follow", "maybe"), ("since", "yesterday"), ("limit", "3")]
        {
            let error = parse(&[wrong]).unwrap_err();
            assert!(error.contains(wrong.0), "{error}");
        }
    }
}
