//! The manifests that `plan` and `rank` are given.

use std::io::{self, Write as _};

use anyhow::anyhow;

use super::{Context, Failure, render};
use crate::source::{self, Gathered, Given, Selection, Wrong};

// How they are read. No documentation: clap would take it for that of the verb.
#[derive(Clone, Debug, clap::Args)]
// A verb's own arguments are a group of the same name.
#[group(skip)]
pub(super) struct Args {
    /// Of pods that name a node, take those of this one: for the list of a whole
    /// cluster
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,
    /// Read folders in folders
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// Refuse manifests with fields that Kubernetes does not have, or anything else
    /// wrong: exit status 65
    #[arg(long)]
    strict: bool,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's parsers may fail")]
pub(super) fn given(text: &str) -> Result<Given, String> {
    Ok(if text == "-" { Given::Stdin } else { Given::Path(text.into()) })
}

/// Reads objects of all kinds, and says what is odd and what is left out.
pub(super) fn read(context: &Context, given: &[Given], args: &Args) -> Result<Gathered, Failure> {
    if given.iter().filter(|given| **given == Given::Stdin).count() > 1 {
        return Err(Failure::usage(anyhow!("standard input can be read once: name -f - once")));
    }
    let selection = Selection { node: args.node.clone(), recursive: args.recursive };
    let gathered = source::gather_objects(given, &selection);
    for note in &gathered.notes {
        say(note);
    }
    judged(context, gathered, args)
}

/// Says what is odd, and with `--strict` refuses what is.
pub(super) fn judged(context: &Context, gathered: Gathered, args: &Args) -> Result<Gathered, Failure> {
    let Gathered { errors, warnings, .. } = &gathered;
    let is_refused = args.strict && !(errors.is_empty() && warnings.is_empty());
    if is_refused || context.output.is_table() {
        for Wrong { source: _, message } in warnings {
            say(&format!("warning: {message}"));
        }
    }
    if !is_refused {
        return Ok(gathered);
    }
    for Wrong { source: _, message } in errors {
        say(message);
    }
    let count = errors.len() + warnings.len();
    let things = if count == 1 { "thing is" } else { "things are" };
    Err(Failure::bad_data(anyhow!("{count} {things} wrong with the manifests, and --strict takes none")))
}

/// Writes a line to stderr.
pub(super) fn say(line: &str) {
    // If this fails, there is nowhere to report it.
    drop(writeln!(io::stderr(), "{}", render::escape(line)));
}
