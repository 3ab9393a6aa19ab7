//! The command line of one emulated machine.
use std::{path::Path, process::Command};

use crate::{
    guest::{cpus::Cpus, kernel::Kernel},
    setup::qemu::Qemu,
};

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// The processor itself.
    Kvm,
    /// Emulation: works everywhere, about ten times slower.
    Tcg,
}

/// What an emulated machine's clock follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// This machine's own clock.
    Host,
    /// The instructions that the guest has executed, each one nanosecond: what something takes there does not depend on
    /// how fast it is emulated. Time without an instruction to execute is skipped.
    Instructions,
}

/// What a machine is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) accelerator: Accelerator,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: Cpus,
    pub(crate) clock: Clock,
}

impl Machine<'_> {
    /// QEMU with a machine that logs its console to a file and has no other devices.
    ///
    /// The machine dies with the thread that starts it.
    pub(crate) fn command(
        self,
        qemu: &Qemu,
        console: &Path,
        kernel_arguments: &str,
        boot: &[String],
    ) -> Command {
        let emulator = qemu.command();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(emulator.get_program()).args(emulator.get_args());
        for (name, value) in emulator.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let Self { kernel, accelerator, memory_mib, cpus, clock } = self;
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        // Without the i8254 the kernel calibrates its clock against the HPET. Against the i8254 calibration fails on
        // a busy host, which is the likely cause of a clock that ran more than twice as fast in one guest of a
        // hundred.
        command.args(["-machine", "q35,vmport=off,pit=off"]).args(cpus.arguments(memory_mib));
        match accelerator {
            Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
            // A processor without SMAP, SMEP and 5-level paging has less to emulate: page faults are twice as fast.
            // Its RDRAND seeds the guest's random numbers, for which programs would otherwise wait minutes.
            //
            // A guest whose clock follows its instructions takes 1.6 times the CPU, and guests side by side have none to
            // spare.
            //
            // With more processors than the host has, a processor may run on while another patches the kernel's code and is
            // kept from finishing it: seen as an oops by int3 in `get_page_from_freelist`, when cpusets were first used.
            Accelerator::Tcg => {
                let thread = match (cpus, clock) {
                    (Cpus::Count(_), Clock::Host) => "tcg,thread=multi",
                    (Cpus::Topology(_), _) | (_, Clock::Instructions) => "tcg,thread=single",
                };
                if clock == Clock::Instructions {
                    command.args(["-icount", "shift=0,sleep=off"]);
                }
                command.args(["-accel", thread, "-cpu", "Nehalem,+rdrand"])
            }
        };
        // Appended, as QEMU's own output goes to the same file.
        command.arg("-chardev").arg(prefixed("file,id=console,append=on,path=", console));
        command.args(["-serial", "chardev:console"]);
        command.arg("-kernel").arg(&kernel.image);
        // A guest has no clock worth checking the time stamp counter against, and nothing to protect.
        command.args([
            "-append",
            &format!(
                "console=ttyS0 panic=-1 quiet tsc=reliable mitigations=off random.trust_cpu=on {kernel_arguments} {}",
                boot.join(" ")
            ),
        ]);
        command
    }
}

/// `prefix` and a path in one argument.
pub(crate) fn prefixed(prefix: &str, path: &Path) -> std::ffi::OsString {
    let mut argument = std::ffi::OsString::from(prefix);
    argument.push(path);
    argument
}
