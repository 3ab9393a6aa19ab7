//! The `enforcer` binary: its verbs are in [`enforcer::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    enforcer::cli::main(std::env::args_os())
}
