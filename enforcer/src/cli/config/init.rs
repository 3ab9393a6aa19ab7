//! `enforcer config init`: writes a first configuration file, and never over another.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use anyhow::anyhow;
use serde_json::json;

use super::super::{Failure, Files, format, format::Output, render::escape};
use crate::{
    config::{self, DEFAULT_PATH},
    daemon,
};

/// What everyone may read and only the owner may change.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// The name of the standard output in place of a file's.
const PRINTED: &str = "-";

pub(super) fn init(files: &Files, output: Output, file: Option<&Path>) -> Result<(), Failure> {
    let reads_none = files.reads_none()?;
    let path = match file.or(files.config.as_deref()) {
        Some(path) => path,
        None if reads_none => {
            return Err(Failure::usage(anyhow!(
                "--no-config leaves no file to write: name one, or - to print"
            )));
        }
        None => Path::new(DEFAULT_PATH),
    };
    if path == Path::new(PRINTED) {
        return format::print_text(&draft()?);
    }
    // Also one that leads nowhere.
    if path.symlink_metadata().is_ok() {
        return Err(exists(path));
    }
    create(path, &draft()?).map_err(|error| not_written(path, error))?;
    format::print(output, &json!({"written": path}), || written(path))
}

fn draft() -> Result<String, Failure> {
    Ok(config::draft(&daemon::machine()?))
}

/// Creates a file with its whole text, and its folder if there is none: whoever reads it meanwhile finds none. Another file
/// of that name is an error.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        DirBuilder::new().mode(FOLDER_MODE).create(folder)?;
        // Whatever the umask: the verbs of other users read the file too.
        fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?;
    }
    let fresh = folder.join(format!(".{}.{}.new", name.to_string_lossy(), std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&fresh)?;
    let created = file
        .set_permissions(Permissions::from_mode(FILE_MODE))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        // Unlike a rename, it replaces nothing.
        .and_then(|()| fs::hard_link(&fresh, path));
    created.and(fs::remove_file(&fresh))
}

fn exists(path: &Path) -> Failure {
    Failure::usage(anyhow!(
        "{} exists, and stays as it is: `enforcer config init -` prints what would be written",
        path.display()
    ))
}

fn not_written(path: &Path, error: io::Error) -> Failure {
    let kind = error.kind();
    if kind == io::ErrorKind::AlreadyExists {
        return exists(path);
    }
    let error = anyhow::Error::new(error).context(format!(
        "cannot write {}: name a file that you may write, or - to print it",
        path.display()
    ));
    if kind == io::ErrorKind::PermissionDenied { Failure::refused(error) } else { error.into() }
}

/// What was done, and what is next.
fn written(path: &Path) -> String {
    let shown = escape(&path.display().to_string());
    let (check, run) = if path == Path::new(DEFAULT_PATH) {
        (String::new(), String::from("enforcer run, or by its unit: systemctl enable --now enforcer"))
    } else {
        (format!(" {shown}"), format!("enforcer run --config {shown}"))
    };
    format!("written:  {shown}\ncheck it: enforcer config check{check}\nrun it:   {run}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_created_whole_and_never_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc/config.yaml");
        create(&path, "one").unwrap();
        for (path, mode) in [(path.as_path(), FILE_MODE), (path.parent().unwrap(), FOLDER_MODE)] {
            let is = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(is, mode, "{}", path.display());
        }
        let error = create(&path, "two").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert!(not_written(&path, error).to_string().contains("exists, and stays as it is"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        let names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["config.yaml"], "nothing else is left");
        // A folder is made, not a whole path: that is more likely mistyped.
        assert!(create(&dir.path().join("no/such/config.yaml"), "").is_err());
    }

    #[test]
    fn what_is_next_names_a_file_that_is_not_found_by_itself() {
        let printed = written(Path::new(DEFAULT_PATH));
        assert!(printed.contains("enforcer config check\n") && printed.contains("enable --now"), "{printed}");
        let printed = written(Path::new("draft.yaml"));
        assert!(
            printed.contains("check draft.yaml\n") && printed.contains("--config draft.yaml\n"),
            "{printed}"
        );
    }
}
