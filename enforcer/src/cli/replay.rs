//! `enforcer replay`: runs a recorded decision again, and shows what another configuration would have done.

mod document;
mod file;
mod table;

use std::path::Path;

use anyhow::anyhow;

pub(super) use self::file::read as read_recording;
use self::{document::Document, table::table};
use super::{Context, Failure, format};
use crate::{
    daemon,
    policy::flight::{self, Recording},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The eviction engine is run again over the recorded input, and must decide the
same, bit for bit; if it does not, the first difference is shown.

With --config the recording is also run under that configuration, to show which
pods it would have evicted, when and why. Once the two runs diverge, everything
after that is a model, and marked so.

Exit status 1: a difference, or a recording that is damaged.")]
pub(super) struct Args {
    /// A recording's file, the id of an eviction or of one of its events,
    /// latest for the newest decision, or now for the daemon's present recording
    #[arg(value_name = "FILE|EVENT-ID|latest|now")]
    what: String,
    /// Write the recording into this file too
    #[arg(long, value_name = "FILE")]
    save: Option<std::path::PathBuf>,
}

/// `other` is the configuration that `--config` names.
pub(super) fn replay(context: &Context, other: Option<&Path>, args: &Args) -> Result<(), Failure> {
    let Args { what, save } = args;
    let (source, bytes) = file::find(context, what)?;
    if let Some(path) = save {
        file::save(path, &bytes)?;
    }
    let recording =
        Recording::read(&bytes).map_err(|error| anyhow::Error::new(error).context(source.clone()))?;
    let account = flight::replay(&recording);
    let settings = match other {
        Some(path) => Some((path, daemon::engine_settings(&daemon::settled(&context.config)?))),
        None => None,
    };
    let under = settings.map(|(path, settings)| (path, settings, flight::under(&recording, &settings)));
    let document = Document::new(&source, &recording, &account, under.as_ref());
    format::print(context.output, &document, || table(&document, context.columns))?;
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
        return wrong(String::from("the recording contains no step that can be run again"));
    }
    Ok(())
}
