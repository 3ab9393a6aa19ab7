//! Which commit is released, its time, and the version: all that artifacts say about when and from what they were made.
use std::{path::Path, process::Command};

use anyhow::{Context as _, bail};

use crate::run;

/// The commit that artifacts are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// Its hash.
    pub(crate) commit: String,
    /// When it was committed, in seconds since 1970: every time in an artifact (`SOURCE_DATE_EPOCH`).
    pub(crate) epoch: u64,
    /// The same, as RFC 3339 in UTC.
    pub(crate) time: String,
    /// The same, as a changelog of Debian has it.
    pub(crate) mail_time: String,
    /// The version of the workspace, with `+dirty` behind it if there are changes that are in no commit.
    pub(crate) version: String,
}

impl Source {
    /// Reads the head of the repository at `root`. Changes that are not committed are an error, unless they are allowed: then
    /// the version says so.
    pub(crate) fn find(root: &Path, allow_dirty: bool) -> anyhow::Result<Self> {
        let changed = git(root, &["status", "--porcelain"])?;
        if !changed.is_empty() && !allow_dirty {
            bail!(
                "these files differ from the commit; commit them, or mark the version with --allow-dirty:\n{}",
                run::last_lines(&changed, 20)
            );
        }
        let own = env!("CARGO_PKG_VERSION");
        let version = if changed.is_empty() { own.to_owned() } else { format!("{own}+dirty") };
        let shown = |format: &str, date: &str| {
            let date = format!("--date=format-local:{date}");
            let format = format!("--format={format}");
            git(root, &["show", "--no-patch", &format, &date, "HEAD"])
        };
        let epoch = shown("%ct", "")?;
        Ok(Self {
            commit: shown("%H", "")?,
            epoch: epoch.parse().with_context(|| format!("git gives the commit's time as `{epoch}`"))?,
            time: shown("%cd", "%Y-%m-%dT%H:%M:%SZ")?,
            mail_time: shown("%cd", "%a, %d %b %Y %H:%M:%S +0000")?,
            version,
        })
    }

    /// The version where `+` is not allowed, as in a tag of an image.
    pub(crate) fn tag(&self) -> String {
        self.version.replace('+', "-")
    }
}

/// What git says, without the line break at its end, in English and in UTC.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut git = Command::new("git");
    git.args(arguments).current_dir(root).env("LC_ALL", "C").env("TZ", "UTC0");
    Ok(run::text(&mut git)?.trim_end().to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;

    /// A commit for tests of what is made of one.
    pub(crate) fn a_commit() -> Source {
        Source {
            commit: "0123456789abcdef0123456789abcdef01234567".to_owned(),
            epoch: 1_790_000_000,
            time: "2026-09-21T14:13:20Z".to_owned(),
            mail_time: "Mon, 21 Sep 2026 14:13:20 +0000".to_owned(),
            version: "0.2.0".to_owned(),
        }
    }

    #[test]
    fn the_commits_time_is_that_of_artifacts_and_changes_are_refused_or_marked() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "--quiet"]).unwrap();
        fs::write(root.join("a"), "1").unwrap();
        git(root, &["add", "a"]).unwrap();
        let mut commit = Command::new("git");
        commit.args(["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "A"]);
        commit.env("GIT_COMMITTER_DATE", "1790000000 +0900").current_dir(root);
        run::output(&mut commit).unwrap();

        let source = Source::find(root, false).unwrap();
        assert_eq!(
            Source { commit: a_commit().commit, version: "0.2.0".into(), ..source.clone() },
            a_commit()
        );
        assert_eq!(source.commit, git(root, &["rev-parse", "HEAD"]).unwrap());
        assert_eq!(source.version, env!("CARGO_PKG_VERSION"));

        fs::write(root.join("b"), "2").unwrap();
        let error = Source::find(root, false).unwrap_err().to_string();
        assert!(error.contains("?? b") && error.contains("--allow-dirty"), "{error}");
        let marked = Source::find(root, true).unwrap();
        assert_eq!(marked.version, format!("{}+dirty", source.version));
        assert_eq!(marked.tag(), format!("{}-dirty", source.version));
    }
}
