//! What the binary is made of: the packages that are linked into it and into its eBPF object, with their licences and
//! checksums.
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::arch::Arch;
use crate::{build, places::Places, run};

/// A package at one version.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// What cargo calls it.
    pub(crate) id: String,
    /// The SPDX expression of its licence.
    pub(crate) license: Option<String>,
    pub(crate) repository: Option<String>,
    /// Where it comes from; none for the packages of the workspace.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    /// The SHA-256 of the registry's archive, from `Cargo.lock`.
    #[serde(skip)]
    pub(crate) checksum: Option<String>,
    /// The ids of the packages that it uses, of those that are linked.
    #[serde(skip)]
    pub(crate) uses: Vec<String>,
}

impl Package {
    /// The licence as SPDX writes it today: `/` once meant a choice.
    pub(crate) fn licence(&self) -> anyhow::Result<String> {
        let licence = self.license.as_deref().filter(|licence| !licence.trim().is_empty());
        let licence = licence.with_context(|| format!("{} {} names no licence", self.name, self.version))?;
        Ok(licence.replace('/', " OR ").split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The folder of its source.
    pub(crate) fn folder(&self) -> anyhow::Result<&Path> {
        self.manifest_path.parent().with_context(|| format!("{} is in no folder", self.name))
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

/// The packages that are linked, by name and version. Build scripts, procedural macros and what tests need are not among them.
pub(crate) fn find(places: &Places, arch: Arch) -> anyhow::Result<Vec<Package>> {
    let mut linked = linked(places, "enforcer", arch.target())?;
    linked.extend(self::linked(places, "enforcer-ebpf", arch.target())?);
    let mut metadata = build::cargo(places);
    metadata.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", arch.target()]);
    let metadata = run::text(&mut metadata)?;
    let lock = places.root.join("Cargo.lock");
    let lock = String::from_utf8(super::read(&lock)?).context("Cargo.lock is not text")?;
    join(&linked, &metadata, &lock)
}

/// What cargo's own resolution of features links: names and versions.
fn linked(places: &Places, root: &str, target: &str) -> anyhow::Result<BTreeSet<(String, String)>> {
    let mut tree = build::cargo(places);
    tree.args(["tree", "--locked", "--package", root, "--target", target, "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--format", "{p}"]);
    Ok(named(&run::text(&mut tree)?))
}

fn named(tree: &str) -> BTreeSet<(String, String)> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    tree.lines().filter_map(line).collect()
}

fn join(linked: &BTreeSet<(String, String)>, metadata: &str, lock: &str) -> anyhow::Result<Vec<Package>> {
    let Metadata { packages, resolve } =
        serde_json::from_str(metadata).context("cannot read what `cargo metadata` said")?;
    let checksums = checksums(lock);
    let key = |package: &Package| (package.name.clone(), package.version.clone());
    let mut found: Vec<Package> =
        packages.into_iter().filter(|package| linked.contains(&key(package))).collect();
    found.sort_by_key(key);
    if found.len() != linked.len() {
        let missing: Vec<_> =
            linked.iter().filter(|entry| !found.iter().any(|package| key(package) == **entry)).collect();
        bail!("`cargo tree` and `cargo metadata` disagree on {missing:?}");
    }
    let ids: BTreeSet<String> = found.iter().map(|package| package.id.clone()).collect();
    let nodes: BTreeMap<String, Vec<String>> =
        resolve.nodes.into_iter().map(|node| (node.id, node.dependencies)).collect();
    for package in &mut found {
        let uses = nodes.get(&package.id).into_iter().flatten().filter(|id| ids.contains(*id));
        package.uses = uses.cloned().collect();
        package.checksum = checksums.get(&key(package)).cloned();
        match &package.source {
            Some(source) if source != "registry+https://github.com/rust-lang/crates.io-index" => {
                bail!("{} {} comes from {source}, not from crates.io", package.name, package.version);
            }
            Some(_) if package.checksum.is_none() => {
                bail!("Cargo.lock has no checksum of {} {}", package.name, package.version);
            }
            Some(_) | None => {}
        }
    }
    Ok(found)
}

fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let block = |block: &str| {
        let value = |key: &str| {
            let mut lines = block.lines();
            let value =
                lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'));
            value.map(str::to_owned)
        };
        Some(((value("name")?, value("version")?), value("checksum")?))
    };
    lock.split("[[package]]").filter_map(block).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A package of the registry.
    pub(crate) fn package(name: &str, licence: &str) -> Package {
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            id: format!("registry#{name}@1.0.0"),
            license: Some(licence.to_owned()),
            repository: None,
            source: Some("registry+https://github.com/rust-lang/crates.io-index".to_owned()),
            manifest_path: PathBuf::from("/crates/a/Cargo.toml"),
            checksum: Some("ab".repeat(32)),
            uses: Vec::new(),
        }
    }

    const LOCK: &str = "[[package]]\nname = \"b\"\nversion = \"1.0.0\"\nchecksum = \"cafe\"\n";

    fn metadata(source: &str) -> String {
        format!(
            r#"{{"packages": [
                {{"name": "a", "version": "0.1.0", "id": "path#a", "license": "MIT", "repository": null, "source": null, "manifest_path": "/a/Cargo.toml"}},
                {{"name": "b", "version": "1.0.0", "id": "r#b", "license": "MIT/Apache-2.0", "repository": null, "source": "{source}", "manifest_path": "/b/Cargo.toml"}},
                {{"name": "c", "version": "1.0.0", "id": "r#c", "license": "MIT", "repository": null, "source": null, "manifest_path": "/c/Cargo.toml"}}],
              "resolve": {{"nodes": [{{"id": "path#a", "dependencies": ["r#b", "r#c"]}}, {{"id": "r#b", "dependencies": []}}]}}}}"#
        )
    }

    #[test]
    fn what_is_linked_has_checksum_licence_and_edges_and_nothing_else_is_there() {
        let linked = named("a v0.1.0 (/a)\nb v1.0.0\nb v1.0.0 (*)\n\n");
        let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
        let found = join(&linked, &metadata(crates_io), LOCK).unwrap();
        let [a, b] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((a.checksum.as_deref(), a.uses.as_slice()), (None, &["r#b".to_owned()][..]));
        assert_eq!(b.checksum.as_deref(), Some("cafe"));
        assert_eq!(b.licence().unwrap(), "MIT OR Apache-2.0");
    }

    #[test]
    fn other_registries_missing_checksums_and_disagreement_are_errors() {
        let linked = named("b v1.0.0");
        let failure =
            |linked: &_, source: &str, lock| join(linked, &metadata(source), lock).unwrap_err().to_string();
        let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
        assert_eq!(
            failure(&linked, "git+https://x", LOCK),
            "b 1.0.0 comes from git+https://x, not from crates.io"
        );
        assert_eq!(failure(&linked, crates_io, ""), "Cargo.lock has no checksum of b 1.0.0");
        let error = failure(&named("d v1.0.0"), crates_io, LOCK);
        assert_eq!(error, "`cargo tree` and `cargo metadata` disagree on [(\"d\", \"1.0.0\")]");
        let unnamed = Package { license: None, ..package("e", "") };
        assert_eq!(unnamed.licence().unwrap_err().to_string(), "e 1.0.0 names no licence");
    }
}
