//! Rules that no compiler checks.

mod pure;
mod rooms;
mod words;

use std::{fs, path::Path, process::Command};

use anyhow::bail;

use crate::{places::Places, run};

/// Checks every file that git knows, and reports all violations at once.
pub(crate) fn check(places: &Places) -> anyhow::Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(&places.root);
    let files = run::text(&mut git)?;
    let home = std::env::home_dir().filter(|home| home.components().count() > 2);
    let mut violations = Vec::new();
    let mut rooms = rooms::Rooms::default();
    for name in files.split('\0').filter(|name| !name.is_empty()) {
        let path = places.root.join(name);
        // A file that was removed but not yet from the index, or one that is not text.
        let Ok(bytes) = fs::read(&path) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        violations.extend(in_file(name, &text, &[Some(places.root.as_path()), home.as_deref()]));
        rooms.note(name, &text);
    }
    violations.extend(rooms.cycles());
    if violations.is_empty() {
        return Ok(());
    }
    violations.sort();
    violations.dedup();
    bail!("{} violations:\n{}", violations.len(), violations.join("\n"))
}

fn in_file(name: &str, text: &str, places: &[Option<&Path>]) -> Vec<String> {
    let mut violations = Vec::new();
    let path = Path::new(name);
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    if is_source && !is_tests(path) {
        if !says_what_it_is(text) {
            violations.push(format!("{name}: begins without a `//!` line that says what this module is for"));
        } else if repeats_its_name(path, text) {
            violations.push(format!("{name}: its `//!` line only repeats the name of the file"));
        }
    }
    if path.file_name().is_some_and(|file| file == "Cargo.toml") && text.contains("[package]") {
        for field in ["license", "description"] {
            if !text.lines().any(|line| line.starts_with(field)) {
                violations.push(format!("{name}: has no {field}"));
            }
        }
    }
    violations.extend(pure::violations(name, text));
    if is_source && speaks_plainly(path) {
        violations.extend(words::violations(name, text));
    }
    if is_source && !path.starts_with("enforcer-ebpf") {
        violations.extend(words::in_function_names(name, text));
    }
    // A path of the machine that something was written on is of no use elsewhere.
    for place in places.iter().flatten().filter_map(|place| place.to_str()) {
        if let Some(number) = text.lines().position(|line| line.contains(place)) {
            violations.push(format!("{name}:{}: names {place}, a folder of this machine", number + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') && is_source {
        violations.push(format!("{name}: does not end with a line break"));
    }
    violations
}

/// Production code of the daemon, its rules and its events; the programs' sources are hashed with their object, and change with it.
fn speaks_plainly(path: &Path) -> bool {
    ["enforcer/src", "enforcer-events/src", "enforcer-policy/src"]
        .iter()
        .any(|folder| path.starts_with(folder))
        && !is_tests(path)
        && !path.components().any(|part| part.as_os_str() == "tests")
}

/// Tests beside the code say what they are by their names.
fn is_tests(path: &Path) -> bool {
    path.file_stem().into_iter().chain(path.parent().and_then(Path::file_name)).any(|name| name == "tests")
}

/// Whether a module's own documentation comes before its first item.
fn says_what_it_is(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("#![") && !line.starts_with("// "))
        .is_some_and(|line| line.starts_with("//!"))
}

/// Whether the first line of a module's documentation says nothing that the file's name does not.
fn repeats_its_name(path: &Path, text: &str) -> bool {
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name: Vec<String> = words_in(name).collect();
    let line = text.lines().find_map(|line| line.trim().strip_prefix("//!")).unwrap_or_default();
    words_in(line).all(|word| {
        ["a", "an", "the", "thi", "module", "of"].contains(&word.as_str()) || name.contains(&word)
    })
}

/// The words in lower case and in the singular.
fn words_in(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| word.to_lowercase().trim_end_matches('s').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_comes_first() {
        assert!(says_what_it_is("#![no_std]\n//! What it is.\n"));
        assert!(says_what_it_is("// A licence.\n\n//! What it is.\n"));
        assert!(!says_what_it_is("use std::fs;\n//! Too late.\n"));
        assert!(!says_what_it_is(""));
    }

    #[test]
    fn every_module_says_what_it_is_for() {
        for name in ["a/src/main.rs", "a/src/b.rs", "a/src/b/c.rs", "a/build.rs"] {
            let missing = format!("{name}: begins without a `//!` line that says what this module is for");
            assert_eq!(in_file(name, "/// F.\nfn f() {}\n", &[]), [missing]);
            assert!(in_file(name, "//! Adds numbers.\n\nfn f() {}\n", &[]).is_empty(), "{name}");
        }
        for name in ["a/src/b/tests.rs", "a/src/b/tests/c.rs", "a/tests/c.rs"] {
            assert!(in_file(name, "fn f() {}\n", &[]).is_empty(), "{name}");
        }
    }

    #[test]
    fn a_module_says_more_than_its_name() {
        for line in ["//!", "//! Small map.", "//! The module of small maps."] {
            let planted = format!("{line}\n\nfn f() {{}}\n");
            let found = in_file("a/src/small_map.rs", &planted, &[]);
            assert_eq!(found, ["a/src/small_map.rs: its `//!` line only repeats the name of the file"]);
        }
        assert!(in_file("a/src/small_map.rs", "//! A map that saves memory.\n", &[]).is_empty());
    }

    #[test]
    fn package_needs_a_licence() {
        let manifest = "[package]\nname = \"a\"\ndescription = \"b\"\n";
        assert_eq!(in_file("a/Cargo.toml", manifest, &[]), ["a/Cargo.toml: has no license"]);
        assert!(in_file("Cargo.toml", "[workspace]\n", &[]).is_empty());
    }

    #[test]
    fn folders_of_this_machine_are_found() {
        let place = Path::new("/home/someone");
        let found = in_file("README.md", "one\nsee /home/someone/x\n", &[Some(place), None]);
        assert_eq!(found, ["README.md:2: names /home/someone, a folder of this machine"]);
    }
}
