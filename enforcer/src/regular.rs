//! Opens files that others name: a named pipe must not block the caller.

use std::{fs::File, io, path::Path};

use rustix::fs::{Mode, OFlags};

/// Opens any file for reading, without waiting for a writer at the other end of a pipe.
pub(crate) fn open_unwaiting(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Opens a regular file for reading; anything else is an error.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = open_unwaiting(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn a_file_is_opened_and_a_pipe_or_a_folder_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let mut text = String::new();
        open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for wrong in [pipe.as_path(), folder.path()] {
            assert_eq!(open(wrong).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", wrong.display());
        }
        assert_eq!(open(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
