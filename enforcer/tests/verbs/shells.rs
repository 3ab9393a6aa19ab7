//! `completions`, `man`, and what is said to who mistypes a verb.
use std::{fs, process::Command};

use crate::{Scene, journal::eviction, run};

const VERBS: [&str; 30] = [
    "run",
    "status",
    "pods",
    "describe",
    "version",
    "bugreport",
    "plan",
    "rank",
    "events",
    "why",
    "next",
    "headroom",
    "allocatable",
    "top",
    "what-if",
    "replay",
    "report",
    "exec",
    "evict",
    "protect",
    "pause",
    "reserve",
    "unreserve",
    "reload",
    "doctor",
    "cleanup",
    "config",
    "completions",
    "man",
    "help",
];

#[test]
fn every_shell_gets_every_verb() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let printed = scene.run(&["completions", shell]);
        assert_eq!((printed.status, printed.err.as_str()), (0, ""), "{shell}");
        for verb in VERBS {
            assert!(printed.out.contains(verb), "{shell}: {verb}");
        }
    }
    // A shell that is there takes it.
    let script = scene.path("completions.bash");
    fs::write(&script, scene.run(&["completions", "bash"]).out).unwrap();
    let shell = format!(
        "source {} && COMP_WORDS=(enforcer he) COMP_CWORD=1 && _enforcer enforcer he enforcer && echo ${{COMPREPLY[*]}}",
        script.display()
    );
    let printed = run(Command::new("bash").args(["--norc", "-c", &shell]));
    assert_eq!((printed.out.as_str(), printed.status), ("headroom help\n", 0), "{printed:?}");
}

#[test]
fn every_verb_has_a_manual_page() {
    let scene = Scene::new();
    let own = scene.run(&["man"]);
    assert!(own.out.starts_with(".ie") && own.out.contains("enforcer"), "{}", own.out);
    let dir = scene.path("man/man1");
    let printed = scene.run(&["man", "--dir", &dir.display().to_string()]);
    assert_eq!((printed.out.as_str(), printed.err.as_str(), printed.status), ("", "", 0));
    for verb in VERBS.iter().filter(|verb| **verb != "help") {
        let page = fs::read_to_string(dir.join(format!("enforcer-{verb}.1"))).unwrap();
        assert!(page.contains(&format!("enforcer\\-{}", verb.replace('-', "\\-"))), "{verb}: {page}");
    }
    assert!(dir.join("enforcer.1").exists() && dir.join("enforcer-config-check.1").exists());
    for (name, above) in [
        ("enforcer-why", "enforcer"),
        ("enforcer-config-check", "enforcer-config"),
        ("enforcer", "enforcer-why"),
    ] {
        let page = fs::read_to_string(dir.join(format!("{name}.1"))).unwrap();
        let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let wanted = [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "\"EXIT STATUS\"",
            "FILES",
            "ENVIRONMENT",
            "EXAMPLES",
            "\"SEE ALSO\"",
        ];
        let mut rest = headings.iter();
        assert!(wanted.iter().all(|heading| rest.any(|found| found == heading)), "{name}: {headings:?}");
        assert_eq!(page.matches(".ds Aq").count(), 2, "{name} begins once");
        assert!(
            page.contains("/etc/enforcer/config.yaml") && page.contains("ENFORCER_SOCKET"),
            "{name}: {page}"
        );
        assert!(page.contains(&above.replace('-', "\\-")), "{name}: {page}");
    }
    let refused = scene.run(&["man", "--dir", "/proc/nowhere"]);
    assert!(refused.status == 1 && refused.err.contains("cannot create /proc/nowhere"), "{refused:?}");
}

#[test]
fn a_verb_that_is_not_there_suggests_the_nearest() {
    let scene = Scene::new();
    for (wrong, near) in [("hedroom", "headroom"), ("whhy", "why"), ("complete", "completions")] {
        let printed = scene.run(&[wrong]);
        assert!(printed.status == 64 && printed.err.contains(&format!("'{near}'")), "{printed:?}");
    }
}

/// The whole help is read once by a person whenever it changes.
#[test]
fn the_help_of_every_verb_is_as_it_was_read() {
    let scene = Scene::new();
    let mut reported = scene.run(&["--help"]).whole();
    for verb in VERBS.iter().filter(|verb| **verb != "help") {
        reported.push_str(&format!("$ {verb} --help\n{}", scene.run(&[verb, "--help"]).whole()));
    }
    for verb in ["init", "check", "effective", "schema"] {
        reported
            .push_str(&format!("$ config {verb} --help\n{}", scene.run(&["config", verb, "--help"]).whole()));
    }
    // The version of the program changes with each release.
    insta::assert_snapshot!(reported.replace(env!("CARGO_PKG_VERSION"), "VERSION"));
}

