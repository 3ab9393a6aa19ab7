//! `enforcer completions` and `enforcer man`: shell completions and manual pages.

use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Failure};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
  bash        enforcer completions bash > /etc/bash_completion.d/enforcer
  zsh         enforcer completions zsh > /usr/share/zsh/site-functions/_enforcer
  fish        enforcer completions fish > /etc/fish/completions/enforcer.fish")]
pub(super) struct Completions {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
  enforcer man | man -l -
  enforcer man --dir /usr/local/share/man/man1")]
pub(super) struct Man {
    /// Write the pages of all verbs into this directory, creating it if needed
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "enforcer", &mut text);
    print(&text)
}

pub(super) fn man(args: &Man) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    match &args.dir {
        None => print(&page(&command)?),
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
            Ok(write(dir, &command)?)
        }
    }
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(Failure::printing)
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text).context("cannot write the page")?;
    Ok(text)
}

/// Writes the page of this command and those of its subcommands.
fn write(dir: &Path, command: &Command) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name()).replace(' ', "-");
    let path = dir.join(format!("{name}.1"));
    fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    let below = command.get_subcommands().filter(|below| below.get_name() != "help");
    below.into_iter().try_for_each(|below| write(dir, below))
}
