//! tar and gzip with nothing in them that differs between two runs: one time, root as the owner, a fixed header.
use std::io::Write as _;

use anyhow::{Context as _, bail};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::content::{Node, Tree};

/// A tar archive of these files, each path behind `prefix`, all with the time `epoch`.
pub(crate) fn tar(tree: &Tree, prefix: &str, epoch: u64) -> anyhow::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let folder = Node::Folder;
    let top = (!prefix.is_empty()).then_some(("", &folder));
    for (path, node) in top.into_iter().chain(tree.iter()) {
        let mut header = Header::new_gnu();
        let (bytes, mode, kind, end): (&[u8], _, _, _) = match node {
            Node::Folder if path.is_empty() => (&[], 0o755, EntryType::Directory, ""),
            Node::Folder => (&[], 0o755, EntryType::Directory, "/"),
            Node::File { bytes, mode, .. } => (bytes, *mode, EntryType::Regular, ""),
        };
        name(&mut header, &format!("{prefix}{path}{end}"))?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_username("root")?;
        header.set_groupname("root")?;
        header.set_mtime(epoch);
        header.set_size(u64::try_from(bytes.len())?);
        header.set_cksum();
        archive.append(&header, bytes)?;
    }
    Ok(archive.into_inner()?)
}

/// Sets the path byte by byte: [`Header::set_path`] drops the `./` that packages of Debian begin with.
fn name(header: &mut Header, path: &str) -> anyhow::Result<()> {
    let field = &mut header.as_old_mut().name;
    let Some(place) = field.get_mut(..path.len()) else {
        bail!("the path {path} is longer than the {} bytes that tar has for it", field.len());
    };
    place.copy_from_slice(path.as_bytes());
    Ok(())
}

/// gzip, at its smallest, with neither time nor name in the header.
pub(crate) fn gzip(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    // 255 is an unknown operating system.
    let mut writer = GzBuilder::new().mtime(0).operating_system(255).write(Vec::new(), Compression::best());
    writer.write_all(bytes).context("cannot compress")?;
    writer.finish().context("cannot compress")
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::run;

    #[test]
    fn tar_itself_lists_owner_mode_time_and_order() {
        let mut tree = Tree::default();
        tree.program("usr/bin/b", "text");
        tree.configuration("etc/a", "");
        let bytes = gzip(&tar(&tree, "./", 1_790_000_000).unwrap()).unwrap();
        assert_eq!(bytes, gzip(&tar(&tree, "./", 1_790_000_000).unwrap()).unwrap());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        fs::write(&path, bytes).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-tvzf").arg(&path).args(["--utc", "--full-time"]).env("LC_ALL", "C");
        let listed = run::text(&mut tar).unwrap();
        let listed: Vec<String> =
            listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            listed,
            [
                "drwxr-xr-x root/root 0 2026-09-21 14:13:20 ./",
                "drwxr-xr-x root/root 0 2026-09-21 14:13:20 ./etc/",
                "-rw-r--r-- root/root 0 2026-09-21 14:13:20 ./etc/a",
                "drwxr-xr-x root/root 0 2026-09-21 14:13:20 ./usr/",
                "drwxr-xr-x root/root 0 2026-09-21 14:13:20 ./usr/bin/",
                "-rwxr-xr-x root/root 4 2026-09-21 14:13:20 ./usr/bin/b",
            ]
        );
    }

    #[test]
    fn a_path_that_tar_has_no_room_for_is_an_error() {
        let mut tree = Tree::default();
        tree.file("a".repeat(101), "");
        let error = tar(&tree, "", 0).unwrap_err().to_string();
        assert!(error.ends_with("is longer than the 100 bytes that tar has for it"), "{error}");
    }
}