#[test]
fn help_has_examples_exit_statuses_and_values_and_only_options_that_apply() {
    let scene = Scene::new();
    let help = |verb: &str| scene.run(&[verb, "--help"]).out;
    for verb in VERBS.iter().filter(|verb| !["help", "config"].contains(verb)) {
        let shown = help(verb);
        for part in ["Examples:\n  enforcer ", "Exit status:\n  0", "  64  wrong usage"] {
            assert!(shown.contains(part), "{verb}: {part} is not in {shown}");
        }
    }
    let run = help("run");
    assert!(
        ["observe", "dry-run", "enforce", "keep", "restore"].iter().all(|value| run.contains(value)),
        "{run}"
    );
    assert!(help("events").contains("eviction.decided,"), "{}", help("events"));
    assert!(help("doctor").contains("  2   nothing can be enforced"), "{}", help("doctor"));
    for (verb, has, lacks) in [
        ("next", &["--socket", "--output", "--config"][..], &["--live", "--verbose", "--no-color"][..]),
        ("events", &["--live", "--output", "--no-color"], &["--verbose"]),
        ("completions", &[], &["--output", "--config", "--socket", "--live", "--verbose"]),
        ("exec", &["--socket"], &["--output", "--live"]),
        ("run", &["--verbose", "--config"], &["--output", "--socket", "--live", "--no-config"]),
    ] {
        let shown = help(verb);
        let options = shown.split("Options:").nth(1).unwrap().split("Examples:").next().unwrap();
        assert!(has.iter().all(|option| options.contains(option)), "{verb}: {options}");
        assert!(!lacks.iter().any(|option| options.contains(option)), "{verb}: {options}");
    }
}

#[test]
fn what_cannot_be_meant_is_not_suggested() {
    let scene = Scene::new();
    for wrong in [&["purge"][..], &["next", "--linear"], &["man", "--lvie"]] {
        let printed = scene.run(wrong);
        assert!(printed.status == 64 && !printed.err.contains("similar"), "{printed:?}");
    }
    let near = scene.run(&["next", "--singal", "pid.available"]);
    assert!(near.status == 64 && near.err.contains("'--signal'"), "{near:?}");
}

#[test]
fn all_help_fits_80_columns() {
    let scene = Scene::new();
    for verb in VERBS {
        for more in [&["--help"][..], &["-h"]] {
            scene.run(&[&[verb], more].concat()).tame();
        }
    }
}

/// The same on a terminal of that many columns.
pub(crate) fn on_columns(scene: &Scene, columns: u16, arguments: &str) -> String {
    let (enforcer, config) = (env!("CARGO_BIN_EXE_enforcer"), scene.path("config.yaml"));
    let verb = format!("stty cols {columns} && {enforcer} --config {} {arguments}", config.display());
    let mut script = Command::new("script");
    let output = script.args(["-qec", &verb, "/dev/null"]).env("NO_COLOR", "1").output().unwrap();
    String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n")
}

/// What a terminal gets: `script` gives the verb one of its own.
pub(crate) fn on_a_terminal(scene: &Scene, arguments: &str, no_color: &str) -> String {
    let enforcer = env!("CARGO_BIN_EXE_enforcer");
    let config = scene.path("config.yaml");
    let verb = format!("{enforcer} --config {} {arguments}", config.display());
    let mut script = Command::new("script");
    let output = script.args(["-qec", &verb, "/dev/null"]).env("NO_COLOR", no_color).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let scene = Scene::new();
    scene.remember(&eviction());
    let piped = scene.run(&["events"]).out;
    assert!(!piped.contains('\u{1b}'), "{piped}");
    let painted = on_a_terminal(&scene, "events", "");
    assert!(painted.contains("\u{1b}[31meviction.decided"), "{painted}");
    for (arguments, no_color) in
        [("events", "1"), ("--no-color events", ""), ("why", "1"), ("-o json why", "")]
    {
        let plain = on_a_terminal(&scene, arguments, no_color);
        assert!(!plain.contains('\u{1b}'), "{arguments}: {plain}");
    }
}
