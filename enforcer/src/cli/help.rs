//! The whole command line, with what its help says beside the options: examples, exit statuses, and the options for all
//! verbs only where they apply.

mod verbs;

use clap::{
    Arg, Command, CommandFactory as _,
    builder::{PossibleValuesParser, TypedValueParser},
    error::{ContextKind, ContextValue},
};

use self::verbs::VERBS;
use super::{Cli, exit, page::wrap};
use crate::{journal::EventType, nearest::nearest};

/// How wide help is, in columns.
const WIDTH: usize = 80;

/// How many first letters in common make a longer word the one that was meant.
const BEGINNING: usize = 4;

/// The files that a verb may read, and what they are.
pub(super) const FILES: &[(&str, &str)] = &[
    ("/etc/enforcer/config.yaml", "the configuration; --config names another"),
    ("/etc/enforcer/pods", "the manifests (staticPodPath)"),
    ("/run/enforcer", "the daemon's sockets observe.sock and admin.sock (runDir)"),
    ("/var/lib/enforcer", "events and recordings (stateDir)"),
];

/// The variables that a verb may read, and what they do.
pub(super) const ENVIRONMENT: &[(&str, &str)] = &[
    ("ENFORCER_SOCKET", "the daemon's socket or its folder, as --socket"),
    ("NO_COLOR", "if it is not empty, nothing is coloured"),
    ("RUST_LOG", "for run: what is logged, instead of -v"),
];

/// Command lines for who does not know a verb yet.
pub(super) const EXAMPLES: &[(&str, &str)] = &[
    ("enforcer doctor", "what this host offers, and what is lost"),
    ("enforcer next", "which pods would be evicted next"),
    ("enforcer why latest", "why a pod was evicted or killed"),
];

/// A verb's help.
#[derive(Debug)]
pub(super) struct Verb {
    /// Its name; of one below another, behind that one's.
    pub(super) path: &'static str,
    /// The options for all verbs that it follows.
    pub(super) globals: &'static [&'static str],
    /// Command lines, and what each is for.
    pub(super) examples: &'static [(&'static str, &'static str)],
}

impl Verb {
    /// The verb of that path.
    pub(super) fn of(path: &str) -> Option<&'static Self> {
        VERBS.iter().find(|verb| verb.path == path)
    }

    /// The exit statuses that it can end with.
    pub(super) fn statuses(&self) -> Vec<(u8, &'static str)> {
        exit::statuses(self.path)
    }

    fn describe(&self, command: Command, globals: &[Arg]) -> Command {
        let notes = command.get_after_help().map(ToString::to_string);
        let mut parts: Vec<String> = notes.into_iter().collect();
        if !self.examples.is_empty() {
            parts.push(shown(self.examples));
        }
        parts.push(format!("Exit status:\n{}", listed(&self.statuses())));
        let described = command.after_long_help(parts.join("\n\n"));
        globals.iter().fold(described, |command, global| {
            let applies = self.globals.contains(&global.get_id().as_str());
            // It is still accepted: scripts may give it to every verb.
            command.arg(global.clone().hide(!applies))
        })
    }
}

fn shown(examples: &[(&str, &str)]) -> String {
    let examples = examples.iter().map(|(line, what)| format!("\n  {line}\n      {what}"));
    format!("Examples:{}", examples.collect::<String>())
}

