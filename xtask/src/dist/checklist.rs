//! The checklist of a release, as a command: everything on it is in order, or the command fails.
use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{
    FOLDER,
    arch::Arch,
    binary, chart, inventory, licences, provenance, read, reproduced, signature,
    source::{Source, git},
};
use crate::{deny, places::Places, run, steps::Steps};

/// What was found about one entry.
#[derive(Debug)]
enum Finding {
    /// In order.
    Fine(String),
    /// Not in order, and why.
    Wrong(String),
    /// It cannot be found out here, and why.
    NotChecked(String),
}

/// An entry: what has to be true, and how it is found out.
type Entry = (&'static str, fn(&Places) -> anyhow::Result<Finding>);

const ENTRIES: [Entry; 14] = [
    ("the commit is tagged with its version", tagged),
    ("CHANGELOG.md begins with this version", changelog),
    ("the eBPF object is that of its sources", object),
    ("licences of everything in the binary", licences_of_all),
    ("cargo deny: bans, licences, sources", |places| Ok(dependencies(places, &deny::WITHOUT_DATABASE))),
    ("cargo deny: advisories", |places| Ok(dependencies(places, &["advisories"]))),
    ("systemd takes the units", units),
    ("Helm chart and plain manifests", charts),
    ("artifacts are of this commit", provenance_of_head),
    ("artifacts have the listed checksums", checksums),
    ("a second build gave the same bytes", reproduced_here),
    ("the binary is small enough", size),
    ("dpkg and rpm read the packages", packages),
    ("the list of checksums is signed", signed),
];

/// `cargo xtask release-check`.
pub(crate) fn command(places: &Places) -> u8 {
    let mut open = 0_u32;
    for (name, check) in ENTRIES {
        let finding = check(places).unwrap_or_else(|error| Finding::Wrong(format!("{error:#}")));
        let (word, said) = match finding {
            Finding::Fine(said) => ("ok", said),
            Finding::Wrong(said) => ("FAIL", said),
            Finding::NotChecked(said) => ("not checked", said),
        };
        open += u32::from(word != "ok");
        // What programs say has many lines.
        Steps::Out.say(format_args!("{word:<11}  {name:<40}  {}", said.trim_end().replace('\n', "\n    ")));
    }
    match open {
        0 => Steps::Out.say("everything is in order"),
        open => Steps::Out.say(format_args!("{open} of {} are open", ENTRIES.len())),
    }
    u8::from(open > 0)
}

fn fine(said: impl Into<String>) -> Finding {
    Finding::Fine(said.into())
}

fn wrong(said: impl Into<String>) -> Finding {
    Finding::Wrong(said.into())
}

fn tagged(places: &Places) -> anyhow::Result<Finding> {
    let source = Source::find(&places.root, false)?;
    let tag = format!("v{}", source.version);
    let tags = git(&places.root, &["tag", "--points-at", "HEAD"])?;
    if tags.lines().any(|known| known == tag) {
        return Ok(fine(tag));
    }
    Ok(wrong(format!("{} has no tag {tag}", source.commit)))
}

fn changelog(places: &Places) -> anyhow::Result<Finding> {
    let text = String::from_utf8(read(&places.root.join("CHANGELOG.md"))?)?;
    let newest = text.lines().find_map(|line| line.strip_prefix("## "));
    let newest = newest.context("CHANGELOG.md has no section")?;
    if newest.split(' ').next() == Some(env!("CARGO_PKG_VERSION")) {
        return Ok(fine(newest));
    }
    Ok(wrong(format!("it begins with {newest}, and this is {}", env!("CARGO_PKG_VERSION"))))
}

fn object(places: &Places) -> anyhow::Result<Finding> {
    ebpf_object::checked_in(&places.root)?;
    Ok(fine(""))
}

fn licences_of_all(places: &Places) -> anyhow::Result<Finding> {
    let packages = inventory::find(places, Arch::X86_64)?;
    licences::collect(places, &packages)?;
    Ok(fine(format!("{} packages, all from crates.io or from here", packages.len())))
}

fn dependencies(places: &Places, checks: &[&str]) -> Finding {
    let program = match deny::program(places) {
        Ok(program) => program,
        Err(error) => return Finding::NotChecked(format!("there is no cargo-deny: {error:#}")),
    };
    let Err(error) = deny::check(places, &program, checks) else { return fine("") };
    let said = format!("{error:#}");
    if is_out_of_reach(&said) {
        return Finding::NotChecked("the database of advisories cannot be reached".to_owned());
    }
    wrong(said)
}

/// Whether cargo-deny failed because it has no database, not because of what is in it.
fn is_out_of_reach(said: &str) -> bool {
    said.contains("failed to fetch advisory database") || said.contains("failed to load advisory database")
}

fn units(places: &Places) -> anyhow::Result<Finding> {
    let mut analyze = Command::new("systemd-analyze");
    if run::output(analyze.arg("--version")).is_err() {
        return Ok(Finding::NotChecked("there is no systemd-analyze".to_owned()));
    }
    // The program of the unit need not be installed here: one is put where it points to.
    let folder = tempfile::tempdir()?;
    let mut paths = Vec::new();
    for unit in ["enforcer.service", "enforcer.slice"] {
        let text = String::from_utf8(read(&places.root.join("packaging/systemd").join(unit))?)?;
        let path = folder.path().join(unit);
        fs::write(&path, text.replace("/usr/bin/enforcer", "/bin/true"))?;
        paths.push(path);
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(paths);
    let output = verify.output().context("cannot start systemd-analyze")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("enforcer")).collect();
    if output.status.success() && ours.is_empty() {
        return Ok(fine(""));
    }
    Ok(wrong(if ours.is_empty() { said.into_owned() } else { ours.join("\n") }))
}

fn charts(places: &Places) -> anyhow::Result<Finding> {
    let source = Source::find(&places.root, true)?;
    let chart = chart::chart(&places.root, &source)?;
    let manifests = chart::manifests(&places.root, &source)?;
    match (chart, manifests) {
        (Some(_), Some(_)) => Ok(fine("")),
        (None, _) => Ok(wrong("there is no chart in packaging")),
        (_, None) => Ok(wrong("there are no manifests in packaging")),
    }
}

fn artifact(places: &Places, name: &str) -> anyhow::Result<Vec<u8>> {
    read(&places.target.join(FOLDER).join(name)).context("run cargo xtask dist")
}

fn provenance_of_head(places: &Places) -> anyhow::Result<Finding> {
    let statement: Value = serde_json::from_slice(&artifact(places, provenance::FILE)?)?;
    let definition = &statement["predicate"]["buildDefinition"];
    let commit = definition["resolvedDependencies"][0]["digest"]["gitCommit"].as_str().unwrap_or_default();
    let version = definition["externalParameters"]["version"].as_str().unwrap_or_default();
    let head = git(&places.root, &["rev-parse", "HEAD"])?;
    if commit != head || version != env!("CARGO_PKG_VERSION") {
        return Ok(wrong(format!("they are of {commit} ({version}), and the head is {head}")));
    }
    Ok(fine(head))
}

/// The names in the list of checksums, each with what it must be.
fn listed(places: &Places) -> anyhow::Result<Vec<(String, String)>> {
    let list = String::from_utf8(artifact(places, signature::LIST)?)?;
    let line = |line: &str| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned()));
    Ok(list.lines().filter_map(line).collect())
}

