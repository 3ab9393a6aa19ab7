//! Which files packages and the image have, and where.
use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail};

use super::{archive::gzip, content::Tree, licences::Texts, read, source::Source};
use crate::run;

/// Where licences and documentation go.
const DOC: &str = "usr/share/doc/enforcer";

/// Who reads the completions of zsh: Debian has a folder of its own for packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Debian,
    Other,
}

/// What is the same for every architecture: all but the program.
#[derive(Debug)]
pub(crate) struct Shared {
    files: Tree,
    zsh: Vec<u8>,
    licences: Tree,
}

impl Shared {
    /// Reads the files of the repository, and has `program`, which must run here, print completions and manual pages.
    pub(crate) fn collect(
        root: &Path,
        source: &Source,
        program: &Path,
        texts: &Texts,
    ) -> anyhow::Result<Self> {
        let said =
            |arguments: &[&str]| run::output(Command::new(program).args(arguments).env("NO_COLOR", "1"));
        let mut files = Tree::default();
        for unit in ["enforcer.service", "enforcer.slice"] {
            files.file(
                format!("usr/lib/systemd/system/{unit}"),
                read(&root.join("packaging/systemd").join(unit))?,
            );
        }
        files.file(
            "usr/lib/systemd/catalog/enforcer.catalog",
            read(&root.join("packaging/enforcer.catalog"))?,
        );
        files.configuration("etc/enforcer/config.yaml", read(&root.join("packaging/config.yaml"))?);
        files.folder("etc/enforcer/pods");
        files.file("usr/share/bash-completion/completions/enforcer", said(&["completions", "bash"])?);
        files.file("usr/share/fish/vendor_completions.d/enforcer.fish", said(&["completions", "fish"])?);
        manual(&mut files, source, program)?;
        documentation(&mut files, root)?;
        let licences = licences(root, texts)?;
        Ok(Self { files, zsh: said(&["completions", "zsh"])?, licences })
    }

    /// What a package installs.
    pub(crate) fn package(&self, layout: Layout, program: &[u8]) -> Tree {
        let mut files = self.files.clone();
        let folder = match layout {
            Layout::Debian => "vendor-completions",
            Layout::Other => "site-functions",
        };
        files.file(format!("usr/share/zsh/{folder}/_enforcer"), self.zsh.clone());
        files.merge(&self.licences);
        files.program("usr/bin/enforcer", program);
        files
    }

    /// What the image has: the program, and the licences of all that is in it.
    pub(crate) fn image(&self, program: &[u8]) -> Tree {
        let mut files = self.licences.clone();
        files.program("usr/bin/enforcer", program);
        files
    }
}

/// The manual pages, compressed as manuals are.
fn manual(files: &mut Tree, source: &Source, program: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut man = Command::new(program);
    man.args(["man", "--dir"]).arg(folder.path()).env("SOURCE_DATE_EPOCH", source.epoch.to_string());
    run::output(&mut man)?;
    for (name, bytes) in folder_files(folder.path())? {
        files.file(format!("usr/share/man/man1/{name}.gz"), gzip(&bytes)?);
    }
    Ok(())
}

/// README, changelog, the pages of `docs`, and what monitors the daemon.
fn documentation(files: &mut Tree, root: &Path) -> anyhow::Result<()> {
    files.file(format!("{DOC}/README.md"), read(&root.join("README.md"))?);
    files.file(format!("{DOC}/changelog.gz"), gzip(&read(&root.join("CHANGELOG.md"))?)?);
    for folder in ["docs", "docs/consumers", "docs/pictures", "docs/runbooks"] {
        for (name, bytes) in folder_files(&root.join(folder))? {
            files.file(format!("{DOC}/{folder}/{name}"), bytes);
        }
    }
    for (folder, file) in [
        ("prometheus", "enforcer.rules.yaml"),
        ("prometheus", "enforcer-fleet.rules.yaml"),
        ("grafana", "enforcer-node.json"),
        ("grafana", "enforcer-fleet.json"),
    ] {
        files.file(
            format!("usr/share/enforcer/{file}"),
            read(&root.join("packaging").join(folder).join(file))?,
        );
    }
    Ok(())
}

fn licences(root: &Path, texts: &Texts) -> anyhow::Result<Tree> {
    let mut files = Tree::default();
    files.file(format!("{DOC}/copyright"), read(&root.join("packaging/licences/copyright"))?);
    for own in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.file(format!("{DOC}/{own}"), read(&root.join(own))?);
    }
    files.file(format!("{DOC}/THIRD-PARTY.gz"), gzip(texts.third_party.as_bytes())?);
    files.file(format!("{DOC}/rust-library.html.gz"), gzip(&texts.rust_library)?);
    Ok(files)
}

/// The files right in a folder, by name.
fn folder_files(folder: &Path) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("{} is not UTF-8", entry.path().display()))?;
            found.push((name.to_owned(), read(&entry.path())?));
        }
    }
    if found.is_empty() {
        bail!("there are no files in {}", folder.display());
    }
    found.sort();
    Ok(found)
}

/// The files below a folder, by path.
pub(crate) fn below(folder: &Path) -> anyhow::Result<Tree> {
    let mut tree = Tree::default();
    let mut folders = vec![String::new()];
    while let Some(inner) = folders.pop() {
        let path = folder.join(&inner);
        for entry in fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("{} is not UTF-8", entry.path().display()))?;
            let name = if inner.is_empty() { name.to_owned() } else { format!("{inner}/{name}") };
            if entry.file_type()?.is_dir() {
                folders.push(name);
            } else {
                tree.file(name, read(&entry.path())?);
            }
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Shared {
        let mut files = Tree::default();
        files.configuration("etc/enforcer/config.yaml", "");
        let mut licences = Tree::default();
        licences.file(format!("{DOC}/LICENSE-MIT"), "");
        Shared { files, zsh: b"#compdef enforcer\n".to_vec(), licences }
    }

    fn paths(tree: &Tree) -> Vec<&str> {
        tree.iter().map(|(path, _)| path).filter(|path| path.contains("nforcer")).collect()
    }

    #[test]
    fn the_image_has_the_program_and_the_licences_alone() {
        let image = shared().image(b"1");
        assert_eq!(paths(&image), ["usr/bin/enforcer", DOC, &format!("{DOC}/LICENSE-MIT")]);
    }

    #[test]
    fn packages_differ_in_where_zsh_finds_completions() {
        let at = |layout, path: &str| paths(&shared().package(layout, b"1")).contains(&path);
        assert!(at(Layout::Debian, "usr/share/zsh/vendor-completions/_enforcer"));
        assert!(at(Layout::Other, "usr/share/zsh/site-functions/_enforcer"));
        assert!(at(Layout::Other, "etc/enforcer/config.yaml") && at(Layout::Other, "usr/bin/enforcer"));
    }
}
