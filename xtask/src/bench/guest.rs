//! A benchmark in a guest.
use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStrExt as _,
    time::Duration,
};

use anyhow::Context as _;

use crate::{
    build::{Kind, Product},
    cli::MachineArgs,
    guest::{Guests, exec::Run, initramfs::FileToAdd, machine::Clock},
    places::Places,
    steps::Steps,
};

/// The time limit: work that takes seconds takes minutes in an emulated guest.
const TIMEOUT: Duration = Duration::from_mins(40);

/// The program that measures, in the guest and here.
pub(super) const PROGRAM: &str = "bench";

/// Runs one of the program's benchmarks in a guest; returns its exit status.
pub(crate) fn measure(
    places: &Places,
    machine: &MachineArgs,
    bench: &str,
    args: &[OsString],
) -> anyhow::Result<u8> {
    run(&prepare(places, machine, Steps::Out)?, machine, bench, args)
}

/// Prints the records of OOM kills in such a guest, and nothing else.
pub(crate) fn capture(places: &Places, machine: &MachineArgs) -> anyhow::Result<u8> {
    run(&prepare(places, machine, Steps::Aside)?, machine, "capture", &[])
}

/// The parts of such a guest, with the benchmarks built.
pub(super) fn prepare(places: &Places, machine: &MachineArgs, steps: Steps) -> anyhow::Result<Guests> {
    Guests::prepare(places, steps, &[machine.kernel], Kind::Release, &[Product::Bench])?
        .with_init(machine.init, steps)
}

/// Runs a benchmark in such a guest, with its arguments; returns its exit status.
pub(super) fn run(
    guests: &Guests,
    machine: &MachineArgs,
    bench: &str,
    args: &[OsString],
) -> anyhow::Result<u8> {
    run_into(guests, (machine, Clock::Host), bench, args, &[], TIMEOUT, Box::new(io::stdout()))
}

/// The same in a guest whose clock follows its instructions, if it is emulated.
pub(super) fn run_counted(
    guests: &Guests,
    machine: &MachineArgs,
    bench: &str,
    args: &[OsString],
) -> anyhow::Result<u8> {
    let machine = (machine, Clock::Instructions);
    run_into(guests, machine, bench, args, &[], TIMEOUT, Box::new(io::stdout()))
}

/// The same with a clock, further files, another time limit, and its standard output redirected.
pub(super) fn run_into(
    guests: &Guests,
    (machine, clock): (&MachineArgs, Clock),
    bench: &str,
    args: &[OsString],
    files: &[FileToAdd],
    timeout: Duration,
    out: Box<dyn Write + Send>,
) -> anyhow::Result<u8> {
    let MachineArgs { kernel: _, memory, cpus: _, topology: _, init, boot, file } = machine;
    let files: Vec<_> = files.iter().chain(file).cloned().collect();
    let script = command_line(&[&[OsString::from(bench)], args].concat());
    let run = Run {
        kernel: guests.kernels.first().context("no kernel was set up")?,
        init: *init,
        memory_mib: *memory,
        cpus: machine.cpus(),
        clock,
        timeout,
        boot,
        files: &files,
        script: &script,
    };
    run.exec(guests, out, Box::new(io::stderr()))
}

/// The program with its words, quoted for a shell.
fn command_line(args: &[OsString]) -> Vec<u8> {
    args.iter().fold(PROGRAM.as_bytes().to_vec(), |mut line, arg| {
        line.extend_from_slice(b" '");
        for byte in arg.as_bytes() {
            match byte {
                b'\'' => line.extend_from_slice(br"'\''"),
                _ => line.push(*byte),
            }
        }
        line.push(b'\'');
        line
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        let line = command_line(&["--rate".into(), "it's; $(true)".into()]);
        assert_eq!(String::from_utf8_lossy(&line), r"bench '--rate' 'it'\''s; $(true)'");
    }
}