fn checksums(places: &Places) -> anyhow::Result<Finding> {
    let listed = listed(places)?;
    for (name, sum) in &listed {
        if ebpf_object::sha256(&artifact(places, name)?) != *sum {
            return Ok(wrong(format!("{name} has another")));
        }
    }
    let folder = places.target.join(FOLDER);
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_list = name == signature::LIST || name == signature::SIGNATURE;
        if !is_list && !listed.iter().any(|(known, _)| *known == name) {
            return Ok(wrong(format!("{name} is not in {}", signature::LIST)));
        }
    }
    if listed.is_empty() {
        return Ok(wrong("the list is empty"));
    }
    Ok(fine(format!("{} files", listed.len())))
}

fn reproduced_here(places: &Places) -> anyhow::Result<Finding> {
    let list = artifact(places, signature::LIST)?;
    match fs::read(places.target.join(reproduced::PROOF)) {
        Ok(proof) if proof == list => Ok(fine("")),
        Ok(_) => Ok(wrong("those were of other artifacts: cargo xtask dist --check-reproducible")),
        Err(_) => Ok(Finding::NotChecked("cargo xtask dist --check-reproducible does".to_owned())),
    }
}

fn size(places: &Places) -> anyhow::Result<Finding> {
    let arch = Arch::X86_64;
    let path = places.target.join(arch.release()).join("enforcer");
    let size = binary::stripped(arch, &path).context("run cargo xtask dist")?;
    let said = format!("{} of {} MiB", super::mib(size), super::mib(binary::MAX_BYTES));
    if size > binary::MAX_BYTES { Ok(wrong(said)) } else { Ok(fine(said)) }
}

