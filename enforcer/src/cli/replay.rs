//! `enforcer replay`: what was recorded of a decision, run again, and what another configuration would have done.

mod document;
mod file;
mod table;

use std::path::Path;

use anyhow::anyhow;

use self::{document::Document, table::table};
use super::{Context, Failure, format};
use crate::{
    daemon,
    policy::flight::{self, Recording},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The engine that decides is run again over what it was given, and must decide
the same, bit for bit; if it does not, the first difference is shown.

With --config the recording is also run under that configuration: whom it
would have evicted, when and why, or nobody. Once the two part, what comes
after is a model, and marked so.

Exit status 1: a difference, or a recording that is damaged.")]
pub(super) struct Args {
    /// A recording's file, the id of an eviction or of one of its events,
    /// latest for the newest decision, or now for what the daemon holds
    #[arg(value_name = "FILE|EVENT-ID|latest|now")]
    what: String,
    /// Write the recording into this file too
    #[arg(long, value_name = "FILE")]
    save: Option<std::path::PathBuf>,
}

/// `other` is the configuration that was asked for by name.
pub(super) fn replay(context: &Context, other: Option<&Path>, args: &Args) -> Result<(), Failure> {
    let Args { what, save } = args;
    let (source, bytes) = file::find(context, what)?;
    if let Some(path) = save {
        file::save(path, &bytes)?;
    }
    let recording =
        Recording::read(&bytes).map_err(|error| anyhow::Error::new(error).context(source.clone()))?;
    let account = flight::replay(&recording);
    let settings = other.map(|path| (path, daemon::engine_settings(&context.config)));
    let under = settings.map(|(path, settings)| (path, settings, flight::under(&recording, &settings)));
    let document = Document::new(&source, &recording, &account, under.as_ref());
    format::print(context.output, &document, || table(&document))?;
    verdict(&document)
}

fn verdict(document: &Document) -> Result<(), Failure> {
    let wrong = |message: String| Err(Failure::from(anyhow!(message)));
    let replay = &document.replay;
    if let Some(difference) = &replay.first_difference {
        return wrong(format!(
            "the engine does not decide as recorded: byte {}: recorded {}; replayed {}",
            difference.at_byte, difference.recorded, difference.replayed
        ));
    }
    if let Some(damage) = document.recording.damage.first() {
        let more = match document.recording.damage.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        return wrong(format!(
            "the recording is damaged: byte {}: {}{more}; what can be read was used",
            damage.at_byte, damage.what
        ));
    }
    if replay.steps_equal == 0 {
        return wrong(String::from("the recording holds nothing that can be run again"));
    }
    Ok(())
}
