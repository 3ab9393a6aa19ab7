//! `enforcer run`: from the command line to the daemon, and its restart in place.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Command,
};

use anyhow::Context as _;
use rustix::thread::CapabilitySet;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _};

use super::{Context, Failure, Files, help};
use crate::{
    config::{self, Config, Effective, Mode, ValueSource},
    daemon::{self, Ended, OnExit},
    evict, logging, metrics, privilege, raw,
    sense::{self, Unpinned},
    threads,
};

/// The reconciler needs one thread, and a second one while it connects to systemd. A third attaches the eBPF programs
/// meanwhile. Names and sockets need none.
const BLOCKING_THREADS: usize = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The mode, which overrides the configuration
    #[arg(long, value_name = "MODE", value_parser = help::one_of(Mode::NAMES.iter().map(|(name, _)| *name), mode))]
    mode: Option<Mode>,
    /// The folder of manifests, which overrides the configuration
    #[arg(long, value_name = "DIR")]
    static_pod_path: Option<PathBuf>,
    /// What to do with limits, scores and cgroups when the daemon is stopped
    #[arg(long, value_name = "WHAT", value_parser = help::one_of(["keep", "restore"], on_exit), default_value = "keep")]
    on_exit: OnExit,
    /// The folder of the sockets, which overrides the configuration
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// How to log: text, or JSON, an object a line
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Remove the pinned eBPF objects that a stopped daemon left, and exit
    #[arg(long)]
    unpin: bool,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// For programs
    Json,
}

