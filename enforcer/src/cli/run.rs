//! `enforcer run`: from the command line to the daemon, and its restart in place.

use std::{
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::Command,
};

use anyhow::Context as _;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _};

use super::{Context, Failure, Files};
use crate::{
    config::{self, Config, Effective, Mode},
    daemon::{self, Ended, OnExit},
    logging, metrics, raw,
    sense::{self, Unpinned},
    threads,
};

/// The reconciler needs one thread, and a second one while it connects to systemd. A third attaches the eBPF programs
/// meanwhile. Names and sockets need none.
const BLOCKING_THREADS: usize = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The mode, which overrides the configuration
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// The folder of manifests, which overrides the configuration
    #[arg(long, value_name = "DIR")]
    static_pod_path: Option<PathBuf>,
    /// What to do with limits, scores and cgroups when the daemon is stopped
    #[arg(long, value_name = "WHAT", value_parser = on_exit, default_value = "keep")]
    on_exit: OnExit,
    /// The folder of the sockets, which overrides the configuration
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Remove the pinned eBPF objects that a stopped daemon left, and exit
    #[arg(long)]
    unpin: bool,
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
        config.mode = self.mode.unwrap_or(config.mode);
        config.static_pod_path = self.static_pod_path.clone().unwrap_or(config.static_pod_path);
        config.run_dir = self.run_dir.clone().unwrap_or(config.run_dir);
        config
    }
}

pub(super) fn run(context: &Context, files: Files, args: Args) -> Result<(), Failure> {
    raw::configure_heap();
    let Context { config: _, output: _, is_wide: _, color, live: _, verbose } = *context;
    if args.unpin {
        return unpin();
    }
    let on_exit = args.on_exit;
    let file = files.config.clone().unwrap_or_else(|| PathBuf::from(config::DEFAULT_PATH));
    let load = move || {
        let Files { config, kubelet_config } = &files;
        let effective = Effective::load_trusted(config.as_deref(), kubelet_config.as_deref())?;
        Ok::<_, config::Error>(args.over(effective.config))
    };
    let config = load().map_err(|error| Failure::usage(error.into()))?;
    log(verbose, color)?;
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
        if error.is::<daemon::IncompatibleHost>() { Failure::usage(error) } else { error.into() }
    })?;
    match ended {
        Ended::Stopped => Ok(()),
        Ended::KubeletCame => {
            let error = logging::without_alarm(restart_in_place);
            Err(error.into())
        }
    }
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

/// Logs to stderr through a queue; the journal adds the time.
fn log(verbose: u8, color: bool) -> anyhow::Result<()> {
    let default = match verbose {
        0 => "info,aya=warn,aya_obj=warn",
        // Only enforcer and its eBPF programs: the libraries log a lot.
        1 => "info,enforcer=debug,enforcer_ebpf=debug,aya=warn,aya_obj=warn",
        2.. => "trace",
    };
    let filter: Targets = match std::env::var("RUST_LOG") {
        Ok(directives) => directives.parse().context("RUST_LOG cannot be read")?,
        Err(_unset) => default.parse().context("the default log filter is wrong")?,
    };
    let lines = logging::start().context("cannot start the log thread")?;
    // Log lines never wait for stderr, so internal errors must not go there either.
    let lines =
        tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(color).log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).context("logging is set up already")?;
    // The libraries and the eBPF programs log through `log`.
    tracing_log::LogTracer::init().context("logging is set up already")?;
    Ok(())
}
