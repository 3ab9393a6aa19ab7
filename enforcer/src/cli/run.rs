use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use anyhow::Context as _;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt as _};

use super::{Context, Failure, Files};
use crate::{
    config::{Config, Effective, Mode},
    daemon::{self, OnExit},
    logging, metrics,
    sense::{self, Unpinned},
    threads,
};

/// Reconciling is one thing at a time, and waits for another of these threads where it connects to systemd; a third attaches the
/// eBPF programs meanwhile. Names and sockets need none.
const BLOCKING_THREADS: usize = 3;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How far it may go, whatever the configuration says
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// The folder of manifests, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    static_pod_path: Option<PathBuf>,
    /// What becomes of limits, scores and cgroups when the daemon is stopped
    #[arg(long, value_name = "WHAT", value_parser = on_exit, default_value = "keep")]
    on_exit: OnExit,
    /// The folder of the sockets, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Remove what a stopped daemon left at work in the kernel, and exit
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
    /// The configuration as the command line has it.
    fn over(&self, mut config: Config) -> Config {
        config.mode = self.mode.unwrap_or(config.mode);
        config.static_pod_path = self.static_pod_path.clone().unwrap_or(config.static_pod_path);
        config.run_dir = self.run_dir.clone().unwrap_or(config.run_dir);
        config
    }
}

pub(super) fn run(context: Context, files: Files, args: Args) -> Result<(), Failure> {
    let Context { config, output: _, color, live: _, verbose } = context;
    if args.unpin {
        return unpin();
    }
    let (config, on_exit) = (args.over(config), args.on_exit);
    files.trusted()?;
    let load = move || {
        let Files { config, kubelet_config } = &files;
        let (config, kubelet_config) = (config.as_deref(), kubelet_config.as_deref());
        Effective::check_trust(config, kubelet_config)?;
        Ok(args.over(Effective::load(config, kubelet_config)?.config))
    };
    log(verbose, color)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder
        .enable_all()
        .thread_name("desired")
        .on_thread_start(daemon::prefer_thread)
        .on_thread_unpark(|| metrics::turns().wakes())
        .on_thread_park(|| metrics::turns().sleeps());
    let runtime = threads::runtime(&mut builder, BLOCKING_THREADS).context("cannot start the runtime")?;
    let ended = runtime.block_on(daemon::run(config, on_exit, Box::new(load)));
    // What is wrong is said next, on a stderr that may take nothing.
    logging::last_words(|| ());
    ended.map_err(
        |error| if error.is::<daemon::IncompatibleHost>() { Failure::usage(error) } else { error.into() },
    )
}

/// Says what was removed, on a line each; what is left is a failure.
fn unpin() -> Result<(), Failure> {
    let Unpinned { removed, left } = sense::unpin().context("cannot remove the pins")?;
    let mut out = io::stdout().lock();
    for path in removed {
        writeln!(out, "{}", path.display()).map_err(Failure::printing)?;
    }
    if left.is_empty() {
        return Ok(());
    }
    // Such a name is anybody's.
    let left: Vec<_> = left.iter().map(|path| path.to_string_lossy().escape_debug().to_string()).collect();
    Err(anyhow::anyhow!("left alone, as they are none of ours: {}", left.join(", ")).into())
}

/// Logs to stderr by way of a queue; the journal adds the time itself.
fn log(verbose: u8, color: bool) -> anyhow::Result<()> {
    let default = match verbose {
        0 => "info,aya=warn,aya_obj=warn",
        // Ourselves and our eBPF programs; the libraries have much to say.
        1 => "info,enforcer=debug,enforcer_ebpf=debug,aya=warn,aya_obj=warn",
        2.. => "trace",
    };
    let filter: Targets = match std::env::var("RUST_LOG") {
        Ok(directives) => directives.parse().context("RUST_LOG cannot be read")?,
        Err(_unset) => default.parse().context("the default log filter is wrong")?,
    };
    let lines = logging::start().context("no thread for the log")?;
    // It never waits for stderr, so nothing else here may.
    let lines =
        tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(color).log_internal_errors(false);
    let subscriber = tracing_subscriber::registry().with(lines).with(filter);
    tracing::subscriber::set_global_default(subscriber).context("logging is set up already")?;
    // What the libraries and the eBPF programs say through `log`.
    tracing_log::LogTracer::init().context("logging is set up already")?;
    Ok(())
}
