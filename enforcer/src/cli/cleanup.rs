//! `enforcer cleanup`: gives back what a daemon has changed on this machine.

use anyhow::anyhow;

use super::{Context, Failure, client, format, render::escape};
use crate::daemon::{
    Signals,
    cleanup::{self, CleanedUp, Options, Refused},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It gives back limits and other values of cgroups, oom_score_adj, empty cgroups,
pinned eBPF programs, systemd's drop-ins, and the files of the run directory.
It finds them by the marks on the cgroups, also where the state directory is
gone. No process is ended; a cgroup that holds processes stays, without limits.
Beside a kubelet only marks and scores are undone.

It needs root (77 otherwise), and refuses while a daemon runs (64), except with
--dry-run. Exit status 1 says that something could not be undone; what to do
about it is printed.")]
pub(super) struct Args {
    /// Print what would be undone, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Remove the state directory too: the journal, recordings, evicted pods
    #[arg(long)]
    state: bool,
    /// Stay until ended, if all is undone, as a pod has to
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
}

pub(super) fn cleanup(context: &Context, args: &Args) -> Result<(), Failure> {
    let Args { dry_run, state, stay } = *args;
    client::block_on(async {
        // SIGTERM and SIGINT must not end it halfway, and end a container's first process only if it listens for them.
        let stays = if stay { Some(Signals::listen()?) } else { None };
        let options = Options { dry_run, state };
        let cleaned = cleanup::cleanup(&context.config, options).await.map_err(failure)?;
        format::print(context.output, &cleaned, || lines(&cleaned))?;
        match cleaned.failed.len() {
            0 => {}
            1 => return Err(anyhow!("something could not be undone: see the line `failed`").into()),
            failed => {
                return Err(anyhow!("{failed} things could not be undone: see the lines `failed`").into());
            }
        }
        if let Some(mut signals) = stays {
            signals.stop().await;
        }
        Ok(())
    })
}

fn failure(error: anyhow::Error) -> Failure {
    match error.downcast_ref::<Refused>() {
        Some(Refused::Runs { .. }) => Failure::usage(error),
        Some(Refused::NotRoot) => Failure::refused(error),
        None => error.into(),
    }
}

/// A line for each thing. Others may have chosen its name.
fn lines(cleaned: &CleanedUp) -> String {
    let CleanedUp { dry_run: _, daemon, done, left, failed } = cleaned;
    if daemon.is_none() && done.is_empty() && left.is_empty() && failed.is_empty() {
        return String::from("nothing to undo\n");
    }
    let daemon = daemon.iter().map(|holder| {
        ("daemon", format!("{holder} runs, and has this to undo; stop it first: systemctl stop enforcer"))
    });
    let done = done.iter().map(|item| (item.what, item.to_string()));
    let left = left.iter().map(|left| ("left", format!("{}: {}", left.path, left.why)));
    let failed = failed.iter().map(|failed| {
        let text = format!("{}: {}; {}", failed.path, failed.error, failed.remedy);
        ("failed", text)
    });
    daemon
        .chain(done)
        .chain(left)
        .chain(failed)
        .map(|(what, text)| format!("{what:<8} {}", escape(&text)) + "\n")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Left, Trouble};

    #[test]
    fn each_thing_is_a_line_and_what_could_not_be_undone_says_what_to_do() {
        assert_eq!(lines(&CleanedUp::default()), "nothing to undo\n");
        let cleaned = CleanedUp {
            left: vec![Left { path: String::from("/a\u{1b}[2J"), why: String::from("it holds processes") }],
            failed: vec![Trouble {
                path: String::from("/b"),
                error: String::from("no"),
                remedy: String::from("run enforcer cleanup again"),
            }],
            ..CleanedUp::default()
        };
        let cleaned = CleanedUp { daemon: Some(String::from("process 7")), ..cleaned };
        let text = lines(&cleaned);
        let shown: Vec<_> = text.lines().collect();
        let [daemon, left, failed] = shown[..] else { panic!("{text}") };
        assert_eq!(
            daemon,
            "daemon   process 7 runs, and has this to undo; stop it first: systemctl stop enforcer"
        );
        assert!(left.starts_with("left     /a") && !left.contains('\u{1b}'), "{left:?}");
        assert_eq!(failed, "failed   /b: no; run enforcer cleanup again");
    }
}
