//! The `enforcer` binary: its verbs are in [`enforcer::cli`].

use std::process::ExitCode;

/// An allocator that has something left where the kernel gives no more.
#[global_allocator]
static HEAP: enforcer::Heap = enforcer::Heap;

fn main() -> ExitCode {
    enforcer::abort_on_panic();
    enforcer::cli::main(std::env::args_os())
}
