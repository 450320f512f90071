//! `volt-vmm exec`: runs a command in a VM that runs an image.

use std::io::{IsTerminal as _, stdin};

use clap::Args;

use super::target::Target;
use crate::agent::{Agent, CallError, Command, End, Selected};
use crate::cli::{Outcome, complete, environment};
use crate::failure::Failure;
use crate::messages::say;
use crate::process::exit::Status;
use crate::run_dir::files;
use crate::run_dir::vm_dir::VmDir;
use crate::terminal;
use crate::terminal::attached::{self, Event, Keys, Left};

/// Statuses of a program that does not exist, and of one that may not run, as shells have them.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// The status of a command that cannot be prepared, such as for a user that the image lacks.
const NOT_PREPARED: u8 = 125;

/// Run a command in a VM that runs an image. Ends with the command's status
///
/// Example: volt-vmm exec -it web /bin/bash
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// Name of the VM, or the beginning of its id
    #[arg(add = complete::living_vms())]
    vm: String,

    /// Program and arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,

    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,

    /// Give the command a terminal. Ctrl-P Ctrl-Q leaves it
    #[arg(short, long)]
    tty: bool,

    /// Set a variable of the command's environment, or take it from here: NAME=VALUE or NAME. Repeatable
    #[arg(short, long = "env", value_name = "VARIABLE")]
    env: Vec<String>,

    /// Start the command in this directory
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,

    /// Run the command as this user: USER[:GROUP], names of the image or numbers
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
}

impl Exec {
    pub(crate) fn execute(self) -> Outcome {
        if self.tty && self.interactive && !stdin().is_terminal() {
            let problem = "standard input is no terminal; leave out --tty (-t)";
            return Err(Failure::config("tty", problem));
        }
        let vm = running(&self.vm)?;
        let agent = agent_of(&vm);
        // As docker has it, the main process's, but for what the options say.
        let main = vm.record.main.as_ref();
        let of_main = |part: Option<&String>| part.filter(|part| !part.is_empty()).cloned();
        let mut env = vec![format!("HOSTNAME={}", vm.name())];
        env.extend(self.tty.then(|| "TERM=xterm".to_owned()));
        env.extend(main.into_iter().flat_map(|main| main.env.clone()));
        let command = Command {
            argv: self.command,
            env: environment::map(&environment::of(env, &[], &self.env)?),
            cwd: self
                .workdir
                .or_else(|| of_main(main.map(|main| &main.cwd)).or(main.map(|_| "/".to_owned()))),
            user: self.user.or_else(|| of_main(main.map(|main| &main.user))),
            terminal: self.tty.then(|| terminal::size().unwrap_or_default()),
            has_input: self.interactive,
        };
        let mut session = match agent.start(&command)? {
            Ok(session) => session,
            Err(CallError { code, message }) => {
                say(format!("volt-vmm: VM {}: {message}", self.vm));
                return Ok(Status::Program(match code.as_str() {
                    "not_found" => NOT_FOUND,
                    "permission_denied" => NOT_EXECUTABLE,
                    "unauthenticated" | "invalid_argument" => NOT_PREPARED,
                    _ => return Ok(Status::Error),
                }));
            }
        };
        let process = Selected::Pid(session.pid());
        let keys = (self.tty && self.interactive).then_some(Keys::ControlPQ);
        let left = attached::connect(&mut session, keys, |event| {
            match event {
                Event::Signal(number) => {
                    let sent = agent.signal(&process, number);
                    sent.unwrap_or_else(|failure| say(format!("volt-vmm: {failure}")));
                }
                Event::Resized if self.tty => {
                    // A paused VM takes the size later, or never.
                    let _ = terminal::size().map(|size| agent.resize(&process, size));
                }
                Event::EndVm | Event::Resized | Event::Tick => {}
            }
            Ok(true)
        })?;
        match session.end() {
            Some(End { status, .. }) => Ok(Status::Program(*status)),
            None if left == Left::Detached => Ok(Status::Success),
            None => Err(Failure::vm(&self.vm, "the connection to its agent broke before the command's end")),
        }
    }
}

/// A VM that runs.
///
/// # Errors
/// It does not, or there is none of this name.
pub(super) fn running(word: &str) -> Result<VmDir, Failure> {
    let target = Target::find(word)?;
    target.api()?;
    target.with_name()
}

/// The agent of a VM.
pub(super) fn agent_of(vm: &VmDir) -> Agent {
    Agent::new(&vm.file(files::VSOCK), vm.name().as_str())
}