fn packages(places: &Places) -> anyhow::Result<Finding> {
    let folder = places.target.join(FOLDER);
    let mut count = 0_u32;
    for (name, _) in listed(places)? {
        let mut command = match Path::new(&name).extension().and_then(|extension| extension.to_str()) {
            Some("deb") => Command::new("dpkg-deb"),
            Some("rpm") => Command::new("rpm"),
            _ => continue,
        };
        if run::output(Command::new(command.get_program()).arg("--version")).is_err() {
            let program = command.get_program().to_string_lossy().into_owned();
            return Ok(Finding::NotChecked(format!("there is no {program}")));
        }
        let is_rpm = command.get_program() == "rpm";
        command.arg(if is_rpm { "-qpl" } else { "--contents" }).arg(folder.join(&name));
        if !run::text(&mut command)?.contains("/usr/bin/enforcer") {
            bail!("{name} does not install /usr/bin/enforcer");
        }
        count += 1;
    }
    if count == 0 { Ok(wrong("there are none")) } else { Ok(fine(format!("{count} packages"))) }
}

fn signed(places: &Places) -> anyhow::Result<Finding> {
    let public = places.root.join(signature::PUBLIC);
    let folder = places.target.join(FOLDER);
    if !folder.join(signature::SIGNATURE).exists() {
        return Ok(wrong(format!("unsigned: {} named no key", signature::KEY_VARIABLE)));
    }
    if !public.exists() {
        return Ok(wrong(format!("users cannot verify it: commit the public key as {}", signature::PUBLIC)));
    }
    signature::verify(&public, &folder)?;
    Ok(fine(signature::PUBLIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(folder: &Path) -> Places {
        Places { root: folder.to_owned(), target: folder.join("target"), cache: folder.join("cache") }
    }

    #[test]
    fn a_changed_file_and_one_that_is_not_listed_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let places = places(folder.path());
        let dist = places.target.join(FOLDER);
        fs::create_dir_all(&dist).unwrap();
        let put = |name: &str, text: &str| fs::write(dist.join(name), text).unwrap();
        let said = |finding: anyhow::Result<Finding>| match finding {
            Ok(Finding::Fine(said)) => format!("ok {said}"),
            Ok(Finding::Wrong(said)) => format!("wrong {said}"),
            Ok(Finding::NotChecked(said)) => format!("not checked {said}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(checksums(&places)), "run cargo xtask dist");
        put("a", "abc");
        put("SHA256SUMS", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n");
        assert_eq!(said(checksums(&places)), "ok 1 files");
        put("b", "");
        assert_eq!(said(checksums(&places)), "wrong b is not in SHA256SUMS");
        put("a", "abd");
        assert_eq!(said(checksums(&places)), "wrong a has another");

        assert_eq!(said(signed(&places)), "wrong unsigned: ENFORCER_SIGNING_KEY named no key");
        assert_eq!(said(reproduced_here(&places)), "not checked cargo xtask dist --check-reproducible does");
        fs::write(places.target.join(reproduced::PROOF), "of others").unwrap();
        assert!(said(reproduced_here(&places)).starts_with("wrong those were of other artifacts"));
    }

    #[test]
    fn a_database_that_is_out_of_reach_is_no_finding_of_its_own() {
        assert!(is_out_of_reach("error: failed to fetch advisory database https://x"));
        assert!(!is_out_of_reach("error[vulnerability]: a bug"));
    }
}
