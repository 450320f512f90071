//! The binary `volt-vmm`: reads its arguments, runs one subcommand, turns the outcome into an exit status.
//!
//! Downwards from here: `cli` (one file per subcommand) uses `session` (the life of the process around its one VM),
//! which uses `terminal`, `console`, `signals` and `rest`. Nothing here knows KVM.

mod cli;
mod client;
mod console;
mod exit;
mod failure;
mod progress;
mod rest;
mod session;
mod signals;
mod slot;
mod start;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = cli::execute();
    terminal::leave();
    match outcome {
        Ok(status) => status.into(),
        Err(failure) => {
            eprintln!("volt-vmm: {}", volt_vmm::report(&failure));
            exit::Status::of_failure(&failure).into()
        }
    }
}
