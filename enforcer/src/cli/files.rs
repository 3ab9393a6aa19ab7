//! Which configuration a verb uses, and where it looks for the daemon.

use std::{
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::anyhow;

use super::{Failure, render::escape};
use crate::{
    config::{self, Config, Effective},
    serve::{Admin, Observe},
};

/// The variable that says where the daemon's sockets are, as `--socket` does.
const SOCKET_VARIABLE: &str = "ENFORCER_SOCKET";

/// The files that the configuration comes from, and the daemon's socket.
#[derive(Debug, clap::Args)]
pub(super) struct Files {
    /// The configuration file
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// A kubelet's configuration file, which our own overrides
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubelet_config: Option<PathBuf>,
    /// Read no configuration file: every field has its default
    #[arg(long, global = true)]
    pub(super) no_config: bool,
    /// The daemon's socket or the folder of its sockets, instead of the
    /// configuration's runDir; so does the variable `ENFORCER_SOCKET`
    #[arg(long, global = true, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

impl Files {
    /// What the files say, wherever the daemon is asked: they must be right.
    pub(super) fn effective(&self) -> Result<Effective, Failure> {
        if self.reads_none()? {
            Effective::parse(None, None)
        } else {
            Effective::load(self.config.as_deref(), self.kubelet_config.as_deref())
        }
        .map_err(|error| Failure::usage(error.into()))
    }

    /// The configuration for a verb whose answer depends on it, and that asks the daemon too.
    pub(super) fn configured(&self) -> Result<Effective, Failure> {
        let mut effective = self.effective()?;
        if let Some(run_dir) = self.run_dir()? {
            effective.config.run_dir = run_dir;
        }
        Ok(effective)
    }

    /// The configuration for a verb that asks the daemon and reads its directories: a mistake in a file is a warning.
    pub(super) fn for_asking(&self) -> Result<Config, Failure> {
        let run_dir = self.run_dir()?;
        let (mut config, wrong) = if self.reads_none()? {
            (Config::default(), None)
        } else {
            Effective::directories(self.config.as_deref(), self.kubelet_config.as_deref())
        };
        config.run_dir = run_dir.unwrap_or(config.run_dir);
        match wrong {
            None => {}
            // Who names a file means the daemon that runs with it, and not another one.
            Some(error @ config::Error::Read { .. }) if self.names_files() => {
                return Err(Failure::usage(error.into()));
            }
            Some(error) => warn(&config, &error),
        }
        Ok(config)
    }

    fn names_files(&self) -> bool {
        self.config.is_some() || self.kubelet_config.is_some()
    }

    /// Whether no file is read.
    pub(super) fn reads_none(&self) -> Result<bool, Failure> {
        // The parser does not compare what stands before a verb with what stands behind it.
        if self.no_config && self.names_files() {
            return Err(Failure::usage(anyhow!(
                "--no-config cannot be used with --config or --kubelet-config"
            )));
        }
        Ok(self.no_config)
    }

    fn run_dir(&self) -> Result<Option<PathBuf>, Failure> {
        let variable = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
        named_run_dir(self.socket.as_deref(), variable)
    }
}

/// The run directory that `--socket` or else the variable names.
fn named_run_dir(socket: Option<&Path>, variable: Option<OsString>) -> Result<Option<PathBuf>, Failure> {
    let (by, path) = match (socket, variable) {
        (Some(path), _) => ("--socket", path.to_owned()),
        (None, Some(path)) => (SOCKET_VARIABLE, PathBuf::from(path)),
        (None, None) => return Ok(None),
    };
    if path.is_dir() {
        return Ok(Some(path));
    }
    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
    if [Observe::path(&folder), Admin::path(&folder)].contains(&path) {
        // A bare file name is in the working directory.
        return Ok(Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }));
    }
    Err(Failure::usage(anyhow!(
        "{by} {}: it is no folder, and no socket of the daemon: name observe.sock, or the folder that it is in",
        path.display()
    )))
}

/// Says once that the configuration is wrong, where, and what is used in its place.
fn warn(config: &Config, error: &config::Error) {
    let error = crate::chain(error);
    let mut problems = error.lines();
    let first = problems.next().unwrap_or_default();
    let more = match problems.count() {
        0 => String::new(),
        more => format!(" (and {more} more: `enforcer config check` lists them)"),
    };
    let (run_dir, state_dir) = (config.run_dir.display(), config.state_dir.display());
    let warning = escape(&format!(
        "warning: {first}{more}; runDir {run_dir} and stateDir {state_dir} are used, and defaults for all else"
    ));
    // If this fails, there is nowhere to report it.
    drop(writeln!(io::stderr().lock(), "{warning}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_or_its_folder_is_named_and_the_option_goes_before_the_variable() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let named = |socket: Option<&Path>, variable: Option<&Path>| {
            named_run_dir(socket, variable.map(|path| path.as_os_str().to_owned()))
        };
        assert_eq!(named(None, None).unwrap(), None);
        for path in [folder.to_owned(), folder.join("observe.sock"), folder.join("admin.sock")] {
            assert_eq!(named(Some(&path), None).unwrap().as_deref(), Some(folder), "{path:?}");
            assert_eq!(named(None, Some(&path)).unwrap().as_deref(), Some(folder), "{path:?}");
        }
        assert_eq!(named(Some(folder), Some(Path::new("/nowhere"))).unwrap().as_deref(), Some(folder));
        assert_eq!(named(Some(Path::new("observe.sock")), None).unwrap().as_deref(), Some(Path::new(".")));
        assert!(named(Some(Path::new("/nowhere")), None).is_err());
        let failure = named(None, Some(Path::new("/run/other.sock"))).unwrap_err().to_string();
        assert!(failure.starts_with("ENFORCER_SOCKET /run/other.sock: "), "{failure}");
    }
}
