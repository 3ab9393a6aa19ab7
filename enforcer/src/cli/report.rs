//! `enforcer report`: what happened in a range of time, folded from the event journal.

mod alternatives;
mod document;
mod fold;
mod page;
mod read;
mod recorded;
mod sections;
mod table;
mod words;

use anyhow::anyhow;

use self::fold::Range;
use super::{Context, Failure, format, format::Output};
use crate::journal::moment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It says who was evicted and why, also what a dry run would have done; which
processes the kernel's OOM killer killed, and by whose limit; how long
thresholds were crossed; who waited for memory; which warnings came true; and
first, what it cannot know. When the daemon is down, it reads the state
directory.

-o html prints a page that stands alone: it loads nothing from anywhere.")]
pub(super) struct Args {
    /// Report from this time on: 5m, 2h or 7d ago, or 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", default_value = "7d")]
    since: String,
    /// Report up to this time; by default until now
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

pub(super) fn report(context: &Context, args: &Args) -> Result<(), Failure> {
    let range = range(args, jiff::Timestamp::now())?;
    let mut report = read::read(context, range)?;
    let recorded = recorded::read(&context.config.state_dir, &report);
    alternatives::add(&mut report.evictions.items, &recorded);
    match context.output {
        Output::Html => format::print_text(&page::page(&report, &recorded)),
        output => format::print(output, &report, || table::table(&report, context.columns)),
    }
}

/// The asked range, as seen at `now`.
fn range(args: &Args, now: jiff::Timestamp) -> Result<Range, Failure> {
    let time = |name: &str, text: &str| {
        moment(text, now).map_err(|error| Failure::usage(anyhow!("--{name}: {error}")))
    };
    let from = time("since", &args.since)?;
    let to = args.until.as_deref().map_or(Ok(now), |until| time("until", until))?;
    if from >= to {
        return Err(Failure::usage(anyhow!(
            "--since is not before --until: the range from {from} to {to} is empty"
        )));
    }
    Ok(Range { from_ms: from.as_millisecond(), to_ms: to.as_millisecond() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_before_it_ends() {
        let now: jiff::Timestamp = "2026-01-31T12:00:00Z".parse().unwrap();
        let asked = |since: &str, until: Option<&str>| {
            range(&Args { since: since.to_owned(), until: until.map(str::to_owned) }, now)
        };
        let hour_ms = 3_600_000;
        let now_ms = now.as_millisecond();
        let one = Range { from_ms: now_ms - 2 * hour_ms, to_ms: now_ms - hour_ms };
        assert_eq!(asked("2h", Some("1h")).unwrap(), one);
        assert_eq!(asked("2h", None).unwrap().to_ms, now_ms);
        for (since, until, said) in [
            ("1h", Some("2h"), "--since is not before --until"),
            ("2w", None, "--since: \"2w\" is not a time"),
            ("7d", Some("soon"), "--until: \"soon\" is not a time"),
        ] {
            let failure = asked(since, until).unwrap_err();
            assert!(failure.status() == 64 && failure.to_string().contains(said), "{failure}");
        }
    }
}
