//! From crossing a threshold to the first signal, side by side with another daemon in one guest.
use std::{ffi::OsString, io, os::unix::ffi::OsStrExt as _, time::Duration};

use anyhow::Context as _;

use crate::{
    cli::MachineArgs,
    guest::{Guests, exec::Run},
    places::Places,
    setup,
    steps::Steps,
};

/// The whole of it: 20 runs of two contenders take some minutes in an emulated guest.
const TIMEOUT: Duration = Duration::from_mins(40);

/// From crossing a threshold to the first signal, beside earlyoom.
pub(crate) fn measure(places: &Places, machine: &MachineArgs, args: &[OsString]) -> anyhow::Result<u8> {
    let contenders = setup::contenders(places, Steps::Out)?;
    let guests =
        Guests::prepare(places, Steps::Out, &[machine.kernel])?.with_init(machine.init, Steps::Out)?;
    let MachineArgs { kernel: _, memory, cpus, init, file } = machine;
    let files: Vec<_> = contenders.iter().chain(file).cloned().collect();
    let script = command_line("bench-evict", args);
    let run = Run {
        kernel: guests.kernels.first().context("no kernel was set up")?,
        init: *init,
        memory_mib: *memory,
        cpus: *cpus,
        timeout: TIMEOUT,
        files: &files,
        programs: &[],
        script: &script,
    };
    run.exec(&guests, Box::new(io::stdout()), Box::new(io::stderr()))
}

/// The words as a shell reads them back, whatever is in them.
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
