//! What the commands do.
use std::{
    ffi::OsString,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    bench,
    build::{self, Kind, Product},
    cli::{Bench, Cli, MachineArgs, Verb, Vm, seconds},
    dist, ebpf, fuzz,
    guest::{Guests, Init, exec::Run, kernel::Kernel, machine::Clock, shell},
    guest_tests, pictures,
    places::Places,
    run,
    setup::{self, kube::Components},
    soak,
    steps::Steps,
    test, tidy,
};

/// Runs one command and returns the exit status.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    let places = Places::find()?;
    match cli.command {
        Verb::Setup { update_lock: true } => {
            setup::update_lock(&places, Steps::Out)?;
            Ok(0)
        }
        Verb::Setup { update_lock: false } => {
            setup::all(&places, Steps::Out)?;
            Ok(0)
        }
        Verb::Build { dev } => {
            let kind = if dev { Kind::Diagnostic } else { Kind::Release };
            Steps::Out.say(format_args!("     {}", daemon(&places, kind)?.display()));
            Ok(0)
        }
        Verb::Dist { arm64, allow_dirty, check_reproducible } => {
            dist::command(&places, dist::Options { arm64, allow_dirty, check_reproducible })
        }
        Verb::ReleaseCheck => Ok(dist::release_check(&places)),
        Verb::Ebpf => ebpf::rebuild(&places),
        Verb::Kube => kube(&places),
        Verb::Vm(vm) => self::vm(&places, vm),
        Verb::Test { no_guest } => test::everything(&places, !no_guest),
        Verb::Soak { hours, seed } => soak::command(&places, hours, seed),
        Verb::Run { host: false, args: _ } => demonstration(&places, &MachineArgs::default(), seconds(900)),
        Verb::Run { host: true, args } => on_host(&places, args),
        Verb::Pictures => pictures::command(&places),
        Verb::Bench(Bench::Agreement { machine, args }) => {
            bench::guest::measure(&places, &machine, "agreement", &args)
        }
        Verb::Bench(Bench::Capture { machine }) => bench::guest::capture(&places, &machine),
        Verb::Bench(Bench::Evict(args)) => bench::evict::measure(&places, args),
        Verb::Bench(Bench::Drift { machine, args }) => {
            bench::guest::measure(&places, &machine, "drift", &args)
        }
        Verb::Bench(Bench::Floods { machine, args }) => bench::idle::floods(&places, &machine, &args),
        Verb::Bench(Bench::Idle { machine, args }) => bench::idle::measure(&places, machine, &args),
        Verb::Bench(Bench::Memory { machine, args }) => {
            bench::guest::measure(&places, &machine, "memory", &args)
        }
        Verb::Bench(Bench::Response { machine, parts, args }) => {
            bench::guest::measure(&places, &machine, "response", &[parts, args].concat())
        }
        Verb::Bench(Bench::Sense { machine, parts, args }) => {
            bench::guest::measure(&places, &machine, "sense", &[parts, args].concat())
        }
        Verb::Bench(Bench::Stream { args }) => bench::stream::measure(&places, &args),
        Verb::Bench(Bench::Policy { args }) => bench::policy::measure(&places, &args),
        Verb::Fuzz { target, seconds } => fuzz::fuzz(&places, target, seconds),
        Verb::Tidy => {
            tidy::check(&places)?;
            Ok(0)
        }
    }
}

fn vm(places: &Places, vm: Vm) -> anyhow::Result<u8> {
    match vm {
        Vm::Exec { machine, kube, timeout, script } => {
            let machine = if kube { MachineArgs { init: Init::Kube, ..machine } } else { machine };
            let guests = Guests::prepare(places, Steps::Aside, &[machine.kernel], Kind::Development, &[])?
                .with_init(machine.init, Steps::Aside)?;
            let script = script.as_bytes();
            prepared(&machine, seconds(timeout), only(&guests)?, script).exec(
                &guests,
                Box::new(io::stdout()),
                Box::new(io::stderr()),
            )
        }
        Vm::Shell { machine } => {
            let guests = Guests::prepare(places, Steps::Out, &[machine.kernel], Kind::Development, &[])?
                .with_init(machine.init, Steps::Out)?;
            shell::shell(&guests, &prepared(&machine, Duration::MAX, only(&guests)?, b""))?;
            Ok(0)
        }
        Vm::Test { kernel, all, timeout, filter } => {
            let choice = guest_tests::Choice::of(&kernel, all, filter.as_deref());
            guest_tests::command(places, choice, seconds(timeout))
        }
        Vm::Run { machine, timeout } => demonstration(places, &machine, seconds(timeout)),
    }
}

fn prepared<'a>(
    machine: &'a MachineArgs,
    timeout: Duration,
    kernel: &'a Kernel,
    script: &'a [u8],
) -> Run<'a> {
    let MachineArgs { kernel: _, memory, cpus: _, topology: _, init, boot, file } = machine;
    let cpus = machine.cpus();
    Run {
        kernel,
        init: *init,
        memory_mib: *memory,
        cpus,
        clock: Clock::Host,
        timeout,
        boot,
        files: file,
        script,
    }
}

fn only(guests: &Guests) -> anyhow::Result<&Kernel> {
    guests.kernels.first().context("no kernel was set up")
}

fn demonstration(places: &Places, machine: &MachineArgs, timeout: Duration) -> anyhow::Result<u8> {
    let products = [Product::Demonstration];
    let guests = Guests::prepare(places, Steps::Out, &[machine.kernel], Kind::Development, &products)?
        .with_init(machine.init, Steps::Out)?;
    prepared(machine, timeout, only(&guests)?, b"exec demo").exec(
        &guests,
        Box::new(io::stdout()),
        Box::new(io::stderr()),
    )
}

fn daemon(places: &Places, kind: Kind) -> anyhow::Result<PathBuf> {
    let object = ebpf::provide(places, Steps::Out, kind)?;
    let built =
        Steps::Out.work("enforcer", || build::build(places, object.as_deref(), kind, &[Product::Daemon]))?;
    build::program(&built, "enforcer").map(Path::to_owned)
}

/// Says where the components of Kubernetes are, and how large.
fn kube(places: &Places) -> anyhow::Result<u8> {
    let Components { programs, release } = setup::kube::provide(places, Steps::Out)?;
    Steps::Out.say(format_args!("     the kubelet is {}", release.version));
    for (_, path) in programs {
        let size = path.metadata().with_context(|| format!("cannot read {}", path.display()))?.len();
        Steps::Out.say(format_args!("     {} ({} MiB)", path.display(), size >> 20));
    }
    Ok(0)
}

fn on_host(places: &Places, args: Vec<OsString>) -> anyhow::Result<u8> {
    let args = if args.is_empty() { ["run", "--mode", "dry-run"].map(OsString::from).to_vec() } else { args };
    run::passing_through(Command::new(daemon(places, Kind::Release)?).args(args))?;
    Ok(0)
}
