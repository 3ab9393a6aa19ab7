//! Small files that survive a power cut.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Writes a file durably and atomically: it survives a power cut, and a reader finds the old content or the new one.
pub(crate) fn write_file(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    let (path, fresh) = (dir.join(name), dir.join(format!(".{name}.new")));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&fresh)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&fresh, &path)?;
    File::open(dir)?.sync_all()
}
