//! The command line: one file per verb.

mod allocatable;
mod bugreport;
mod capacity;
mod cleanup;
mod client;
mod columns;
mod completions;
mod config;
mod describe;
mod doctor;
#[cfg(test)]
mod documented;
mod events;
mod evict;
mod exec;
mod exit;
mod files;
mod format;
mod freshness;
mod headroom;
mod help;
mod manifests;
mod markdown;
mod next;
mod orders;
mod page;
mod pause;
mod plan;
mod pods;
mod protect;
mod rank;
mod ranked;
mod reload;
mod render;
mod replay;
mod report;
mod reserve;
mod run;
mod select;
mod status;
mod times;
mod top;
mod version;
mod what_if;
mod why;

use std::{ffi::OsString, io::IsTerminal as _, process::ExitCode};

use clap::{FromArgMatches as _, Parser, Subcommand};

pub use self::exit::Failure;
use self::{files::Files, format::Output};
use crate::{config::Config, cri, evict as evicting, kube, network, serve, specs};

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

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the daemon
    Run(run::Args),
    /// Show the node on one screen: mode, thresholds, pods, what is lost
    Status(status::Args),
    /// List the pods, with what they use and when they would be evicted
    Pods(pods::Args),
    /// Show all that is known of a pod
    Describe(describe::Args),
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
    /// Report evictions, kills and pressure of the last days
    Report(report::Args),
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
    /// Give back what a stopped daemon has changed on this machine
    Cleanup(cleanup::Args),
    /// Write, check and print the configuration
    #[command(subcommand)]
    Config(config::Verb),
    /// Show the versions of this program and of the daemon
    Version(version::Args),
    /// Collect what a maintainer needs in one archive, without secrets
    Bugreport(bugreport::Args),
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
    /// How many columns a table may take; `None` is as many as it needs.
    columns: Option<usize>,
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
        Some(evicting::HOOK_VERB) => return evicting::hook_process(args.into_iter().skip(2)),
        Some(serve::SECURE_METRICS_VERB) => return serve::secure_metrics_main(),
        _ => {}
    }
    let parsed = help::command()
        .try_get_matches_from(args.iter().cloned())
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let error = help::with_fitting_suggestions(error, &args);
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
    if output == Some(Output::Html) && !matches!(verb, Verb::Report(_)) {
        return Err(format::no_html());
    }
    let output = output.filter(|_| !is_wide).unwrap_or(Output::Table);
    let with = |config: Config| Context {
        config,
        output,
        is_wide,
        columns: columns::of_terminal(is_wide),
        color: !no_color && std::io::stdout().is_terminal(),
        live,
        verbose,
    };
    // Of a configuration with mistakes, who only asks the daemon needs no more than the directories.
    let asking = |files: &Files| files.for_asking().map(with);
    let configured = |files: &Files| files.configured().map(|effective| with(effective.config));
    match verb {
        // It reads the configuration itself, as only it must be able to trust the file.
        Verb::Run(args) => run::run(&with(Config::default()), files, args),
        Verb::Status(args) => status::status(&asking(&files)?, &args),
        Verb::Pods(args) => pods::pods(&asking(&files)?, &args),
        Verb::Describe(args) => describe::describe(&asking(&files)?, &args),
        Verb::Events(args) => events::events(&asking(&files)?, &args),
        Verb::Why(args) => why::why(&asking(&files)?, &args),
        Verb::Next(args) => next::next(&asking(&files)?, &args),
        Verb::Headroom(args) => headroom::headroom(&asking(&files)?, &args),
        Verb::Allocatable(args) => allocatable::allocatable(&asking(&files)?, &args),
        Verb::Plan(args) => plan::plan(&configured(&files)?, &args),
        Verb::Rank(args) => rank::rank(&configured(&files)?, &args),
        Verb::Replay(args) => {
            // The recording is also run under the configuration that is named, so that must be right.
            let context = if files.config.is_some() { configured(&files)? } else { asking(&files)? };
            replay::replay(&context, files.config.as_deref(), &args)
        }
        Verb::Report(args) => report::report(&asking(&files)?, &args),
        Verb::Top(args) => top::top(&asking(&files)?, &args),
        Verb::WhatIf(args) => what_if::what_if(&asking(&files)?, &args),
        Verb::Protect(args) => protect::protect(&asking(&files)?, args),
        Verb::Pause(args) => pause::pause(&asking(&files)?, args),
        Verb::Evict(args) => evict::evict(&asking(&files)?, args),
        Verb::Reserve(args) => reserve::reserve(&asking(&files)?, args),
        Verb::Unreserve(args) => reserve::unreserve(&asking(&files)?, &args),
        Verb::Reload(args) => reload::reload(&asking(&files)?, &args),
        Verb::Doctor(args) => doctor::doctor(&configured(&files)?, &args),
        Verb::Cleanup(args) => cleanup::cleanup(&with(files.effective()?.config), &args),
        Verb::Config(verb) => config::config(&with(Config::default()), &files, verb),
        Verb::Version(args) => version::version(&asking(&files)?, &args),
        Verb::Bugreport(args) => bugreport::bugreport(&asking(&files)?, &args),
        Verb::Exec(args) => exec::exec(&asking(&files)?, &args),
        Verb::Completions(args) => completions::completions(&args),
        Verb::Man(args) => completions::man(&args),
    }
}
