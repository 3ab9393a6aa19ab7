//! `GET /v1/events`.

use axum::{
    Json,
    body::Body,
    extract::{Query as Pairs, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    accept::{Format, NoFormat},
    follower::Follower,
    query::{Query, cursor},
    routes::reported,
    server::Shared,
};
use crate::journal::{Cursor, Journal, Stale};

/// The header with the cursor of the last event that a client of server-sent events received (HTML, 9.2.4).
const LAST_EVENT_ID: &str = "last-event-id";

pub(super) async fn events(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Response {
    let journal = &shared.journal;
    let format = match Format::wanted(&headers) {
        Ok(format) => format,
        Err(error) => {
            let status = match error {
                NoFormat::Malformed(_) => StatusCode::BAD_REQUEST,
                NoFormat::Unacceptable => StatusCode::NOT_ACCEPTABLE,
            };
            return reported(status, &error.to_string());
        }
    };
    let query = Query::parse(pairs).and_then(|query| {
        // The header is newer than the URL.
        let last = last_event_id(&headers)?;
        let after = last.as_deref().map(cursor).transpose();
        let after = after.map_err(|error| format!("Last-Event-ID: {error}"))?;
        Ok(Query { after: after.or(query.after), ..query })
    });
    let Query { after, follow, filter } = match query {
        Ok(query) => query,
        Err(error) => {
            let [oldest, newest] = kept(journal);
            let reported = json!({"error": error, "oldest": oldest, "newest": newest});
            return (StatusCode::BAD_REQUEST, Json(reported)).into_response();
        }
    };
    let after = match after {
        None => None,
        Some(cursor) => match journal.resume(&cursor) {
            Ok(after) => Some(after),
            Err(stale) if is_ahead(journal, &stale, &cursor) => return ahead(journal, &cursor),
            Err(stale) => return gone(journal, &stale),
        },
    };
    let ends = filter.until_ms;
    let [oldest, newest] = kept(journal);
    let follower = Follower {
        reader: journal.reader(after, filter),
        journal: journal.clone(),
        format,
        // A client of server-sent events reconnects at each end, so its stream must not end.
        // What is asked up to some time has an end.
        follow: follow.unwrap_or(format == Format::Sse && ends.is_none()),
        throttle: shared.throttle,
        stopping: shared.stopping,
        reported: None,
        heard: tokio::time::Instant::now(),
    };
    let headers = [
        (header::CONTENT_TYPE.as_str(), format.content_type()),
        (header::CACHE_CONTROL.as_str(), "no-store"),
        (header::VARY.as_str(), "accept"),
        ("enforcer-oldest", &oldest),
        ("enforcer-newest", &newest),
    ];
    (headers, Body::from_stream(follower.chunks())).into_response()
}

/// The cursors of the oldest and the newest kept event.
fn kept(journal: &Journal) -> [String; 2] {
    let range = journal.range();
    [range.oldest, range.newest].map(|sequence| journal.cursor(sequence).to_string())
}

/// Whether the cursor is of this log, and of an event that it does not have yet.
fn is_ahead(journal: &Journal, stale: &Stale, cursor: &Cursor) -> bool {
    let newest = stale.range.newest;
    cursor.sequence > newest && journal.cursor(newest).epoch == cursor.epoch
}

fn ahead(journal: &Journal, cursor: &Cursor) -> Response {
    let [oldest, newest] = kept(journal);
    let error = format!(
        "the cursor {cursor} is in the future: the newest event has {newest}; give that to get what comes after it"
    );
    let reported = json!({"error": error, "oldest": oldest, "newest": newest});
    (StatusCode::BAD_REQUEST, Json(reported)).into_response()
}

fn gone(journal: &Journal, stale: &Stale) -> Response {
    let [oldest, newest] =
        [stale.range.oldest, stale.range.newest].map(|sequence| journal.cursor(sequence).to_string());
    let reported = json!({
        "error": format!(
            "the cursor is too old or of another log: {} events are lost; omit it to get all that is kept",
            stale.lost
        ),
        "oldest": oldest,
        "newest": newest,
        "lost": stale.lost,
    });
    (StatusCode::GONE, Json(reported)).into_response()
}

/// The last event's cursor. A client sends an empty header if it has received none.
fn last_event_id(headers: &HeaderMap) -> Result<Option<String>, String> {
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(String::from("Last-Event-ID: it is given twice"));
    }
    let text = value.to_str().map_err(|_error| {
        format!("Last-Event-ID: {:?} is not a cursor", String::from_utf8_lossy(value.as_bytes()))
    })?;
    Ok((!text.is_empty()).then(|| text.to_owned()))
}
