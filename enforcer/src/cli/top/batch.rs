//! The same tree as plain text, for pipes, files and dumb terminals.
use std::{
    io::{self, Write as _},
    time::Instant,
};

use serde::Serialize;

use super::{
    Args, feed,
    header::header,
    model::{Input, State},
    picture::Picture,
    table,
    tally::Tally,
};
use crate::cli::{Context, Failure, format};

/// The width of a table, and of a wide one.
const WIDTH: u16 = 80;
const WIDE: u16 = 120;

/// How many tables to print.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Count {
    /// This many.
    Of(u32),
    /// Until the process is stopped.
    Endless,
}

/// The document for formats other than the table.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    time: String,
    #[serde(flatten)]
    picture: &'a Picture,
    tally: &'a Tally,
}

/// Prints the tables.
pub(super) async fn batch(
    context: &Context,
    args: &Args,
    is_wide: bool,
    count: Count,
    start: Instant,
) -> Result<(), Failure> {
    let run_dir = &context.config.run_dir;
    let width = context.columns.and_then(|columns| u16::try_from(columns).ok()).unwrap_or(WIDTH);
    let mut state = args.state((if is_wide { WIDE } else { width }, u16::MAX)).unfolded();
    let mut due = tokio::time::Instant::now();
    let mut printed = 0_u32;
    loop {
        state.take(Input::Tallied(feed::tally(run_dir).await?));
        state.take(Input::Looked(Box::new(feed::look(run_dir, &[], &args.pods, start).await?)));
        print(context, &state, printed > 0)?;
        printed = printed.saturating_add(1);
        if count == Count::Of(printed) {
            return Ok(());
        }
        due += args.interval;
        tokio::time::sleep_until(due).await;
    }
}

fn print(context: &Context, state: &State, is_next: bool) -> Result<(), Failure> {
    let Some(picture) = &state.picture else { return Ok(()) };
    let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    if is_next && context.output == format::Output::Table {
        io::stdout().write_all(b"\n").map_err(Failure::printing)?;
    }
    let document = Document { time: time.clone(), picture, tally: &state.tally };
    format::print(context.output, &document, || text(state, &time, context.columns.is_none()))
}

/// The header and the whole tree as text; with whole names, lines are as wide as they are.
fn text(state: &State, time: &str, has_whole_names: bool) -> String {
    let width = usize::from(state.size.0);
    let mut text = format!("{time}\n");
    for line in header(state) {
        let line: String = line.into_iter().map(|(piece, _)| piece).collect();
        let fits: String = line.chars().take(width).collect();
        text.push_str(&format!("{}\n", fits.trim_end()));
    }
    let has_specs = state.picture.as_ref().is_some_and(|picture| picture.specs.is_some());
    let (mut name_width, columns) = table::columns(width, has_specs);
    if has_whole_names && let Some(picture) = &state.picture {
        let names = state.rows.iter().filter_map(|row| row.item(picture));
        let longest = names.map(|item| table::name(&item, None, usize::MAX).trim_end().chars().count()).max();
        name_width = name_width.max(longest.unwrap_or(0));
    }
    let titles = columns.iter().map(|column| (column.title().to_owned(), column.width()));
    text.push_str(&format!("{}\n", table::line("NAME", name_width, titles).trim_end()));
    let Some(picture) = &state.picture else { return text };
    for item in state.rows.iter().filter_map(|row| row.item(picture)) {
        let name = table::name(&item, None, name_width);
        let cells = columns.iter().map(|column| (column.cell(&item).0, column.width()));
        text.push_str(&format!("{}\n", table::line(&name, name_width, cells).trim_end()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::model::sample;

    #[test]
    fn a_table_fits_eighty_columns() {
        let mut state = State::new((WIDTH, u16::MAX)).unfolded();
        state.take(Input::Looked(Box::new(sample::look(0))));
        let text = text(&state, "2026-01-31T12:00:00Z", false);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_wide_table_has_every_column() {
        let mut state = State::new((WIDE, u16::MAX)).unfolded();
        state.take(Input::Looked(Box::new(sample::look(0))));
        insta::assert_snapshot!(text(&state, "2026-01-31T12:00:00Z", false));
    }
}
