//! Whether KVM works here: tried once per boot.
use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;

use crate::{
    guest::{
        cpus::Cpus,
        kernel::Kernel,
        machine::{Accelerator, Clock, Machine},
    },
    places::Places,
    setup::qemu::Qemu,
    steps::Work,
};

/// A guest on KVM prints its last line long before this.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Returns the remembered choice, or tries KVM: `/dev/kvm` may exist and still not run a stock kernel.
pub(crate) fn choose(places: &Places, qemu: &Qemu, kernel: &Kernel) -> anyhow::Result<(Accelerator, Work)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot read the boot id")?;
    let memory = places.cache.join("accelerator");
    let remembered = fs::read_to_string(&memory).unwrap_or_default();
    match remembered.strip_prefix(&boot) {
        Some("kvm") => return Ok((Accelerator::Kvm, Work::Cached)),
        Some("tcg") => return Ok((Accelerator::Tcg, Work::Cached)),
        _ => {}
    }
    let works = fs::File::options().read(true).write(true).open("/dev/kvm").is_ok() && boots(qemu, kernel)?;
    let (accelerator, word) = if works { (Accelerator::Kvm, "kvm") } else { (Accelerator::Tcg, "tcg") };
    fs::write(&memory, format!("{boot}{word}"))
        .with_context(|| format!("cannot write {}", memory.display()))?;
    Ok((accelerator, Work::Done))
}

/// Boots a kernel without a root: its last line says that the root is missing.
fn boots(qemu: &Qemu, kernel: &Kernel) -> anyhow::Result<bool> {
    let console = tempfile::NamedTempFile::new()?;
    let machine = Machine {
        kernel,
        accelerator: Accelerator::Kvm,
        memory_mib: 256,
        cpus: Cpus::Count(1),
        clock: Clock::Host,
    };
    let mut command = machine.command(qemu, console.path(), "", &[]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start QEMU")?;
    let end = Instant::now() + TIMEOUT;
    let mut booted = false;
    while !booted && Instant::now() < end {
        let ended = child.try_wait()?.is_some();
        let printed = fs::read(console.path())?;
        booted = String::from_utf8_lossy(&printed).contains("Unable to mount root");
        if ended {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // It may have ended by itself.
    drop(child.kill());
    child.wait()?;
    Ok(booted)
}
