//! Development commands of the project, called as `cargo xtask`: set-up, build, guests, tests, demonstration.
mod bench;
mod budget;
mod build;
mod cli;
mod commands;
mod deny;
mod dist;
mod ebpf;
mod failure;
mod fuzz;
mod guest;
mod guest_tests;
mod labelled;
mod pace;
mod pictures;
mod pins;
mod places;
mod rounds;
mod run;
mod setup;
mod soak;
mod steps;
mod tally;
mod test;
mod tidy;
mod timeline;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Parser as _;

use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are not errors, and go to standard output.
            let status = if error.use_stderr() { failure::USAGE } else { 0 };
            drop(error.print());
            return status.into();
        }
    };
    match commands::dispatch(cli) {
        Ok(status) => status.into(),
        Err(error) => {
            drop(writeln!(io::stderr(), "error: {error:#}"));
            error.downcast_ref::<Failure>().map_or(1, |failure| failure.status).into()
        }
    }
}
