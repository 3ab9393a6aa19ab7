//! The `enforcer` binary: its verbs are in [`enforcer::cli`].

use std::{
    panic,
    process::{self, ExitCode},
};

/// An allocator that has something left where the kernel gives no more.
#[global_allocator]
static HEAP: enforcer::Heap = enforcer::Heap;

fn main() -> ExitCode {
    abort_on_panic();
    enforcer::cli::main(std::env::args_os())
}

/// A daemon that lost a thread would seem to live: however it was built, it ends as a whole and is started again.
fn abort_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        tell(panicked);
        process::abort();
    }));
}
