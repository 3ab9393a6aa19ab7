//! Licences of everything in the binary: whether `deny.toml` allows them, and the file that has all their texts.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use super::inventory::Package;
use crate::{places::Places, run};

/// What licence files are called, in capitals.
const NAMES: [&str; 7] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE", "PATENTS"];

/// The C libraries, which are linked statically.
const GLIBC: &str = "packaging/licences/LGPL-2.1.txt";

/// What the C and the Rust libraries are, which no `Cargo.toml` names.
const PREAMBLE: &str = "\
This is what the program enforcer contains that others wrote. Its own licences are in
LICENSE-APACHE and LICENSE-MIT.

GNU C Library (glibc), linked statically: LGPL-2.1-or-later, whose text is below.
To link the program with another glibc, build it from its source: docs/releasing.md
says how, and everything that the build needs is free software.

libgcc, linked statically: GPL-3.0-or-later WITH GCC-exception-3.1. Under that
exception the program may be passed on under terms of its own choice.

Rust's standard library, linked statically: MIT OR Apache-2.0, and the licences of
its own dependencies: see rust-library.html.gz.
";

/// What is shipped beside the binary.
#[derive(Debug)]
pub(crate) struct Texts {
    /// Every package with its licence, and every text.
    pub(crate) third_party: String,
    /// The notices of Rust's standard library, as the toolchain has them.
    pub(crate) rust_library: Vec<u8>,
}

/// Collects all texts, after a check that every licence is allowed.
pub(crate) fn collect(places: &Places, packages: &[Package]) -> anyhow::Result<Texts> {
    let deny = String::from_utf8(super::read(&places.root.join("deny.toml"))?)?;
    check(packages, &allowed_by(&deny)?)?;
    let sysroot = run::text(Command::new("rustc").args(["--print", "sysroot"]).current_dir(&places.root))?;
    let notices = Path::new(sysroot.trim_end()).join("share/doc/rust/COPYRIGHT-library.html");
    let rust_library = super::read(&notices)
        .context("the toolchain has no notices of Rust's standard library; take one that rustup installed")?;
    let glibc = String::from_utf8(super::read(&places.root.join(GLIBC))?)?;
    Ok(Texts { third_party: third_party(packages, &glibc)?, rust_library })
}

/// An error that names every package whose licence is not allowed.
pub(crate) fn check(packages: &[Package], allowed: &[String]) -> anyhow::Result<()> {
    let mut refused = Vec::new();
    for package in packages {
        let licence = package.licence()?;
        if !is_allowed(&licence, allowed)? {
            refused.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    bail!("deny.toml does not allow these licences:\n{}", refused.join("\n"))
}

/// The list `allow` of the section `[licenses]`.
fn allowed_by(deny: &str) -> anyhow::Result<Vec<String>> {
    let lines = deny.lines().skip_while(|line| *line != "[licenses]").skip_while(|line| *line != "allow = [");
    let entries = lines.skip(1).take_while(|line| *line != "]");
    let allowed: Vec<String> = entries
        .filter_map(|line| Some(line.trim().strip_prefix('"')?.strip_suffix("\",")?.to_owned()))
        .collect();
    if allowed.is_empty() {
        bail!("deny.toml has no list `allow` in [licenses]");
    }
    Ok(allowed)
}

/// Whether a choice that the expression offers consists of allowed licences alone.
fn is_allowed(expression: &str, allowed: &[String]) -> anyhow::Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let answer = any_of(&mut words, allowed);
    match words.next() {
        None => answer.with_context(|| format!("`{expression}` is no SPDX expression")),
        Some(word) => bail!("`{expression}` is no SPDX expression: `{word}` is too much"),
    }
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut answer = all_of(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        answer |= all_of(words, allowed)?;
    }
    Some(answer)
}

fn all_of(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut answer = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        answer &= one(words, allowed)?;
    }
    Some(answer)
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let answer = any_of(words, allowed)?;
        return (words.next()? == ")").then_some(answer);
    }
    if ["OR", "AND", "WITH", ")"].contains(&word) {
        return None;
    }
    let licence = match words.next_if_eq(&"WITH") {
        Some(_) => format!("{word} WITH {}", words.next()?),
        None => word.to_owned(),
    };
    Some(allowed.contains(&licence))
}

