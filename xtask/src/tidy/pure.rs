//! The rules of the product stay without IO and clock, and with a handful of dependencies: others use them as a library.

use std::path::Path;

/// The crate of the rules.
const CRATE: &str = "enforcer-policy";

/// What it may depend on, tests aside. Another one must have neither IO nor a runtime.
const DEPENDENCIES: &[&str] = &["crc32fast", "postcard", "postcard-schema", "serde", "thiserror"];

/// Names of the standard library that bring IO, time or threads in.
const REFUSED: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "println",
    "eprintln",
];

/// What a file of the crate uses and may not.
pub(super) fn violations(name: &str, text: &str) -> Vec<String> {
    let Ok(inner) = Path::new(name).strip_prefix(CRATE) else { return Vec::new() };
    if inner == Path::new("Cargo.toml") {
        return dependencies(text)
            .filter(|dependency| !DEPENDENCIES.contains(dependency))
            .map(|dependency| format!("{name}: depends on {dependency}, which the rules have no use for"))
            .collect();
    }
    if !inner.starts_with("src") || super::is_tests(inner) || inner.iter().any(|part| part == "tests") {
        return Vec::new();
    }
    let code = super::words::code(text);
    let refused = REFUSED.iter().filter(|refused| has_word(&code, refused));
    refused.map(|refused| format!("{name}: uses {refused}: the rules have no IO and no clock")).collect()
}

/// The names in the manifest's `[dependencies]`.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty()))
}

fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let is_name = |character: char| character.is_alphanumeric() || character == '_';
        let before = code.get(..at).and_then(|before| before.chars().next_back());
        let after = code.get(at + word.len()..).and_then(|after| after.chars().next());
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_and_clock_are_refused_outside_tests() {
        let text = "use std::{fmt, time::Instant};\n/// std::fs\nfn f() { std::fs::read(a); }\n";
        let is = violations("enforcer-policy/src/rank.rs", text);
        assert_eq!(is.len(), 2, "{is:?}");
        assert!(is[0].contains("uses std::fs") && is[1].contains("uses Instant"), "{is:?}");
        for elsewhere in
            ["enforcer/src/rank.rs", "enforcer-policy/src/rank/tests.rs", "enforcer-policy/src/tests/a.rs"]
        {
            assert!(violations(elsewhere, text).is_empty(), "{elsewhere}");
        }
        assert!(violations("enforcer-policy/src/a.rs", "struct Instantly;\n").is_empty());
    }

    #[test]
    fn dependencies_are_few() {
        let manifest = "[package]\nname = \"a\"\n\n[dependencies]\n# Why.\nserde.workspace = true\n\
                        tokio = { workspace = true }\n\n[dev-dependencies]\nrstest.workspace = true\n";
        assert_eq!(
            violations("enforcer-policy/Cargo.toml", manifest),
            ["enforcer-policy/Cargo.toml: depends on tokio, which the rules have no use for"]
        );
        assert!(violations("enforcer/Cargo.toml", manifest).is_empty());
    }
}
