use std::io::{self, Write as _};

use anyhow::{Context as _, anyhow};

use super::{Context, Failure, client, format, format::Output, render};
use crate::journal::{self, Cursor, EventType, Filter, Offline};

/// The longest event line that is read.
pub(super) const MAX_LINE_BYTES: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Go on and print what comes
    #[arg(short, long)]
    follow: bool,
    /// Print what came after this cursor
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Print what is no older: 90s, 30m, 2h, 1d
    #[arg(long, value_name = "AGE")]
    since: Option<String>,
    /// Print only this type, with or without its prefix; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    kinds: Vec<String>,
    /// Print only what is about pods of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Print only what is about this pod: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
}

impl Args {
    fn query(&self) -> Result<String, Failure> {
        let Self { follow, after, since, kinds, namespace, pod } = self;
        let mut query = format!("follow={follow}");
        let mut add = |name: &str, value: &str| {
            query.push_str(&format!("&{name}={}", client::encode(value)));
        };
        for kind in kinds {
            add("type", kind);
        }
        for (name, value) in [("after", after), ("namespace", namespace), ("pod", pod)] {
            if let Some(value) = value {
                add(name, value);
            }
        }
        if let Some(age) = since {
            add("since", &since_time(age)?.to_string());
        }
        Ok(query)
    }

    /// The same as [`Self::query`], for a log that is read here.
    fn filter(&self) -> Result<Filter, Failure> {
        let kind = |name: &String| {
            EventType::named(name).map_err(|error| Failure::usage(anyhow!("--type: {error}")))
        };
        let since = self.since.as_deref().map(since_time).transpose()?;
        Ok(Filter {
            kinds: self.kinds.iter().map(kind).collect::<Result<_, _>>()?,
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            since_ms: since.map(jiff::Timestamp::as_millisecond),
        })
    }
}

fn since_time(age: &str) -> Result<jiff::Timestamp, Failure> {
    let seconds = age_seconds(age).ok_or_else(|| {
        Failure::usage(anyhow!("--since {age:?} is not an age: write a number and s, m, h or d, such as 2h"))
    })?;
    jiff::Timestamp::now()
        .checked_sub(jiff::SignedDuration::from_secs(seconds))
        .with_context(|| format!("--since {age} is before the beginning of time"))
        .map_err(Failure::usage)
}

fn age_seconds(age: &str) -> Option<i64> {
    let unit = age.chars().next_back()?;
    let factor = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let count: i64 = age.strip_suffix(unit)?.parse().ok()?;
    if count < 0 { None } else { count.checked_mul(factor) }
}

pub(super) fn events(context: &Context, args: &Args) -> Result<(), Failure> {
    let query = args.query()?;
    match client::block_on(from_daemon(context, &query)) {
        Err(failure) if failure.is_unreachable() && !context.live && !args.follow => {
            from_disk(context, args, failure)
        }
        result => result,
    }
}

async fn from_daemon(context: &Context, query: &str) -> Result<(), Failure> {
    let mut answer = client::get(&context.config.run_dir, &format!("/v1/events?{query}")).await?;
    if !answer.status.is_success() {
        let status = answer.status;
        return Err(client::refusal(status, &answer.bytes().await?));
    }
    let mut pending = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        pending.extend_from_slice(&chunk);
        let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = pending.drain(..whole).collect();
        print(context, &lines).context("cannot print")?;
        if pending.len() > MAX_LINE_BYTES {
            return Err(anyhow!(
                "the daemon sent a line of more than {MAX_LINE_BYTES} bytes: is it of another version?"
            )
            .into());
        }
    }
    Ok(())
}

/// What the state directory holds; where it holds nothing, the daemon's silence is the answer.
fn from_disk(context: &Context, args: &Args, unreachable: Failure) -> Result<(), Failure> {
    let state_dir = &context.config.state_dir;
    if !journal::folder(state_dir).is_dir() {
        return Err(unreachable);
    }
    let after = args.after.as_deref().map(str::parse::<Cursor>).transpose();
    let after = after.map_err(|error| Failure::usage(anyhow::Error::new(error).context("--after")))?;
    let opened = Offline::open(state_dir, after.as_ref(), args.filter()?).map_err(anyhow::Error::new)?;
    let events = opened.map_err(|stale| {
        anyhow!(
            "--after: the cursor is older than what is kept, or of another log: {} events are lost; without --after all that is kept is printed",
            stale.lost
        )
    })?;
    drop(writeln!(io::stderr(), "the daemon is down: this is what {} holds", state_dir.display()));
    for record in events {
        print(context, &record.line).context("cannot print")?;
    }
    Ok(())
}

fn print(context: &Context, lines: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    // An empty line is a heartbeat.
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match context.output {
            // An event is one document, and a stream of them is never one.
            Output::Json | Output::Jsonl => {
                out.write_all(line)?;
                out.write_all(b"\n")?;
            }
            Output::Yaml => {
                let event: serde_json::Value = serde_json::from_slice(line)?;
                let text = format::yaml(&event).map_err(io::Error::other)?;
                write!(out, "---\n{text}")?;
            }
            Output::Table => writeln!(out, "{}", render::event(line, context.color))?,
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::age_seconds;

    #[test]
    fn an_age_has_a_unit() {
        assert_eq!(age_seconds("2h"), Some(7_200));
        assert_eq!(age_seconds("90s"), Some(90));
        for wrong in ["", "h", "2", "-2h", "2w", "9223372036854775807d", "2ü"] {
            assert_eq!(age_seconds(wrong), None, "{wrong}");
        }
    }
}
