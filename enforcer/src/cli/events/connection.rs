//! Reads the daemon's events, over as many connections as it takes.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use anyhow::anyhow;
use hyper::StatusCode;
use serde_json::Value;

use super::{Asked, Place, printer::Printer, stream::Stream};
use crate::{
    cli::{Context, Failure, client, exit::Unreachable, render::escape},
    journal::Cursor,
};

/// How long to wait before the first and, doubled each time, the last attempt to reach the daemon again.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Prints the daemon's events, and moves `place` along. The daemon hangs up on a client that stops reading for a while;
/// then this reconnects and continues after the last printed event.
pub(super) async fn from_daemon(
    context: &Context,
    asked: &Asked,
    place: &mut Place,
    printer: &mut Printer,
) -> Result<(), Failure> {
    loop {
        let before = place.clone();
        let result = from_connection(context, asked, place, printer, None).await;
        let has_hung_up =
            result.as_ref().is_err_and(|failure| failure.silence() == Some(Unreachable::HungUp));
        // A connection that brought nothing new is not worth another try.
        if !has_hung_up || *place == before || *place == Place::Unknown {
            return result;
        }
    }
}

/// A followed stream over the restarts of the daemon.
#[derive(Debug, Default)]
pub(super) struct Link {
    /// Whether there was a connection.
    was_up: bool,
    /// When the last connection ended.
    broken: Option<Instant>,
    /// What is lost, in words, if the daemon no longer keeps it.
    lost: Option<String>,
}

impl Link {
    /// There is a connection: tells for how long there was none, and what it cost.
    fn is_up(&mut self) {
        self.was_up = true;
        match (self.broken.take(), self.lost.take()) {
            (Some(since), lost) => {
                let lost = lost.unwrap_or_else(|| String::from("no event lost"));
                notice(&format!("reconnected after {:.1} s, {lost}", since.elapsed().as_secs_f64()));
            }
            (None, Some(lost)) => notice(&lost),
            (None, None) => {}
        }
    }
}

fn notice(said: &str) {
    // If this fails, there is nowhere to report it.
    drop(writeln!(io::stderr(), "{}", escape(said)));
}

/// Follows the events until the reader goes away: if the daemon ends, it waits for the next one and goes on behind the
/// last printed event.
pub(super) async fn follow(
    context: &Context,
    asked: &Asked,
    place: &mut Place,
    printer: &mut Printer,
) -> Result<(), Failure> {
    if printer.holds() {
        // Only an answer that ends shows which events are the last.
        from_daemon(context, &asked.ending(), place, printer).await?;
        printer.release().map_err(Failure::printing)?;
    }
    let (mut link, mut wait) = (Link::default(), FIRST_WAIT);
    loop {
        let before = place.clone();
        let ended = from_connection(context, asked, place, printer, Some(&mut link)).await;
        // The daemon answers: only the place was wrong.
        if *place == Place::Oldest && before != Place::Oldest {
            continue;
        }
        // Plain lines have no place to go on from.
        if !link.was_up || *place == Place::Unknown {
            return ended;
        }
        let why = match &ended {
            Ok(()) => "the daemon has ended the stream",
            Err(failure) => match failure.silence() {
                Some(silence) => silence.as_str(),
                None => return ended,
            },
        };
        if *place != before {
            wait = FIRST_WAIT;
        }
        if link.broken.is_none() {
            link.broken = Some(Instant::now());
            notice(&format!("{why}: reconnecting"));
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

async fn from_connection(
    context: &Context,
    asked: &Asked,
    place: &mut Place,
    printer: &mut Printer,
    mut link: Option<&mut Link>,
) -> Result<(), Failure> {
    let mut answer = client::get_with_cursors(&context.config.run_dir, &asked.target(place)).await?;
    if !answer.status.is_success() {
        let status = answer.status;
        let body = answer.bytes().await?;
        let lost = if status == StatusCode::GONE { Lost::of(&body) } else { None };
        let Some(lost) = lost else { return Err(client::refusal(status, &body)) };
        if let (Some(link), Place::Behind(last)) = (link, &*place) {
            link.lost = Some(lost.words(last));
            *place = Place::Oldest;
            return Ok(());
        }
        return Err(stale(place, lost.count));
    }
    if let Some(link) = &mut link {
        link.is_up();
    }
    let newest = answer.newest().and_then(|newest| newest.parse::<Cursor>().ok());
    let mut stream = Stream::new(answer.has_cursors());
    while let Some(chunk) = answer.chunk().await? {
        let part = stream.take(&chunk)?;
        printer.print(&part.lines).map_err(Failure::printing)?;
        match part.cursor {
            Some(cursor) => *place = Place::Behind(cursor),
            None if part.lines.is_empty() => {}
            None => *place = Place::Unknown,
        }
    }
    if let (false, Some(newest)) = (asked.follow, newest) {
        place.advance(newest);
    }
    Ok(())
}

/// The answer to a cursor that is no longer kept.
#[derive(Debug)]
struct Lost {
    /// How many events are lost.
    count: u64,
    /// The cursor of the oldest event that is kept.
    oldest: Option<Cursor>,
}

impl Lost {
    fn of(body: &[u8]) -> Option<Self> {
        let body: Value = serde_json::from_slice(body).ok()?;
        let oldest = body.get("oldest").and_then(Value::as_str).and_then(|oldest| oldest.parse().ok());
        Some(Self { count: body.get("lost")?.as_u64()?, oldest })
    }

    /// Which events behind `last` are lost.
    fn words(&self, last: &Cursor) -> String {
        let count = self.count;
        match &self.oldest {
            Some(oldest) if oldest.epoch != last.epoch => {
                format!("and the log is another one: what came behind {last} in the former is not known")
            }
            Some(oldest) if oldest.sequence > last.sequence.saturating_add(1) => {
                let (from, to) = (last.sequence.saturating_add(1), oldest.sequence.saturating_sub(1));
                format!("{count} events lost: sequence {from} to {to} are no longer kept")
            }
            Some(_) | None => format!("{count} events lost, which are no longer kept"),
        }
    }
}

/// The failure if events after that place are no longer kept.
pub(super) fn stale(place: &Place, lost: u64) -> Failure {
    let cursor = match place {
        Place::Behind(cursor) => format!("the cursor {cursor}, behind what was printed,"),
        Place::Start | Place::Oldest | Place::Unknown => String::from("--after: the cursor"),
    };
    anyhow!(
        "{cursor} is older than what is kept, or of another log: {lost} events are lost; without --after all that is kept is printed"
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_named() {
        let cursor = |text: &str| text.parse::<Cursor>().unwrap();
        let lost = |body: &str| Lost::of(body.as_bytes()).unwrap();
        let words = lost(r#"{"lost":41,"oldest":"E:84"}"#).words(&cursor("E:42"));
        assert_eq!(words, "41 events lost: sequence 43 to 83 are no longer kept");
        let words = lost(r#"{"lost":7,"oldest":"F:8"}"#).words(&cursor("E:42"));
        assert!(words.contains("another one") && words.contains("E:42"), "{words}");
        assert_eq!(lost(r#"{"lost":7}"#).words(&cursor("E:42")), "7 events lost, which are no longer kept");
        assert!(Lost::of(b"{}").is_none() && Lost::of(b"x").is_none());
    }
}
