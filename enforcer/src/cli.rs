//! The command line: one file per verb.

mod allocatable;
mod capacity;
mod client;
mod completions;
mod config;
mod doctor;
mod events;
mod evict;
mod exec;
mod exit;
mod format;
mod freshness;
mod headroom;
mod next;
mod orders;
mod page;
mod pause;
mod plan;
mod protect;
mod rank;
mod ranked;
mod reload;
mod render;
mod replay;
mod reserve;
mod run;
mod top;
mod what_if;
mod why;

use std::{ffi::OsString, io::IsTerminal as _, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

pub use self::exit::Failure;
use self::format::Output;
use crate::{
    config::{Config, Effective},
    cri, kube, network, serve, specs,
};

/// Quality of service for the pods of one Linux node.
#[derive(Debug, Parser)]
#[command(name = "enforcer", version, about, max_term_width = 80)]
struct Cli {
    #[command(flatten)]
    files: Files,
    /// How to print
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    output: Option<Output>,
    /// Print without colour; so does a non-empty `NO_COLOR`
    #[arg(long, global = true)]
    no_color: bool,
    /// Ask the running daemon or fail: never read the state directory instead
    #[arg(long, global = true)]
    live: bool,
    /// Log more; given twice, log everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    verb: Verb,
}

/// The files that the configuration comes from.
#[derive(Debug, clap::Args)]
struct Files {
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A kubelet's configuration file, which our own overrides
    #[arg(long, global = true, value_name = "FILE")]
    kubelet_config: Option<PathBuf>,
}

impl Files {
    fn load(&self) -> Result<Effective, Failure> {
        Effective::load(self.config.as_deref(), self.kubelet_config.as_deref())
            .map_err(|error| Failure::usage(error.into()))
    }
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon
    Run(run::Args),
    /// Print the event stream
    Events(events::Args),
    /// Explain why a pod was evicted or killed, on one screen
    Why(why::Args),
    /// Show which pods would be evicted next, key by key
    Next(next::Args),
    /// Show the bytes and seconds left to each threshold
    Headroom(headroom::Args),
    /// Show what may be requested of the node, and what is
    Allocatable(allocatable::Args),
    /// Compute everything for these pods, and change nothing
    Plan(plan::Args),
    /// Print the order in which these pods would be evicted
    Rank(rank::Args),
    /// Replay a recorded decision, under the same or another policy
    Replay(replay::Args),
    /// Show the pods' memory live, in eviction order
    Top(top::Args),
    /// Show which pods would be evicted now under other conditions
    WhatIf(what_if::Args),
    /// Protect a pod from eviction for a while
    Protect(protect::Args),
    /// Pause eviction for a while
    Pause(pause::Args),
    /// Evict a pod now
    Evict(evict::Args),
    /// Reserve resources of the node for others than pods
    Reserve(reserve::Args),
    /// End a reservation before its time
    Unreserve(reserve::Release),
    /// Reload the configuration and the manifests
    Reload(reload::Args),
    /// Show what this host offers and what is lost; exit status 1 if anything is
    Doctor(doctor::Args),
    /// Check and print the configuration
    #[command(subcommand)]
    Config(config::Verb),
    /// Run a command in a container's cgroup, in place of this process
    Exec(exec::Args),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Print the manual page, or write the pages of all verbs
    Man(completions::Man),
}

/// The arguments of every verb.
#[derive(Debug)]
struct Context {
    config: Config,
    output: Output,
    /// Whether a table may be as wide as it needs.
    is_wide: bool,
    color: bool,
    live: bool,
    verbose: u8,
}

/// Parses the arguments, runs the verb, and prints its error.
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // Only the daemon starts these: they are no verbs.
    match args.get(1).and_then(|verb| verb.to_str()) {
        Some(network::VERB) => return network::main(),
        Some(cri::VERB) => return cri::main(),
        Some(specs::VERB) => return specs::main(),
        Some(kube::VERB) => return kube::main(),
        Some(serve::SECURE_METRICS_VERB) => return serve::secure_metrics_main(),
        _ => {}
    }
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let failed = error.use_stderr();
            // If this fails, there is nowhere to report it.
            drop(error.print());
            return if failed { exit::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let Cli { files, output, no_color, live, verbose, verb } = cli;
    let no_color = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_wide = output == Some(Output::Wide);
    let output = output.filter(|_| !is_wide).unwrap_or(Output::Table);
    let context = |files: &Files| {
        let config = files.load()?.config;
        Ok::<_, Failure>(Context {
            config,
            output,
            is_wide,
            color: !no_color && std::io::stdout().is_terminal(),
            live,
            verbose,
        })
    };
    match verb {
        Verb::Run(args) => run::run(&context(&files)?, files, args),
        Verb::Events(args) => events::events(&context(&files)?, &args),
        Verb::Why(args) => why::why(&context(&files)?, &args),
        Verb::Next(args) => next::next(&context(&files)?, &args),
        Verb::Headroom(args) => headroom::headroom(&context(&files)?, &args),
        Verb::Allocatable(args) => allocatable::allocatable(&context(&files)?, &args),
        Verb::Plan(args) => plan::plan(&context(&files)?, &args),
        Verb::Rank(args) => rank::rank(&context(&files)?, &args),
        Verb::Replay(args) => replay::replay(&context(&files)?, files.config.as_deref(), &args),
        Verb::Top(args) => top::top(&context(&files)?, &args),
        Verb::WhatIf(args) => what_if::what_if(&context(&files)?, &args),
        Verb::Protect(args) => protect::protect(&context(&files)?, args),
        Verb::Pause(args) => pause::pause(&context(&files)?, args),
        Verb::Evict(args) => evict::evict(&context(&files)?, args),
        Verb::Reserve(args) => reserve::reserve(&context(&files)?, args),
        Verb::Unreserve(args) => reserve::unreserve(&context(&files)?, &args),
        Verb::Reload(args) => reload::reload(&context(&files)?, &args),
        Verb::Doctor(args) => doctor::doctor(&context(&files)?, &args),
        Verb::Config(verb) => config::config(&files, output, verb),
        Verb::Exec(args) => exec::exec(&context(&files)?, &args),
        Verb::Completions(args) => completions::completions(&args),
        Verb::Man(args) => completions::man(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}