fn on_exit(text: &str) -> Result<OnExit, String> {
    match text {
        "keep" => Ok(OnExit::Keep),
        "restore" => Ok(OnExit::Restore),
        _ => Err(String::from("one of keep, restore")),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    Mode::NAMES.iter().find(|(name, _)| *name == text).map(|(_, mode)| *mode).ok_or_else(|| {
        let names: Vec<_> = Mode::NAMES.iter().map(|(name, _)| *name).collect();
        format!("one of {}", names.join(", "))
    })
}

impl Args {
    /// Applies the command line's overrides to the configuration.
    fn over(&self, mut config: Config) -> Config {
        for (is_given, field, flag) in [
            (self.mode.is_some(), "mode", "--mode"),
            (self.static_pod_path.is_some(), "staticPodPath", "--static-pod-path"),
            (self.run_dir.is_some(), "runDir", "--run-dir"),
        ] {
            if is_given {
                config.value_sources.set(field, ValueSource::Flag(flag));
            }
        }
        config.mode = self.mode.unwrap_or(config.mode);
        config.static_pod_path = self.static_pod_path.clone().unwrap_or(config.static_pod_path);
        config.run_dir = self.run_dir.clone().unwrap_or(config.run_dir);
        config
    }
}

pub(super) fn run(context: &Context, files: Files, args: Args) -> Result<(), Failure> {
    raw::configure_heap();
    let Context { config: _, output: _, is_wide: _, columns: _, color, live: _, verbose } = *context;
    if args.unpin {
        return unpin();
    }
    let (on_exit, log_format) = (args.on_exit, args.log_format);
    if files.reads_none()? {
        return Err(Failure::usage(anyhow::anyhow!(
            "the daemon reads its configuration at each reload: without a file at {} it runs with the defaults",
            config::DEFAULT_PATH
        )));
    }
    let file = files.config.clone().unwrap_or_else(|| PathBuf::from(config::DEFAULT_PATH));
    let load = move || {
        let Files { config, kubelet_config, no_config: _, socket: _ } = &files;
        let effective = Effective::load_trusted(config.as_deref(), kubelet_config.as_deref())?;
        Ok::<_, config::Error>(args.over(effective.config))
    };
    let config = load().map_err(|error| Failure::usage(error.into())).map_err(unless_permitted)?;
    match &config.pre_kill_hook {
        // Its program has the rights that the daemon was started with.
        Some(hook) => evict::start_hook_process(&hook.program)
            .context("cannot start the process that runs preKillHook")?,
        None => evict::end_inherited_hook_process(),
    }
    // Before there is another thread: what each may do is inherited from this one.
    privilege::give_up_the_rest().context("cannot give up the rights that the daemon does not use")?;
    log(verbose, color, log_format)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .thread_name("desired")
        .on_thread_start(daemon::prefer_thread)
        .on_thread_unpark(|| metrics::loops().wakes())
        .on_thread_park(|| metrics::loops().sleeps());
    let runtime = threads::runtime(&mut builder, BLOCKING_THREADS).context("cannot start the runtime")?;
    let ended = runtime.block_on(daemon::run(config, on_exit, (file, Box::new(load))));
    // The error is printed next, and stderr may block.
    logging::last_words(|| ());
    let ended = ended.map_err(|error| {
        let failure =
            if error.is::<daemon::IncompatibleHost>() { Failure::usage(error) } else { error.into() };
        unless_permitted(failure)
    })?;
    match ended {
        Ended::Stopped => Ok(()),
        Ended::KubeletCame => {
            let error = logging::without_alarm(restart_in_place);
            Err(error.into())
        }
    }
}

/// The failure, as a refusal that names the missing rights if it comes from a lack of them.
fn unless_permitted(failure: Failure) -> Failure {
    if !failure.is_for_lack_of_rights() {
        return failure;
    }
    let uid = rustix::process::geteuid();
    let missing = missing_capabilities(rustix::thread::capabilities(None).ok().map(|sets| sets.effective));
    failure.into_refused(format!(
        "uid {} may not do that{missing}: run it as root, or by its unit",
        uid.as_raw()
    ))
}

/// The rights that the unit gives, of which these are not among the effective ones; empty if all are there.
fn missing_capabilities(effective: Option<CapabilitySet>) -> String {
    let Some(effective) = effective else { return String::new() };
    let missing = privilege::missing(effective);
    if missing.is_empty() { String::new() } else { format!(" and lacks {}", missing.join(", ")) }
}

/// Replaces this process by a new one of the same program, arguments and environment, which its supervisor takes for the
/// same. Returns why it could not.
fn restart_in_place() -> anyhow::Error {
    let mut args = std::env::args_os();
    // By its own path the process keeps its name; the file may be gone.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| PathBuf::from("/proc/self/exe")));
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    if let Err(error) = evict::hand_on_hook_process(&mut command) {
        return anyhow::Error::from(error).context("cannot hand on the process that runs preKillHook");
    }
    anyhow::Error::from(command.args(args).exec())
        .context("cannot run its own program again after a kubelet has started: start the daemon again")
}

/// Prints the removed pins, one per line. It fails if any are left.
fn unpin() -> Result<(), Failure> {
    let Unpinned { removed, left } = sense::unpin().context("cannot remove the pins")?;
    let mut out = io::stdout().lock();
    for path in removed {
        writeln!(out, "{}", path.display()).map_err(Failure::printing)?;
    }
    if left.is_empty() {
        return Ok(());
    }
    // Anyone may have chosen these names.
    let left: Vec<_> = left.iter().map(|path| path.to_string_lossy().escape_debug().to_string()).collect();
    Err(anyhow::anyhow!("not removed, as they are not ours: {}", left.join(", ")).into())
}

/// Logs to stderr through a queue.
fn log(verbose: u8, color: bool, format: LogFormat) -> anyhow::Result<()> {
    let default = match verbose {
        0 => "info",
        1 => "debug",
        2.. => "trace",
    };
    let filter: Targets = match std::env::var("RUST_LOG") {
        Ok(directives) => directives.parse().context("RUST_LOG cannot be read")?,
        Err(_unset) => logging::filter(default).map_err(anyhow::Error::msg)?,
    };
    let is_json = format == LogFormat::Json;
    let lines = logging::start(is_json).context("cannot start the log thread")?;
    // Log lines never wait for stderr, so internal errors must not go there either.
    let lines = tracing_subscriber::fmt::layer().with_writer(lines).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(logging::changeable(filter));
    if is_json {
        let subscriber = registry.with(lines.with_ansi(false).event_format(logging::Json));
        tracing::subscriber::set_global_default(subscriber).context("logging is set up already")?;
    } else {
        let subscriber = registry.with(lines.with_ansi(color));
        tracing::subscriber::set_global_default(subscriber).context("logging is set up already")?;
    }
    // The libraries and the eBPF programs log through `log`.
    tracing_log::LogTracer::init().context("logging is set up already")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_rights_is_a_refusal_that_says_which_are_missing() {
        let failed = |kind: io::ErrorKind| {
            Failure::from(
                anyhow::Error::new(io::Error::from(kind)).context("cannot prepare the run directory"),
            )
        };
        let denied = unless_permitted(failed(io::ErrorKind::PermissionDenied));
        assert_eq!(denied.status(), 77, "{denied}");
        let said = denied.to_string();
        assert!(said.starts_with("uid ") && said.contains("cannot prepare the run directory"), "{said}");
        assert_eq!(unless_permitted(failed(io::ErrorKind::NotFound)).status(), 1);
        let lacks = missing_capabilities(Some(CapabilitySet::KILL | CapabilitySet::BPF));
        assert!(lacks.contains("CAP_SYS_ADMIN") && !lacks.contains("CAP_KILL"), "{lacks}");
        assert_eq!(missing_capabilities(Some(CapabilitySet::all())), "");
    }
}
