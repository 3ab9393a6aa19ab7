//! The proof that artifacts depend on the commit alone: a second build, in a clone of the repository in another folder.
use std::{fs, process::Command};

use anyhow::{Context as _, bail};

use super::{Artifact, arch::Arch, signature, source::Source};
use crate::{places::Places, run, steps::Steps};

/// The file, below cargo's build folder, that has the list of the checksums that a second build gave, too.
pub(crate) const PROOF: &str = "dist-reproduced";

/// Builds the commit in a clone, with a build folder of its own, and compares every artifact.
pub(crate) fn check(
    places: &Places,
    source: &Source,
    arches: &[Arch],
    first: &[Artifact],
) -> anyhow::Result<()> {
    if source.version.contains("+dirty") {
        bail!("changes that are in no commit cannot be built in another folder; commit them");
    }
    let folder = tempfile::Builder::new().prefix("enforcer-again-").tempdir()?;
    // Another depth, too: a length may be where no path is.
    let root = folder.path().join("at/another/depth");
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--no-hardlinks"]).arg(&places.root).arg(&root);
    run::output(&mut clone)?;
    let mut checkout = Command::new("git");
    run::output(checkout.args(["checkout", "--quiet", "--detach", &source.commit]).current_dir(&root))?;
    let again = Places { target: folder.path().join("build"), root, ..places.clone() };
    Steps::Out.say(format_args!("     once more in {}", again.root.display()));
    let second = super::make(&again, &Source::find(&again.root, false)?, arches)?;
    compare(first, &second.artifacts)?;
    let proof = places.target.join(PROOF);
    fs::write(&proof, signature::list(first)).with_context(|| format!("cannot write {}", proof.display()))?;
    Steps::Out.say(format_args!("     {} artifacts are equal byte for byte", first.len()));
    Ok(())
}

fn compare(first: &[Artifact], second: &[Artifact]) -> anyhow::Result<()> {
    let mut differences = Vec::new();
    for artifact in first {
        match second.iter().find(|other| other.name == artifact.name) {
            None => differences.push(format!("{} is made once only", artifact.name)),
            Some(other) if other.bytes != artifact.bytes => differences.push(format!(
                "{} differs from byte {} on",
                artifact.name,
                artifact.bytes.iter().zip(&other.bytes).take_while(|(left, right)| left == right).count()
            )),
            Some(_) => {}
        }
    }
    let known = |other: &&Artifact| first.iter().any(|artifact| artifact.name == other.name);
    let new = second.iter().filter(|other| !known(other));
    differences.extend(new.map(|other| format!("{} is made the second time only", other.name)));
    if differences.is_empty() {
        return Ok(());
    }
    bail!("two builds are not equal:\n{}", differences.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let artifact = |name: &str, text: &str| Artifact { name: name.to_owned(), bytes: text.into() };
        let first = [artifact("a", "same"), artifact("b", "text"), artifact("c", "")];
        assert!(compare(&first, &first).is_ok());
        let second = [artifact("d", ""), artifact("b", "test"), artifact("a", "same")];
        assert_eq!(
            compare(&first, &second).unwrap_err().to_string(),
            "two builds are not equal:\nb differs from byte 2 on\nc is made once only\nd is made the second time only"
        );
    }
}
