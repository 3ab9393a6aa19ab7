//! A benchmark's program in a guest.
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
    guest::{Guests, exec::Run, initramfs::FileToAdd},
    places::Places,
    steps::Steps,
};

/// The time limit: work that takes seconds takes minutes in an emulated guest.
const TIMEOUT: Duration = Duration::from_mins(40);

/// The parts of such a guest, with the benchmark's program built.
pub(super) fn prepare(
    places: &Places,
    machine: &MachineArgs,
    program: &'static str,
) -> anyhow::Result<Guests> {
    Guests::prepare(places, Steps::Out, &[machine.kernel], Kind::Release, &[Product::Bench(program)])?
        .with_init(machine.init, Steps::Out)
}

/// Runs a benchmark's program in a guest, with its arguments and further files; returns its exit status.
pub(super) fn run(
    guests: &Guests,
    machine: &MachineArgs,
    program: &str,
    args: &[OsString],
    files: &[FileToAdd],
) -> anyhow::Result<u8> {
    run_into(guests, machine, program, args, files, TIMEOUT, Box::new(io::stdout()))
}

/// The same with another time limit, and its standard output redirected.
pub(super) fn run_into(
    guests: &Guests,
    machine: &MachineArgs,
    program: &str,
    args: &[OsString],
    files: &[FileToAdd],
    timeout: Duration,
    out: Box<dyn Write + Send>,
) -> anyhow::Result<u8> {
    let MachineArgs { kernel: _, memory, cpus, init, boot, file } = machine;
    let files: Vec<_> = files.iter().chain(file).cloned().collect();
    let script = command_line(program, args);
    let run = Run {
        kernel: guests.kernels.first().context("no kernel was set up")?,
        init: *init,
        memory_mib: *memory,
        cpus: *cpus,
        timeout,
        boot,
        files: &files,
        script: &script,
    };
    run.exec(guests, out, Box::new(io::stderr()))
}

/// The words quoted for a shell.
fn command_line(program: &str, args: &[OsString]) -> Vec<u8> {
    args.iter().fold(program.as_bytes().to_vec(), |mut line, arg| {
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
        let line = command_line("bench", &["--rate".into(), "it's; $(true)".into()]);
        assert_eq!(String::from_utf8_lossy(&line), r"bench '--rate' 'it'\''s; $(true)'");
    }
}
