//! An interactive shell in a guest.
use std::process::Stdio;

use anyhow::Context as _;

use crate::guest::{
    Guests,
    exec::Run,
    initramfs,
    machine::{Machine, prefixed},
};

/// Boots a guest whose console device is this terminal; ends with the shell.
pub(crate) fn shell(guests: &Guests, run: &Run<'_>) -> anyhow::Result<()> {
    let folder = tempfile::Builder::new().prefix("enforcer-guest-").tempdir()?;
    let initrd = folder.path().join("initrd");
    let (bases, arguments) = guests.bases(run.kernel, run.init)?;
    let files = [guests.files_of(run.init), run.files].concat();
    initramfs::write_run(&initrd, &bases, run.init.root(), &guests.programs_of(run.init), &files, b"")?;
    let size = rustix::termios::tcgetwinsize(std::io::stdin()).ok().filter(|size| size.ws_row > 0);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));

    let machine = Machine {
        kernel: run.kernel,
        accelerator: guests.accelerator,
        memory_mib: run.memory_mib,
        cpus: run.cpus,
        clock: run.clock,
    };
    let console = folder.path().join("console");
    let mut command =
        machine.command(&guests.qemu, &console, &format!("{arguments} rig.shell={rows}x{columns}"), run.boot);
    command.arg("-initrd").arg(&initrd).args(["-device", "virtio-serial-pci"]);
    // QEMU sets the terminal to raw mode and back, and keys such as ^C go to the guest.
    command.args(["-chardev", "stdio,id=shell,signal=off", "-device", "virtconsole,chardev=shell"]);
    command.arg("-chardev").arg(prefixed("file,id=report,path=", &folder.path().join("report")));
    command.args(["-device", "virtserialport,chardev=report,name=enforcer.report"]);
    let status = command.stderr(Stdio::inherit()).status().context("cannot start QEMU through setpriv")?;
    let report = std::fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    anyhow::ensure!(
        status.success() && report.lines().any(|line| line.starts_with("exit ")),
        "the guest ended without its shell's status; its console said:\n{}",
        String::from_utf8_lossy(&std::fs::read(&console).unwrap_or_default())
    );
    Ok(())
}
