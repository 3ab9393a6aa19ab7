//! The `enforcer` binary. Its verbs are in [`enforcer::cli`].

use std::process::ExitCode;

/// An allocator with a reserve for when the kernel provides no more memory.
#[global_allocator]
static HEAP: enforcer::Heap = enforcer::Heap;

fn main() -> ExitCode {
    enforcer::abort_on_panic();
    enforcer::cli::main(std::env::args_os())
}
