//! What the verbs print, on the real binary: over recorded journals while the daemon is down, and over a fake daemon
//! with set answers. Needs no privileges.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic like the test itself")]

mod browser;
mod cut;
mod daemon;
mod documented;
mod drafted;
mod explained;
mod foreseen;
mod golden;
mod hostile;
mod journal;
mod misconfigured;
mod printed;
mod reported;
mod shells;
mod spared;
mod status;
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../terminal/mod.rs"]
mod terminal;
mod widths;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use unicode_width::UnicodeWidthStr as _;

/// A folder with a configuration of its own.
struct Scene {
    folder: tempfile::TempDir,
}

/// What a verb printed.
#[derive(Debug)]
struct Printed {
    out: String,
    err: String,
    status: i32,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display();
        let config = format!(
            "apiVersion: enforcer.dev/v1alpha1\nkind: EnforcerConfiguration\nmode: observe\nownership: enforcer\n\
             stateDir: {shown}/state\nrunDir: {shown}/run\nstaticPodPath: {shown}/pods\n"
        );
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        fs::create_dir(folder.path().join("pods")).unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        Self { folder }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.folder.path().join(below)
    }

    /// Runs a verb as a pipe sees it.
    fn run(&self, arguments: &[&str]) -> Printed {
        self.raw(arguments).without(self.folder.path())
    }

    /// The same, with times and ids as they are.
    fn raw(&self, arguments: &[&str]) -> Printed {
        let mut command = Command::new(env!("CARGO_BIN_EXE_enforcer"));
        run(command.arg("--config").arg(self.path("config.yaml")).args(arguments))
    }
}

fn run(command: &mut Command) -> Printed {
    let output = command.stdin(Stdio::null()).env_remove("NO_COLOR").output().unwrap();
    Printed {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        status: output.status.code().unwrap(),
    }
}

impl Printed {
    /// What differs each time is written as what it is.
    fn without(self, folder: &Path) -> Self {
        let tidy =
            |text: String| ids(&ages(&moments(&text.replace(&folder.display().to_string(), "FOLDER"))));
        Self { out: tidy(self.out), err: tidy(self.err), status: self.status }
    }

    /// Everything, for a snapshot.
    fn whole(&self) -> String {
        self.tame();
        let Self { out, err, status } = self;
        let err = if err.is_empty() { String::new() } else { format!("--- stderr\n{err}") };
        format!("{out}{err}--- exit status {status}\n")
    }

    /// Nothing of it does harm to a terminal, and its lines fit: in a pipe, a table is as wide as its longest name.
    fn tame(&self) {
        for text in [&self.out, &self.err] {
            assert_harmless(text);
        }
        // The verifier's own lines are given whole, to be copied.
        for line in self.out.lines().filter(|line| !line.starts_with("    | ")) {
            let has_long_name = line.split(' ').any(|word| word.width() > 25);
            let filled = line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(has_long_name || filled.width() <= 80, "{} columns: {line}", line.width());
        }
    }
}

fn assert_harmless(text: &str) {
    let harmful = |one: char| {
        (one.is_control() && one != '\n') || matches!(one, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.chars().any(harmful), "{text:?}");
}

/// Every time of the day and every id that was drawn becomes the same.
fn moments(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("20") {
        let (before, from) = rest.split_at(at);
        shown.push_str(before);
        match from.get(..27) {
            Some(time) if time.as_bytes()[10] == b'T' && time.ends_with('Z') => {
                shown.push_str("2026-01-31T12:00:00.123456Z");
                rest = &from[27..];
            }
            _ => {
                shown.push_str("20");
                rest = &from[2..];
            }
        }
    }
    shown + rest
}

/// How long ago something was becomes the same.
fn ages(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("s ago)") {
        let (before, from) = rest.split_at(at);
        shown.push_str(before.trim_end_matches(|one: char| one.is_ascii_digit()));
        shown.push_str("0s ago)");
        rest = &from["s ago)".len()..];
    }
    shown + rest
}

/// Every id that is not one of the scenes' becomes the same.
fn ids(text: &str) -> String {
    let is_part = |one: char| one.is_ascii_uppercase() || one.is_ascii_digit();
    let mut shown = text.to_owned();
    for word in text.split(|one| !is_part(one)) {
        let is_own = ["01J8Z3N", "01AAAAA"].iter().any(|own| word.starts_with(own));
        if word.len() == 26 && word.starts_with("01") && !is_own {
            shown = shown.replace(word, "01DRAWNDRAWNDRAWNDRAWNDRAW");
        }
    }
    shown
}
