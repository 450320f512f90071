//! `volt-vmm completion`: the script by which a shell completes commands, options, and names of VMs and
//! snapshots. The script asks this program at each completion ([`answer`]).

use std::ffi::OsString;
use std::io::stdout;

use clap::{Args, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use super::parsed::whole;
use super::{Arguments, Outcome};
use crate::failure::Failure;
use crate::process::exit::Status;

/// The variable by which a shell asks for completions.
const ASKS: &str = "COMPLETE";
const PROGRAM: &str = "volt-vmm";

/// Print the script that completes commands, options and names in a shell
///
/// bash: add `source <(volt-vmm completion bash)` to ~/.bashrc. zsh: the same with zsh, to ~/.zshrc. fish:
/// add `volt-vmm completion fish | source` to ~/.config/fish/config.fish.
///
/// Example: volt-vmm completion bash
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell: bash, zsh or fish
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Completion {
    pub(crate) fn execute(self) -> Outcome {
        let name = match self.shell {
            Shell::Bash => "bash",
            Shell::Zsh => "zsh",
            Shell::Fish => "fish",
        };
        let shells = Shells::builtins();
        let shell = shells.completer(name).unwrap_or_else(|| unreachable!("clap_complete knows {name}"));
        let written = shell.write_registration(ASKS, PROGRAM, PROGRAM, PROGRAM, &mut stdout());
        written.map_err(|error| Failure::system("print the script", error))?;
        Ok(Status::Success)
    }
}

/// Answers a shell that asks for completions. Returns `None` if none asks.
pub(super) fn answer(arguments: &[OsString]) -> Option<Outcome> {
    std::env::var_os(ASKS).filter(|shell| !shell.is_empty())?;
    let here = std::env::current_dir().ok();
    let complete = CompleteEnv::with_factory(whole::<Arguments>).bin(PROGRAM).completer(PROGRAM);
    match complete.try_complete(arguments.iter().cloned(), here.as_deref()) {
        Ok(true) => Some(Ok(Status::Success)),
        Ok(false) => None,
        Err(error) => Some(Err(Failure::system("complete", std::io::Error::other(error.to_string())))),
    }
}
