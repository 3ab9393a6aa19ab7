//! `enforcer top`: the pods' memory, live, in the order in which they would be evicted.
//!
//! `model` is a pure state machine, and `draw` draws it on any screen. `live` is the thin loop around them, and `batch`
//! prints the same tree as plain text. Names are untrusted: all text passes `render::escape` before it is shown.

mod batch;
mod draw;
mod feed;
mod header;
mod live;
mod model;
mod picture;
mod rows;
mod screen;
mod table;
mod tally;
mod why;

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
    time::{Duration, Instant},
};

pub(super) use self::{
    feed::{events, tally_query},
    tally::Tally,
};
use self::{model::State, rows::Sort};
use super::{
    Context, Failure, client,
    format::{self, Output},
    page, select,
};
use crate::policy::duration;

/// The range of the interval between two polls.
const INTERVAL: std::ops::RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_hours(1);

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The interval between two updates: 500ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print plain tables, one after the other, instead of the live view
    #[arg(short, long)]
    batch: bool,
    /// Print this many plain tables and exit; without a terminal, one
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print plain tables with all columns, as -o wide does
    #[arg(long)]
    wide: bool,
    #[command(flatten)]
    pods: select::Args,
    /// Sort by this, within each class; s changes it in the live view
    #[arg(long, value_enum, value_name = "KEY", default_value = "rank")]
    sort: Sort,
    /// Show only pods and containers with this in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Show a row for each container from the start
    #[arg(long)]
    containers: bool,
}

impl Args {
    /// The view's state at its start.
    fn state(&self, size: (u16, u16)) -> State {
        let state = State::new(size).arranged_by(self.sort, &self.filter);
        if self.containers { state.unfolded() } else { state }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    if INTERVAL.contains(&time) { Ok(time) } else { Err(String::from("write 500ms to 1h")) }
}

/// How many plain tables to print; `None` is the live view.
fn tables(args: &Args, output: Output, is_wide: bool, is_terminal: bool) -> Option<batch::Count> {
    match (args.count, args.batch) {
        (Some(count), _) => Some(batch::Count::Of(count)),
        (None, true) => Some(batch::Count::Endless),
        (None, false) if output != Output::Table || is_wide || !is_terminal => Some(batch::Count::Of(1)),
        (None, false) => None,
    }
}

/// Whether there is a terminal to draw on.
fn is_terminal() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb
}

/// The context for panels: with `live`, as anything printed to stderr would disturb the screen.
fn live_context(context: &Context) -> Arc<Context> {
    let Context { config, output, is_wide, columns: _, color: _, live: _, verbose } = context;
    let (config, output, is_wide, verbose) = (config.clone(), *output, *is_wide, *verbose);
    let columns = Some(page::WIDTH);
    Arc::new(Context { config, output, is_wide, columns, color: false, live: true, verbose })
}

pub(super) fn top(context: &Context, args: &Args) -> Result<(), Failure> {
    let run_dir = &context.config.run_dir;
    let start = Instant::now();
    let is_wide = args.wide || context.is_wide;
    match tables(args, context.output, is_wide, is_terminal()) {
        Some(count) => {
            if count != batch::Count::Of(1) {
                format::no_document(context.output, "more than one table")?;
            }
            client::block_on(batch::batch(context, args, is_wide, count, start))
        }
        None => client::block_on(async {
            // Report a daemon that does not answer before taking the terminal.
            let first = feed::look(run_dir, &[], &args.pods, start).await?;
            let theme = draw::Theme { color: context.color };
            live::live(&live_context(context), args, theme, first, start).await
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_gets_the_live_view() {
        let args = |count, batch| Args {
            interval: Duration::from_secs(2),
            batch,
            count,
            wide: false,
            pods: select::Args::default(),
            sort: Sort::default(),
            filter: String::new(),
            containers: false,
        };
        let one = Some(batch::Count::Of(1));
        assert_eq!(tables(&args(None, false), Output::Table, false, true), None);
        assert_eq!(tables(&args(None, false), Output::Table, false, false), one);
        assert_eq!(tables(&args(None, false), Output::Json, false, true), one);
        assert_eq!(tables(&args(None, false), Output::Table, true, true), one);
        assert_eq!(tables(&args(None, true), Output::Table, false, true), Some(batch::Count::Endless));
        assert_eq!(tables(&args(Some(3), true), Output::Table, false, true), Some(batch::Count::Of(3)));
    }

    #[test]
    fn an_interval_is_bounded() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["", "2", "499ms", "0s", "-2s", "2h"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
