//! The images of a node that has no registry: archives with one program, as `docker save` writes them.
use std::{fmt::Write as _, io::Write as _};

use anyhow::{Context as _, ensure};
use hmac_sha256::Hash;
use serde_json::json;

/// The program in the images.
pub(super) const PROGRAM: &str = "workload";

/// The image for tests.
const WORKLOAD: &str = "localhost/workload:latest";

/// The image of sandboxes: the same program, which only waits.
pub(super) const PAUSE: &str = "localhost/pause:latest";

/// Where a container has the program.
const PLACE: &str = "bin/workload";

/// An archive with both images, which share their one layer.
pub(super) fn archive(program: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut layer = Tar::default();
    layer.folder("bin/", 0o755)?;
    layer.folder("tmp/", 0o1777)?;
    layer.file(PLACE, 0o755, program)?;
    let layer = layer.finish();
    let mut digest = String::from("sha256:");
    for byte in Hash::hash(&layer) {
        write!(digest, "{byte:02x}")?;
    }
    let entry = format!("/{PLACE}");
    let images = [("workload.json", WORKLOAD, json!([entry])), ("pause.json", PAUSE, json!([entry, "wait"]))];
    let manifest: Vec<_> = images
        .iter()
        .map(|(config, name, _)| json!({"Config": config, "RepoTags": [name], "Layers": ["layer.tar"]}))
        .collect();
    let mut archive = Tar::default();
    archive.file("manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
    for (config, _, entry) in images {
        let content = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entry, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest]},
        });
        archive.file(config, 0o644, &serde_json::to_vec(&content)?)?;
    }
    archive.file("layer.tar", 0o644, &layer)?;
    Ok(archive.finish())
}

/// An archive in POSIX's format "ustar". Everything is root's, and of the epoch: the same content is the same archive.
#[derive(Debug, Default)]
struct Tar(Vec<u8>);

impl Tar {
    const BLOCK: usize = 512;

    fn folder(&mut self, name: &str, mode: u32) -> anyhow::Result<()> {
        self.entry(name, mode, b'5', &[])
    }

    fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        self.entry(name, mode, b'0', content)
    }

    fn entry(&mut self, name: &str, mode: u32, kind: u8, content: &[u8]) -> anyhow::Result<()> {
        ensure!(name.len() < 100, "{name} is too long for an archive");
        let mut header = Vec::with_capacity(Self::BLOCK);
        write!(header, "{name}")?;
        header.resize(100, 0);
        write!(header, "{mode:07o}\0{:07o}\0{:07o}\0{:011o}\0{:011o}\0", 0, 0, content.len(), 0)?;
        // The checksum counts itself as spaces.
        let at = header.len();
        header.extend_from_slice(b"        ");
        header.push(kind);
        header.resize(257, 0);
        header.extend_from_slice(b"ustar\x0000");
        header.resize(Self::BLOCK, 0);
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        let field = header.get_mut(at..at + 8).context("a header has a checksum")?;
        field.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(Self::BLOCK), 0);
        Ok(())
    }

    /// Two empty blocks are its end.
    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * Self::BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, process::Command};

    use super::*;
    use crate::run;

    fn unpack(bytes: &[u8], into: &Path) {
        let file = into.join("archive.tar");
        fs::write(&file, bytes).unwrap();
        run::output(Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(into)).unwrap();
    }

    #[test]
    fn the_images_unpack_to_the_program_and_name_their_layer() {
        let (outer, inner) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let program = vec![7; 1_000];
        unpack(&archive(&program).unwrap(), outer.path());
        let layer = fs::read(outer.path().join("layer.tar")).unwrap();
        unpack(&layer, inner.path());
        assert_eq!(fs::read(inner.path().join(PLACE)).unwrap(), program);
        let config = fs::read_to_string(outer.path().join("pause.json")).unwrap();
        let sum = run::text(Command::new("sha256sum").arg(outer.path().join("layer.tar"))).unwrap();
        assert!(config.contains(sum.split_whitespace().next().unwrap()), "{config}");
        let manifest = fs::read_to_string(outer.path().join("manifest.json")).unwrap();
        assert!(manifest.contains(WORKLOAD) && manifest.contains(PAUSE), "{manifest}");
    }
}
