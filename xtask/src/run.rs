//! Running other programs.
use std::{
    ffi::OsStr,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, bail};

/// How many of a failed program's last lines are shown.
const SHOWN_LINES: usize = 60;

/// Runs a program and returns its standard output; its output is shown only if it fails.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let Output { status, stdout, stderr } =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status}):\n{}", shown(command), tail(&stderr, &stdout));
    }
    Ok(stdout)
}

/// Like [`output`], as text.
pub(crate) fn text(command: &mut Command) -> anyhow::Result<String> {
    String::from_utf8(output(command)?).with_context(|| format!("{} printed no UTF-8", shown(command)))
}

/// Runs a program whose output goes to the user.
pub(crate) fn passing_through(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// The command line, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn tail(stderr: &[u8], stdout: &[u8]) -> String {
    // Programs that fail usually say why on stderr; those that do not have it at the end of stdout.
    let text = if stderr.trim_ascii().is_empty() { stdout } else { stderr };
    last_lines(&String::from_utf8_lossy(text), SHOWN_LINES)
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_shows_what_the_program_said() {
        let error =
            output(Command::new("sh").args(["-c", "echo reason >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.ends_with("reason"), "{error}");
    }

    #[test]
    fn last_lines_of_a_short_text_are_all_of_it() {
        assert_eq!(last_lines("a\nb", 5), "a\nb");
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
    }
}
