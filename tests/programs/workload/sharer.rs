//! A child that shares its parent's memory when the limit is hit.
use std::{
    fs::{self, Permissions},
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    process::Command,
};

use anyhow::{Context as _, bail};

use crate::{
    memory::{self, Held},
    report::Clock,
};

/// Taken between two children: much less than a child takes, so that it is a child who hits the limit.
const STEP_BYTES: u64 = 256 << 10;

/// One argument: the kernel takes none of 128 KiB.
const ARGUMENT_BYTES: usize = 120 << 10;

/// How many each child is given: all together, the kernel takes a quarter of the stack's limit of 8 MiB.
const ARGUMENTS: usize = 12;

/// Takes memory until there is so much, in small steps, and after each starts a child.
///
/// The child runs in its parent's memory (`CLONE_VM | CLONE_VFORK`, as the C library starts programs) until it has
/// begun its program. It never does: what it is given is no program, which the kernel finds out after it has copied the
/// arguments. Those copies are the largest amount that is taken here at once, so a limit is hit by a child that is not a
/// thread of the process whose memory it uses.
pub(crate) fn spawn(clock: &Clock, bytes: u64) -> anyhow::Result<()> {
    let no_program = std::env::temp_dir().join(format!("workload-{}", std::process::id()));
    // Not empty: one without content would pass for a script.
    fs::write(&no_program, b"\x01no program")
        .and_then(|()| fs::set_permissions(&no_program, Permissions::from_mode(0o755)))
        .with_context(|| format!("cannot make {}", no_program.display()))?;
    let mut command = Command::new(&no_program);
    command.args(vec!["a".repeat(ARGUMENT_BYTES); ARGUMENTS]);
    let mut held = Held::default();
    while held.bytes() < bytes && !clock.is_over() {
        held.grow_to((held.bytes() + STEP_BYTES).min(bytes), clock)?;
        match command.spawn() {
            Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {}
            // The child was killed, and its parent is about to be.
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {}
            Err(error) => return Err(error).context("a child failed otherwise than it should"),
            Ok(_) => bail!("{} is a program", no_program.display()),
        }
    }
    memory::keep("spawn", clock, held.bytes(), held.bytes() >= bytes)
}
