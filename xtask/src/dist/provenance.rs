//! How artifacts were built: an in-toto statement with SLSA's provenance.
use std::{path::Path, process::Command};

use serde_json::json;

use super::{Artifact, arch::Arch, source::Source};
use crate::run;

/// The file's name.
pub(crate) const FILE: &str = "enforcer.provenance.json";

/// The programs whose versions decide the bytes of artifacts.
const TOOLS: [&[&str]; 5] = [
    &["rustc", "--version", "--verbose"],
    &["cargo", "--version"],
    &["cc", "--version"],
    &["ld", "--version"],
    &["rpmbuild", "--version"],
];

/// What was used beside the sources.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain(Vec<(String, String)>);

impl Toolchain {
    /// Asks each program for its version, in the repository at `root`.
    pub(crate) fn find(root: &Path, arches: &[Arch]) -> anyhow::Result<Self> {
        let mut tools: Vec<Vec<&str>> = TOOLS.iter().map(|tool| tool.to_vec()).collect();
        let cross = arches.iter().filter(|arch| !arch.is_native());
        tools.extend(cross.map(|arch| vec![arch.compiler(), "--version"]));
        let mut found = Vec::new();
        for tool in tools {
            let [name, arguments @ ..] = tool.as_slice() else { continue };
            let said = run::text(Command::new(name).args(arguments).current_dir(root).env("LC_ALL", "C"))?;
            // rustc's lines all belong to its version; others add a licence.
            let lines = if *name == "rustc" { usize::MAX } else { 1 };
            let version: Vec<&str> = said.lines().take(lines).collect();
            found.push(((*name).to_owned(), version.join("\n")));
        }
        Ok(Self(found))
    }
}

/// The statement about these artifacts.
pub(crate) fn statement(
    source: &Source,
    arches: &[Arch],
    toolchain: &Toolchain,
    lock: &[u8],
    artifacts: &[Artifact],
) -> anyhow::Result<Vec<u8>> {
    let subject: Vec<_> = artifacts
        .iter()
        .map(|artifact| json!({"name": artifact.name, "digest": {"sha256": ebpf_object::sha256(&artifact.bytes)}}))
        .collect();
    let tools: serde_json::Map<_, _> =
        toolchain.0.iter().map(|(name, version)| (name.clone(), json!(version))).collect();
    let repository = env!("CARGO_PKG_REPOSITORY");
    let command =
        if arches.contains(&Arch::Aarch64) { "cargo xtask dist --arm64" } else { "cargo xtask dist" };
    let statement = json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{repository}/blob/main/docs/releasing.md"),
                "externalParameters": {"command": command, "version": source.version},
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch, "tools": tools},
                "resolvedDependencies": [
                    {"uri": format!("git+{repository}"), "digest": {"gitCommit": source.commit}},
                    {"name": "Cargo.lock", "digest": {"sha256": ebpf_object::sha256(lock)}},
                ],
            },
            // Whoever signs the checksums says that they ran this; there is no service that would.
            "runDetails": {"builder": {"id": format!("{repository}/blob/main/xtask")}},
        },
    });
    Ok([serde_json::to_vec_pretty(&statement)?, b"\n".to_vec()].concat())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::source::tests::a_commit, *};

    #[test]
    fn the_statement_names_artifacts_commit_lock_and_tools() {
        let artifacts = [Artifact { name: "a.deb".to_owned(), bytes: b"abc".to_vec() }];
        let tools = Toolchain(vec![("rustc".to_owned(), "rustc 1.95.0".to_owned())]);
        let statement = statement(&a_commit(), &[Arch::X86_64], &tools, b"abc", &artifacts).unwrap();
        let statement: Value = serde_json::from_slice(&statement).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(statement["subject"], json!([{"name": "a.deb", "digest": {"sha256": abc}}]));
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(definition["resolvedDependencies"][0]["digest"]["gitCommit"], a_commit().commit);
        assert_eq!(definition["resolvedDependencies"][1]["digest"]["sha256"], abc);
        assert_eq!(definition["internalParameters"]["tools"]["rustc"], "rustc 1.95.0");
        assert_eq!(definition["externalParameters"]["command"], "cargo xtask dist");
    }
}
