//! Files of an archive below folders that it makes as they are needed.
use std::{collections::BTreeSet, fs, io::Write, os::unix::fs::PermissionsExt as _, path::Path};

use anyhow::Context as _;

use crate::guest::{cpio::Archive, initramfs};

/// The folders that an archive has so far beyond the base's.
#[derive(Debug, Default)]
pub(super) struct Folders(BTreeSet<String>);

impl Folders {
    /// Makes the folders above a file.
    pub(super) fn make<W: Write>(&mut self, archive: &mut Archive<W>, name: &str) -> anyhow::Result<()> {
        for (end, _) in name.match_indices('/') {
            let folder = name.get(..end).unwrap_or_default();
            if !initramfs::is_base_path(folder) && self.0.insert(folder.to_owned()) {
                archive.directory(folder)?;
            }
        }
        Ok(())
    }

    /// Adds a file of the host, following links: the guest gets the content under the one name that is used.
    pub(super) fn file<W: Write>(
        &mut self,
        archive: &mut Archive<W>,
        name: &str,
        host: &Path,
    ) -> anyhow::Result<()> {
        self.make(archive, name)?;
        let content = fs::read(host).with_context(|| format!("cannot read {}", host.display()))?;
        let executable = fs::metadata(host)?.permissions().mode() & 0o111 != 0;
        archive.file(name, if executable { 0o755 } else { 0o644 }, &content)
    }
}
