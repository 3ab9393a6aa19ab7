//! The `enforcer` binary: its verbs are in [`enforcer::cli`].

use std::{
    panic,
    process::{self, ExitCode},
};

fn main() -> ExitCode {
    abort_on_panic();
    enforcer::cli::main(std::env::args_os())
}

/// A daemon that lost a thread would seem to live: however it was built, it ends as a whole and is started again.
fn abort_on_panic() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        enforcer::logging::last_words(|| tell(panicked));
        process::abort();
    }));
}
