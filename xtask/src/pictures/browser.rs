//! Pictures of a page, taken by a browser.

use std::{
    fs, io,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::png;
use crate::run;

/// Programs that take pictures of pages, the first that is there.
const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];

/// The window's own parts, in pixels: they are no part of the picture, and as much of its end stays empty.
const WINDOW: u32 = 200;

/// They fetch nothing, and keep nothing of who runs them.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// The colours of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Light,
    Dark,
}

/// The browser on the path; `None` if there is none.
pub(super) fn find() -> anyhow::Result<Option<&'static str>> {
    for name in BROWSERS {
        let mut command = Command::new(name);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => return Ok(Some(name)),
            Ok(status) => bail!("{name} --version ended with {status}"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot start {name}")),
        }
    }
    Ok(None)
}

/// Takes a picture of the top of a page, in pixels.
pub(super) fn capture(
    browser: &str,
    page: &Path,
    scheme: Scheme,
    (width, height): (u32, u32),
    to: &Path,
) -> anyhow::Result<()> {
    let profile = tempfile::tempdir()?;
    let taken = profile.path().join("taken.png");
    let mut command = Command::new(browser);
    command.args(ARGUMENTS);
    if scheme == Scheme::Dark {
        command.arg("--force-dark-mode");
    }
    command.arg(prefixed("--user-data-dir=", profile.path()));
    command.arg(prefixed("--screenshot=", &taken)).arg(format!("--window-size={width},{}", height + WINDOW));
    command.arg(prefixed("file://", page));
    run::output(&mut command)?;
    let picture =
        fs::read(&taken).with_context(|| format!("{browser} took no picture for {}", to.display()))?;
    let picture = png::top(&picture, height).with_context(|| format!("cannot cut {}", taken.display()))?;
    fs::write(to, picture).with_context(|| format!("cannot write {}", to.display()))
}

fn prefixed(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut word = std::ffi::OsString::from(prefix);
    word.push(path);
    word
}
