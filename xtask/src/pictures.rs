//! The documents' pictures, made from one real run in a guest: a session in a terminal, and its report as a page.
mod browser;
mod png;
mod svg;
mod terminal;

use std::{
    fs,
    io::{self, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

use self::{
    browser::Scheme,
    terminal::{Output, Size},
};
use crate::{
    build::{Kind, Product},
    cli::MachineArgs,
    guest::{Guests, exec::Run, machine::Clock},
    places::Places,
    steps::Steps,
};

/// Where they go.
const FOLDER: &str = "docs/pictures";
const TIMEOUT: Duration = Duration::from_mins(10);

/// What a picture may have at most: each reader of the page loads it.
const MOST_SVG_BYTES: usize = 150 << 10;
const MOST_PNG_BYTES: u64 = 200 << 10;

/// How much of the report is shown, in pixels.
const PAGE: (u32, u32) = (1_200, 900);

const TITLE: &str =
    "An operator's terminal while enforcer evicts a pod from a node that runs short of memory";

/// Makes the pictures; without a browser, the terminal's alone.
pub(crate) fn command(places: &Places) -> anyhow::Result<u8> {
    let machine = MachineArgs::default();
    let guests =
        Guests::prepare(places, Steps::Out, &[machine.kernel], Kind::Development, &[Product::Session])?;
    let printed = Steps::Out.work("session in a guest", || session(&guests, &machine))?;
    let Session { size, outputs, report } = parse(&printed)?;

    let folder = places.root.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let picture = svg::picture(&terminal::frames(&outputs, size), size, TITLE);
    let path = folder.join("terminal.svg");
    write(&path, picture.as_bytes())?;
    said(&path)?;
    ensure!(picture.len() <= MOST_SVG_BYTES, "{} is larger than {MOST_SVG_BYTES} bytes", path.display());

    let Some(browser) = browser::find()? else {
        Steps::Out.say("There is no Chromium on the path: the report's pictures stay as they were.");
        return Ok(0);
    };
    let page = tempfile::Builder::new().suffix(".html").tempfile()?;
    write(page.path(), report.as_bytes())?;
    for (scheme, name) in [(Scheme::Light, "report-light.png"), (Scheme::Dark, "report-dark.png")] {
        let path = folder.join(name);
        browser::capture(browser, page.path(), scheme, PAGE, &path)?;
        let bytes = said(&path)?;
        ensure!(bytes <= MOST_PNG_BYTES, "{} is larger than {MOST_PNG_BYTES} bytes", path.display());
    }
    Ok(0)
}

/// Runs the session; returns what its program printed.
fn session(guests: &Guests, machine: &MachineArgs) -> anyhow::Result<Vec<u8>> {
    let printed = Printed::default();
    let run = Run {
        kernel: guests.kernels.first().context("no kernel was set up")?,
        init: machine.init,
        memory_mib: machine.memory,
        cpus: machine.cpus(),
        clock: Clock::Host,
        timeout: TIMEOUT,
        boot: &machine.boot,
        files: &machine.file,
        script: b"exec session",
    };
    let status = run.exec(guests, Box::new(printed.clone()), Box::new(io::stderr()))?;
    ensure!(status == 0, "the session ended with {status}");
    let bytes = std::mem::take(&mut *printed.0.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(bytes)
}

/// What a guest printed, for the caller.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `session` printed.
#[derive(Debug, PartialEq, Eq)]
struct Session {
    size: Size,
    outputs: Vec<Output>,
    report: String,
}

/// A line that `session` prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Size(Size),
    Output(Output),
    Report { report: String },
}

fn parse(printed: &[u8]) -> anyhow::Result<Session> {
    let (mut size, mut outputs, mut report) = (None, Vec::new(), None);
    for line in printed.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let parsed = serde_json::from_slice(line)
            .with_context(|| format!("the session printed {}", String::from_utf8_lossy(line)))?;
        match parsed {
            Line::Size(one) => size = Some(one),
            Line::Output(output) => outputs.push(output),
            Line::Report { report: page } => report = Some(page),
        }
    }
    Ok(Session {
        size: size.context("the session printed no size of its terminal")?,
        outputs,
        report: report.context("the session printed no report")?,
    })
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

/// Names a picture that was made, with its size; returns that.
fn said(path: &Path) -> anyhow::Result<u64> {
    let bytes = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    Steps::Out.say(format_args!("     {} ({} KiB)", path.display(), bytes.div_ceil(1024)));
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_prints_is_read_whole_or_refused() {
        let printed = b"{\"rows\":30,\"columns\":100}\n{\"ms\":5,\"bytes\":[35,32]}\n{\"report\":\"<p>\"}\n";
        let session = parse(printed).unwrap();
        assert_eq!(session.size, Size { rows: 30, columns: 100 });
        assert_eq!(session.outputs, [Output { ms: 5, bytes: b"# ".to_vec() }]);
        assert_eq!(session.report, "<p>");
        for (wrong, reason) in [
            (&b"{\"rows\":30,\"columns\":100}"[..], "no report"),
            (b"{\"report\":\"\"}", "no size"),
            (b"hello", "printed hello"),
        ] {
            let error = format!("{:#}", parse(wrong).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
    }
}
