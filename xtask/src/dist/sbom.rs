//! The bill of materials of the binary, in the format `CycloneDX` 1.5.
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{arch::Arch, inventory::Package, source::Source};

/// A library that is linked and that no `Cargo.toml` names.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) licence: &'static str,
}

/// The document. `binary` is the SHA-256 of the program that it describes.
pub(crate) fn document(
    source: &Source,
    arch: Arch,
    binary: &str,
    natives: &[Native],
    packages: &[Package],
) -> anyhow::Result<Vec<u8>> {
    // Cargo's ids name folders of the machine; these do not.
    let references: BTreeMap<&str, String> =
        packages.iter().map(|package| (package.id.as_str(), reference(package))).collect();
    let root = format!("enforcer@{}-{}", source.version, arch.name());
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    let mut direct = Vec::new();
    for package in packages {
        components.push(component(package)?);
        let mut uses: Vec<_> = package.uses.iter().filter_map(|id| references.get(id.as_str())).collect();
        uses.sort();
        dependencies.push(json!({"ref": reference(package), "dependsOn": uses}));
        if package.source.is_none() {
            direct.push(reference(package));
        }
    }
    for Native { name, version, licence } in natives {
        let url = format!("pkg:generic/{name}@{version}");
        components.push(json!({
            "type": "library",
            "bom-ref": url,
            "name": name,
            "version": version,
            "licenses": [{"expression": licence}],
            "purl": url,
        }));
        dependencies.push(json!({"ref": url, "dependsOn": []}));
        direct.push(url);
    }
    dependencies.push(json!({"ref": root, "dependsOn": direct}));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": format!("urn:uuid:{}", uuid(&format!("{root} {}", source.commit))),
        "version": 1,
        "metadata": {
            "timestamp": source.time,
            "tools": {"components": [{"type": "application", "name": "cargo xtask dist", "version": source.version}]},
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "enforcer",
                "version": source.version,
                "description": "Quality of service for the pods of one Linux node",
                "licenses": [{"expression": "Apache-2.0 OR MIT"}],
                "hashes": [{"alg": "SHA-256", "content": binary}],
                "externalReferences": [{"type": "vcs", "url": env!("CARGO_PKG_REPOSITORY")}],
            },
        },
        "components": components,
        "dependencies": dependencies,
    });
    Ok([serde_json::to_vec_pretty(&document)?, b"\n".to_vec()].concat())
}

fn component(package: &Package) -> anyhow::Result<Value> {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "licenses": [{"expression": package.licence()?}],
    });
    let fields = component.as_object_mut();
    if let (Some(fields), Some(checksum)) = (fields, &package.checksum) {
        fields.insert("purl".to_owned(), json!(reference(package)));
        fields.insert("hashes".to_owned(), json!([{"alg": "SHA-256", "content": checksum}]));
        if let Some(repository) = &package.repository {
            fields.insert("externalReferences".to_owned(), json!([{"type": "vcs", "url": repository}]));
        }
    }
    Ok(component)
}

/// The package's URL; packages of the workspace are in no registry, and have names of our own.
fn reference(package: &Package) -> String {
    let Package { name, version, source, .. } = package;
    let version = version.replace('+', "%2B");
    if source.is_some() {
        format!("pkg:cargo/{name}@{version}")
    } else {
        format!("workspace/{name}@{version}")
    }
}

/// A UUID (of version 8, for ids of one's own making) that is the same for the same text.
fn uuid(text: &str) -> String {
    let hash = ebpf_object::sha256(text.as_bytes());
    let part = |from: usize, to: usize| hash.get(from..to).unwrap_or_default();
    format!("{}-{}-8{}-8{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{inventory::tests::package, source::tests::a_commit},
        *,
    };

    #[test]
    fn components_have_urls_licences_and_checksums_and_every_reference_is_one_of_them() {
        let mut own =
            Package { source: None, checksum: None, ..package("enforcer-events", "Apache-2.0 OR MIT") };
        let serde = Package { version: "1.0.0+a".into(), ..package("serde", "MIT/Apache-2.0") };
        own.uses = vec![serde.id.clone(), "registry#not-linked@1.0.0".to_owned()];
        let packages = [own, serde];
        let glibc = Native { name: "glibc", version: "2.36".into(), licence: "LGPL-2.1-or-later" };
        let make = || {
            document(&a_commit(), Arch::X86_64, &"cd".repeat(32), std::slice::from_ref(&glibc), &packages)
                .unwrap()
        };
        assert_eq!(make(), make());
        let bom: Value = serde_json::from_slice(&make()).unwrap();

        assert_eq!(bom["components"][1]["purl"], "pkg:cargo/serde@1.0.0%2Ba");
        assert_eq!(bom["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["components"][1]["hashes"][0]["content"], "ab".repeat(32));
        assert_eq!(bom["components"][0].get("purl"), None);
        let components = bom["components"].as_array().unwrap().iter().chain([&bom["metadata"]["component"]]);
        let known: Vec<&Value> = components.map(|component| &component["bom-ref"]).collect();
        for dependency in bom["dependencies"].as_array().unwrap() {
            assert!(known.contains(&&dependency["ref"]), "{dependency}");
            for used in dependency["dependsOn"].as_array().unwrap() {
                assert!(known.contains(&used), "{dependency}");
            }
        }
        assert_eq!(bom["dependencies"][0]["dependsOn"], json!(["pkg:cargo/serde@1.0.0%2Ba"]));
        let serial = bom["serialNumber"].as_str().unwrap();
        let lengths: Vec<usize> = serial.trim_start_matches("urn:uuid:").split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{serial}");
    }
}
