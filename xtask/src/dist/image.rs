//! The image for containers: an OCI layout of one layer, in one tar archive, made without a container engine.
use anyhow::Context as _;
use serde_json::{Value, json};

use super::{
    arch::Arch,
    archive::{gzip, tar},
    content::Tree,
    source::Source,
};

/// The image's name without its tag.
pub(crate) const NAME: &str = "ghcr.io/enforcer-dev/enforcer";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// The archive, which `podman load` and `ctr image import` take. `files` are all that is in the image.
pub(crate) fn archive(source: &Source, arch: Arch, files: &Tree) -> anyhow::Result<Vec<u8>> {
    let layer = tar(files, "", source.epoch)?;
    let mut layout = Tree::default();
    let packed = blob(&mut layout, gzip(&layer)?, LAYER)?;
    let config = json!({
        "created": source.time,
        "architecture": arch.short(),
        "os": "linux",
        "config": {
            // Cgroups, scores and eBPF are root's.
            "User": "0:0",
            "Entrypoint": ["/usr/bin/enforcer"],
            "Cmd": ["run"],
            "Env": ["PATH=/usr/bin"],
            "Labels": labels(source),
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        "history": [{"created": source.time, "created_by": "cargo xtask dist"}],
    });
    let config = blob(&mut layout, text(&config)?, CONFIG)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": [packed],
        "annotations": labels(source),
    });
    let mut manifest = blob(&mut layout, text(&manifest)?, MANIFEST)?;
    let name = format!("{NAME}:{}", source.tag());
    add(&mut manifest, "platform", json!({"architecture": arch.short(), "os": "linux"}))?;
    // containerd names the image by the first, podman by the second.
    let names = json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name});
    add(&mut manifest, "annotations", names)?;
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    layout.file("index.json", text(&index)?);
    layout.file("oci-layout", text(&json!({"imageLayoutVersion": "1.0.0"}))?);
    tar(&layout, "", source.epoch)
}

fn labels(source: &Source) -> Value {
    json!({
        "org.opencontainers.image.created": source.time,
        "org.opencontainers.image.description": "Quality of service for the pods of one Linux node",
        "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY"),
        "org.opencontainers.image.title": "enforcer",
        "org.opencontainers.image.version": source.version,
    })
}

/// Adds content to the layout, and returns what refers to it.
fn blob(layout: &mut Tree, bytes: Vec<u8>, kind: &str) -> anyhow::Result<Value> {
    let digest = digest(&bytes);
    let reference = json!({"mediaType": kind, "digest": digest, "size": bytes.len()});
    let hash = digest.strip_prefix("sha256:").context("a digest names its algorithm")?;
    layout.file(format!("blobs/sha256/{hash}"), bytes);
    Ok(reference)
}

fn add(object: &mut Value, key: &str, value: Value) -> anyhow::Result<()> {
    object.as_object_mut().context("a reference is an object")?.insert(key.to_owned(), value);
    Ok(())
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", ebpf_object::sha256(bytes))
}

fn text(value: &Value) -> anyhow::Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        io::{Cursor, Read as _},
    };

    use flate2::read::GzDecoder;

    use super::{super::source::tests::a_commit, *};

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(Cursor::new(archive));
        let mut files = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        files
    }

    /// Follows a reference as an engine does: the blob has the size and the digest that it says.
    fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, reference: &Value) -> &'a [u8] {
        let digest = reference["digest"].as_str().unwrap();
        let bytes = &files[&format!("blobs/{}", digest.replace(':', "/"))];
        assert_eq!(super::digest(bytes), digest);
        assert_eq!(reference["size"], bytes.len());
        bytes
    }

    #[test]
    fn every_reference_of_the_layout_leads_to_the_content_that_it_names() {
        let mut content = Tree::default();
        content.program("usr/bin/enforcer", "binary");
        let image = archive(&a_commit(), Arch::Aarch64, &content).unwrap();
        assert!(image == archive(&a_commit(), Arch::Aarch64, &content).unwrap(), "two runs differ");

        let layout = files(&image);
        let parse = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        assert_eq!(parse(&layout["oci-layout"]), json!({"imageLayoutVersion": "1.0.0"}));
        let index = parse(&layout["index.json"]);
        let reference = &index["manifests"][0];
        assert_eq!(reference["platform"]["architecture"], "arm64");
        let name = &reference["annotations"]["org.opencontainers.image.ref.name"];
        assert_eq!(name, "ghcr.io/enforcer-dev/enforcer:0.2.0");
        let manifest = parse(follow(&layout, reference));
        let config = parse(follow(&layout, &manifest["config"]));
        let mut layer = Vec::new();
        GzDecoder::new(follow(&layout, &manifest["layers"][0])).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], digest(&layer));
        assert_eq!(files(&layer)["usr/bin/enforcer"], b"binary");
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/enforcer");
    }
}