fn third_party(packages: &[Package], glibc: &str) -> anyhow::Result<String> {
    let mut list = String::new();
    let mut without = Vec::new();
    // One text for all that carry it.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages.iter().filter(|package| package.source.is_some()) {
        let Package { name, version, repository, .. } = package;
        let licence = package.licence()?;
        let place = repository.as_deref().map(|place| format!(" {place}")).unwrap_or_default();
        list.push_str(&format!("{name} {version}: {licence}{place}\n"));
        let files = files(package.folder()?)?;
        if files.is_empty() {
            without.push(format!("{name} {version}: {licence}\n"));
        }
        for path in files {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = String::from_utf8_lossy(&super::read(&path)?).replace("\r\n", "\n");
            texts.entry(text.trim_end().to_owned()).or_default().push(format!("{name} {version} ({file})"));
        }
    }
    let rule = "=".repeat(80);
    let mut all = format!("{PREAMBLE}\n{rule}\nPackages\n\n{list}");
    if !without.is_empty() {
        all.push_str(&format!(
            "\nThese packages contain no text of their licence; the standard texts are in\nLICENSE-APACHE, LICENSE-MIT and \
             below.\n\n{}",
            without.concat()
        ));
    }
    let mut texts: Vec<_> = texts.into_iter().map(|(text, users)| (users, text)).collect();
    texts.sort();
    texts.push((vec!["GNU C Library".to_owned()], glibc.trim_end().to_owned()));
    for (users, text) in texts {
        all.push_str(&format!("\n{rule}\n{}\n\n{text}\n", users.join("\n")));
    }
    Ok(all)
}

/// The licence files right in a folder, and those in its folder `LICENSES`.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for (folder, all) in [(folder.to_owned(), false), (folder.join("LICENSES"), true)] {
        if all && !folder.is_dir() {
            continue;
        }
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().to_uppercase();
            if (all || NAMES.iter().any(|known| name.starts_with(known))) && entry.file_type()?.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{super::inventory::tests::package, *};

    #[test]
    fn expressions_are_decided_as_spdx_defines_them() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-2.0-only", false),
            ("MIT OR GPL-2.0-only", true),
            ("MIT AND GPL-2.0-only", false),
            ("(MIT OR GPL-2.0-only) AND ISC", true),
            ("GPL-2.0-only OR MIT AND ISC", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed).unwrap(), expected, "{expression}");
        }
        for expression in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "WITH a"] {
            assert!(is_allowed(expression, &allowed).is_err(), "{expression}");
        }
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_named_with_its_package() {
        let deny =
            "[bans]\nallow = [\n  \"x\",\n]\n[licenses]\n# Why.\nallow = [\n  \"MIT\",\n  \"ISC\",\n]\n";
        let allowed = allowed_by(deny).unwrap();
        assert_eq!(allowed, ["MIT", "ISC"]);
        assert!(check(&[package("a", "MIT")], &allowed).is_ok());
        let error = check(&[package("a", "MIT"), package("b", "GPL-3.0-only")], &allowed).unwrap_err();
        assert_eq!(error.to_string(), "deny.toml does not allow these licences:\nb 1.0.0: GPL-3.0-only");
        assert!(allowed_by("[licenses]\n").is_err());
    }

    #[test]
    fn a_text_that_packages_share_is_there_once_and_missing_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let with = |name: &str, files: &[(&str, &str)]| {
            let own = folder.path().join(name);
            fs::create_dir(&own).unwrap();
            for (file, text) in files {
                fs::write(own.join(file), text).unwrap();
            }
            Package { manifest_path: own.join("Cargo.toml"), ..package(name, "MIT") }
        };
        let packages = [
            with("a", &[("LICENSE-MIT", "Shared.\n"), ("README.md", "Not a licence.")]),
            with("b", &[("license.md", "Shared.\r\n"), ("NOTICE", "Of b.")]),
            with("c", &[]),
        ];
        let all = third_party(&packages, "Lesser.\n").unwrap();
        assert_eq!(all.matches("Shared.").count(), 1, "{all}");
        assert!(all.contains("\na 1.0.0 (LICENSE-MIT)\nb 1.0.0 (license.md)\n\nShared.\n"), "{all}");
        assert!(all.contains("b 1.0.0 (NOTICE)\n\nOf b.\n"), "{all}");
        assert!(
            all.contains("no text of their licence") && all.contains("below.\n\nc 1.0.0: MIT\n"),
            "{all}"
        );
        assert!(!all.contains("Not a licence") && all.ends_with("GNU C Library\n\nLesser.\n"), "{all}");
    }
}
