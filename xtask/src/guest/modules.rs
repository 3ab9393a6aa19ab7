//! Kernel modules: which ones a guest needs, and in which order.
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::run;

/// The modules that guests use; what is built into the kernel has no module.
///
/// The console device and its bus carry the script's output; zram makes swap, which older kernels compress with a
/// module that it does not name; overlay and loop are what container runtimes sit on.
const WANTED: &[&str] = &["virtio_pci", "virtio_console", "lzo_rle", "zram", "overlay", "loop"];

/// One module: its path below the modules' folder, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) image: Vec<u8>,
}

/// The wanted modules of an unpacked kernel package with all that they depend on, dependencies first.
pub(crate) fn collect(folder: &Path) -> anyhow::Result<Vec<Module>> {
    let mut files = BTreeMap::new();
    find(folder, &mut files)?;
    let mut collected = Vec::new();
    for name in WANTED {
        add(name, &files, &mut collected)?;
    }
    Ok(collected)
}

fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, files)?;
        } else if let Some((name, _)) = entry.file_name().to_str().and_then(|name| name.split_once(".ko")) {
            // A module's own name has underscores, whatever its file is called.
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn add(name: &str, files: &BTreeMap<String, PathBuf>, collected: &mut Vec<Module>) -> anyhow::Result<()> {
    let Some(path) = files.get(name) else { return Ok(()) };
    if collected.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let image = read(path)?;
    for dependency in dependencies(&image) {
        if !files.contains_key(&dependency) {
            bail!("the module {name} depends on {dependency}, which is not in the package");
        }
        add(&dependency, files, collected)?;
    }
    collected.push(Module { name: name.to_owned(), image });
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => bail!("{} is packed in an unknown way", path.display()),
    };
    run::output(Command::new(unpacker).arg("-dc").arg(path))
}

/// The `depends=` line of a module's own information.
fn dependencies(image: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(begin) = image.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = image.get(begin + KEY.len()..).unwrap_or_default();
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(depends: &str) -> Vec<u8> {
        format!("\x7fELF…\0license=GPL\0depends={depends}\0retpoline=Y\0").into_bytes()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("drivers");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("virtio_pci.ko"), module("virtio,virtio-ring")).unwrap();
        fs::write(below.join("virtio_console.ko"), module("virtio")).unwrap();
        fs::write(below.join("virtio.ko"), module("virtio_ring")).unwrap();
        fs::write(below.join("virtio-ring.ko"), module("")).unwrap();
        let names: Vec<_> = collect(folder.path()).unwrap().into_iter().map(|module| module.name).collect();
        assert_eq!(names, ["virtio_ring", "virtio", "virtio_pci", "virtio_console"]);
    }

    #[test]
    fn missing_dependency_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("zram.ko"), module("zsmalloc")).unwrap();
        let error = collect(folder.path()).unwrap_err().to_string();
        assert_eq!(error, "the module zram depends on zsmalloc, which is not in the package");
    }
}
