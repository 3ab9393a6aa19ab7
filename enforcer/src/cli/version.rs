//! `enforcer version`: which build this is, which one the daemon is, and what its kernel offers.

use serde::Serialize;

use super::{Context, Failure, client, format, page::Page};
use crate::{
    sense::{Facility, State},
    serve::{Build, ConfigView, Doctor},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The commit is that which the build was made of, if it says so. Without a daemon only this
program's build is printed, and with --live the exit status is 69.")]
pub(super) struct Args {}

/// The printed document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    /// This program.
    client: Build,
    /// The daemon; `None` if it cannot be asked.
    daemon: Option<Build>,
    /// Why the daemon's is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    /// The running kernel's release.
    kernel: String,
    /// What the daemon found of the kernel's facilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    facilities: Option<Vec<Found>>,
}

/// A facility, and how well it is available.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    name: String,
    state: State,
}

impl From<Facility> for Found {
    fn from(Facility { name, state, .. }: Facility) -> Self {
        Self { name, state }
    }
}

pub(super) fn version(context: &Context, _args: &Args) -> Result<(), Failure> {
    let run_dir = &context.config.run_dir;
    let asked = client::block_on(async {
        let ConfigView { daemon, .. } = client::get_json(run_dir, "/v1/config").await?;
        let Doctor { facilities, .. } = client::get_json(run_dir, "/v1/doctor").await?;
        Ok((daemon, facilities))
    });
    let (daemon, facilities, unknown) = match asked {
        Ok((daemon, facilities)) => (Some(daemon), Some(facilities), None),
        Err(failure) if context.live => return Err(failure),
        Err(failure) => (None, None, Some(failure.to_string())),
    };
    let document = Document {
        client: Build::own(),
        daemon,
        unknown,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        facilities: facilities.map(|facilities| facilities.into_iter().map(Found::from).collect()),
    };
    format::print(context.output, &document, || table(&document))
}

fn table(document: &Document) -> String {
    let Document { client, daemon, unknown, kernel, facilities } = document;
    let build = |build: &Build| {
        let commit = build.commit.as_deref().map_or_else(String::new, |commit| format!(", commit {commit}"));
        format!("{} {}{commit}", build.version, build.architecture)
    };
    let mut page = Page::default();
    page.field("client", &build(client));
    match (daemon, unknown) {
        (Some(daemon), _) => page.field("daemon", &build(daemon)),
        (None, unknown) => page.field("daemon", &format!("not known: {}", unknown.as_deref().unwrap_or("?"))),
    }
    page.field("kernel", kernel);
    for (label, wanted) in [
        ("has", State::Full),
        ("in part", State::Lesser),
        ("lacks", State::Missing),
        ("unknown", State::Unknown),
    ] {
        let of = facilities.iter().flatten().filter(|found| found.state == wanted);
        let names: Vec<_> = of.map(|found| found.name.as_str()).collect();
        if !names.is_empty() {
            page.field(label, &names.join(", "));
        }
    }
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_builds_and_what_the_kernel_lacks_are_named() {
        let found = |name: &str, state| Found { name: name.to_owned(), state };
        let document = Document {
            client: Build::own(),
            daemon: Some(Build {
                version: String::from("9.8.7"),
                commit: Some(String::from("0123abc")),
                ..Build::own()
            }),
            unknown: None,
            kernel: String::from("6.12.0"),
            facilities: Some(vec![found("btf", State::Full), found("psi", State::Missing)]),
        };
        let text = table(&document);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(text.contains(env!("CARGO_PKG_VERSION")) && text.contains("9.8.7"), "{text}");
        assert!(text.contains("commit 0123abc"), "{text}");
        assert!(words.contains(&vec!["lacks", "psi"]) && words.contains(&vec!["has", "btf"]), "{text}");
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["daemon"]["version"], "9.8.7");
        assert_eq!(json["facilities"][1]["state"], "missing", "{json}");
    }
}
