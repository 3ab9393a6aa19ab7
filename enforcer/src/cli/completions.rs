//! `enforcer completions` and `enforcer man`: shell completions and manual pages.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Command, builder::Resettable};
use clap_complete::Shell;
use clap_mangen::{
    Man as Page,
    roff::{Inline, Roff, bold, roman},
};

use super::{
    Failure, exit,
    help::{self, ENVIRONMENT, FILES, Verb},
};

#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// Write the pages of all verbs into this directory, creating it if needed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut help::command(), "enforcer", &mut text);
    print(&text)
}

pub(super) fn man(args: &Man) -> Result<(), Failure> {
    let mut command = help::command();
    command.build();
    match &args.dir {
        None => print(&page(&command)?),
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            Ok(write(dir, &command)?)
        }
    }
}

/// Prints a text as it is.
pub(super) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(Failure::printing)
}

/// The page of a command: what its help says, in the sections of a manual page.
fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    written(command, &mut text).context("cannot write the page")?;
    let text = String::from_utf8(text).context("cannot write the page")?;
    // Each section comes with what a whole page begins with.
    let preamble = Roff::new().render();
    Ok((preamble.clone() + &text.replace(&preamble, "")).into_bytes())
}

fn written(command: &Command, text: &mut Vec<u8>) -> io::Result<()> {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let path = name.strip_prefix("enforcer ").unwrap_or_default();
    let verb = Verb::of(path);
    let notes = command.get_after_help().map(ToString::to_string);
    let page = Page::new(command.clone().after_long_help(Resettable::Reset)).manual("enforcer");
    page.render_title(text)?;
    page.render_name_section(text)?;
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    if let Some(notes) = notes {
        let mut roff = Roff::new();
        roff.control("PP", []);
        roff.text([roman(notes)]);
        roff.to_writer(text)?;
    }
    page.render_options_section(text)?;
    if command.get_subcommands().any(|below| below.get_name() != "help") {
        page.render_subcommands_section(text)?;
    }
    let statuses = verb.map_or_else(|| exit::statuses(""), Verb::statuses);
    let statuses: Vec<_> = statuses.iter().map(|(status, meaning)| (status.to_string(), *meaning)).collect();
    section(text, "EXIT STATUS", statuses.iter().map(|(status, meaning)| (status.as_str(), *meaning)))?;
    section(text, "FILES", FILES.iter().copied())?;
    section(text, "ENVIRONMENT", ENVIRONMENT.iter().copied())?;
    let examples = verb.map_or(help::EXAMPLES, |verb| verb.examples);
    if !examples.is_empty() {
        section(text, "EXAMPLES", examples.iter().copied())?;
    }
    see_also(command, path, text)?;
    if command.get_version().is_some() {
        page.render_version_section(text)?;
    }
    Ok(())
}

/// A section of terms and what they mean.
fn section<'a>(
    text: &mut Vec<u8>,
    heading: &str,
    terms: impl Iterator<Item = (&'a str, &'a str)>,
) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (term, meaning) in terms {
        roff.control("TP", []);
        roff.text([bold(term)]);
        roff.text([roman(meaning)]);
    }
    roff.to_writer(text)
}

/// The page above, and those below.
fn see_also(command: &Command, path: &str, text: &mut Vec<u8>) -> io::Result<()> {
    let above = match path.rsplit_once(' ') {
        Some((above, _)) => format!("enforcer-{}", above.replace(' ', "-")),
        None => String::from("enforcer"),
    };
    let above = (!path.is_empty()).then_some(above);
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    let below = below.map(|below| below.get_display_name().unwrap_or(below.get_name()).replace(' ', "-"));
    let mut line: Vec<Inline> = Vec::new();
    for name in above.into_iter().chain(below) {
        if !line.is_empty() {
            line.push(roman(", "));
        }
        line.extend([bold(name), roman("(1)")]);
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    roff.text(line);
    roff.to_writer(text)
}

/// Writes the page of this command and those of its subcommands.
fn write(dir: &Path, command: &Command) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).replace(' ', "-");
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.into_iter().try_for_each(|below| write(dir, below))
}