/// Statuses and their meanings, one below the other.
fn listed(statuses: &[(u8, &str)]) -> String {
    let lines = statuses.iter().flat_map(|(status, meaning)| {
        wrap(meaning, WIDTH - 6).into_iter().enumerate().map(move |(number, line)| {
            let status = if number == 0 { status.to_string() } else { String::new() };
            format!("  {status:<3} {line}")
        })
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The command line.
pub(super) fn command() -> Command {
    let command = Cli::command();
    let globals: Vec<_> = command.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    let command = VERBS
        .iter()
        .fold(command, |command, verb| at(command, verb.path, &|command| verb.describe(command, &globals)));
    let statuses = listed(&exit::statuses(""));
    let examples = shown(EXAMPLES);
    let command = command.after_long_help(format!("{examples}\n\nExit status:\n{statuses}"));
    let types = EventType::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
    command.mut_subcommand("events", |events| {
        events.mut_arg("kinds", |kinds| {
            kinds.long_help(format!(
                "Print only this type, with or without its prefix; may be repeated. One of {types}"
            ))
        })
    })
}

/// Changes the command of that path.
fn at(command: Command, path: &str, change: &dyn Fn(Command) -> Command) -> Command {
    match path.split_once(' ') {
        Some((name, below)) => command.mut_subcommand(name, |verb| at(verb, below, change)),
        None => command.mut_subcommand(path, change),
    }
}

/// A parser of one of these words, which help and completions list.
pub(super) fn one_of<T: Clone + Send + Sync + 'static>(
    words: impl IntoIterator<Item = &'static str>,
    parse: fn(&str) -> Result<T, String>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(words).try_map(move |word| parse(&word))
}

/// The same error with no other suggestion than what may have been meant: the parser's measure takes words for similar that
/// only share letters, and offers options that do not apply to the verb.
pub(super) fn with_fitting_suggestions(mut error: clap::Error, args: &[std::ffi::OsString]) -> clap::Error {
    let written = |error: &clap::Error, kind| match error.get(kind) {
        Some(ContextValue::String(written)) => Some(written.clone()),
        _ => None,
    };
    if let Some(written) = written(&error, ContextKind::InvalidSubcommand)
        && let Some(offered) = error.remove(ContextKind::SuggestedSubcommand)
    {
        let mut offered = match offered {
            ContextValue::String(offered) => vec![offered],
            ContextValue::Strings(offered) => offered,
            _ => Vec::new(),
        };
        offered.retain(|offered| is_meant(&written, offered));
        if !offered.is_empty() {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(offered));
        }
    }
    if let Some(written) = written(&error, ContextKind::InvalidArg)
        && let Some(ContextValue::String(offered)) = error.get(ContextKind::SuggestedArg)
        && !(is_meant(&written, offered) && applies(offered, args))
    {
        error.remove(ContextKind::SuggestedArg);
        // It shows the option as if it were given.
        error.remove(ContextKind::Usage);
    }
    error
}

fn is_meant(written: &str, offered: &str) -> bool {
    let written = written.trim_start_matches('-');
    let offered = offered.trim_start_matches('-');
    let same = written.chars().zip(offered.chars()).take_while(|(one, other)| one == other).count();
    nearest(written, [offered]).is_some() || same >= BEGINNING
}

/// Whether the verb that was given follows that option.
fn applies(option: &str, args: &[std::ffi::OsString]) -> bool {
    let id = option.trim_start_matches('-').replace('-', "_");
    let verb = args.iter().skip(1).find_map(|arg| Verb::of(arg.to_str()?));
    let is_global = VERBS.iter().any(|verb| verb.globals.contains(&id.as_str()));
    !is_global || verb.is_none_or(|verb| verb.globals.contains(&id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(command: &Command, before: &str, into: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let path = format!("{before}{}", below.get_name());
            paths(below, &format!("{path} "), into);
            into.push(path);
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn every_verb_has_examples_of_itself_and_no_help_is_of_another() {
        let mut known = Vec::new();
        paths(&Cli::command(), "", &mut known);
        known.sort();
        let mut described: Vec<_> = VERBS.iter().map(|verb| verb.path.to_owned()).collect();
        described.sort();
        assert_eq!(described, known);
        let globals: Vec<_> = Cli::command().get_arguments().map(|arg| arg.get_id().to_string()).collect();
        for verb in VERBS {
            let has_below = known.iter().any(|path| path.starts_with(&format!("{} ", verb.path)));
            assert!(has_below || !verb.examples.is_empty(), "{}", verb.path);
            for (line, _) in verb.examples {
                assert!(verb.path.split(' ').all(|word| line.split(' ').any(|part| part == word)), "{line}");
            }
            for global in verb.globals {
                assert!(globals.iter().any(|known| known == global), "{}: {global}", verb.path);
            }
        }
    }

    /// Each example is one that the parser takes.
    #[test]
    fn every_example_is_a_command_line() {
        for (line, _) in VERBS.iter().flat_map(|verb| verb.examples) {
            let parts =
                line.split(['|', '>', '&']).map(str::trim).filter(|part| part.starts_with("enforcer "));
            for part in parts {
                let parsed = command().try_get_matches_from(part.split(' '));
                assert!(parsed.is_ok(), "{part}: {}", parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn an_option_for_all_verbs_is_taken_before_and_behind_every_verb() {
        for line in ["enforcer -o json next", "enforcer next -o json", "enforcer config effective -o json"] {
            let matches = command().try_get_matches_from(line.split(' ')).unwrap();
            assert!(matches.contains_id("output"), "{line}");
        }
        let hidden = command().try_get_matches_from(["enforcer", "completions", "bash", "--live"]).unwrap();
        assert!(hidden.get_flag("live"), "hidden is not refused");
    }

    #[test]
    fn only_what_may_be_meant_is_suggested() {
        let said = |line: &str| {
            let args: Vec<std::ffi::OsString> = line.split(' ').map(Into::into).collect();
            let error = command().try_get_matches_from(&args).unwrap_err();
            with_fitting_suggestions(error, &args).to_string()
        };
        for (line, near) in [
            ("enforcer hedroom", "'headroom'"),
            ("enforcer complete", "'completions'"),
            ("enforcer config chekc", "'check'"),
            ("enforcer next --singal pid.available", "'--signal'"),
            ("enforcer next --outptu json", "'--output'"),
        ] {
            assert!(said(line).contains(near), "{line}: {}", said(line));
        }
        for line in ["enforcer purge", "enforcer next --linear", "enforcer man --lvie"] {
            assert!(!said(line).contains("similar"), "{line}: {}", said(line));
        }
    }
}
