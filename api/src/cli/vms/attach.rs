//! `volt-vmm attach` and `console`: the terminal becomes that of a running VM.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::exec::agent_of;
use super::inspect::VmInfo;
use super::naming::TO_STOP;
use super::stop::within;
use super::target::{Target, TargetArgs};
use super::wait;
use crate::cli::main_streams::{self, Place};
use crate::cli::{Outcome, complete};
use crate::client;
use crate::failure::Failure;
use crate::messages::say;
use crate::process::exit::Status;
use crate::run_dir::files;
use crate::serial::CLIENTS;
use crate::terminal::attached::{self, Event, Left};

/// Attach this terminal to a running VM: to its serial port, or to the main process of an image
///
/// Ctrl-A D leaves, and the VM goes on; of an image, Ctrl-P Ctrl-Q does. Several terminals may be attached at
/// once. Ends with the status of the VM if that ends.
///
/// Example: volt-vmm attach web
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// Name of the VM, or the beginning of its id
    #[arg(add = complete::living_vms())]
    vm: String,
}

/// Attach this terminal to the console beside the serial port (hvc0, option --console of run), or to the
/// serial port of a VM that runs an image. Ctrl-A D leaves
///
/// One terminal at a time can have it.
///
/// Example: volt-vmm console web
#[derive(Debug, Args)]
pub(crate) struct AttachConsole {
    #[command(flatten)]
    target: TargetArgs,
}

/// The time in which a VM whose console has ended records how it ended.
const TO_FINISH: Duration = Duration::from_secs(2);

impl Attach {
    pub(crate) fn execute(self) -> Outcome {
        let target = Target::find(&self.vm)?;
        target.api()?;
        let vm = target.with_name()?;
        let left = match vm.record.main_with_streams() {
            Some(main) => Ok(main_streams::pass(&agent_of(&vm), &vm, main, Place::Guest)?),
            None => attach(&vm.file(files::SERIAL), &vm.record.api_socket)?,
        };
        if left != Ok(Left::Ended) {
            return left_by(left);
        }
        if vm.record.main_with_streams().is_none()
            && !within(TO_FINISH, || vm.has_outcome() || !vm.is_alive())
        {
            let problem = format!(
                "it runs, and its serial port closed the connection: {CLIENTS} terminals have it already"
            );
            return Err(Failure::vm(vm.name().as_str(), problem));
        }
        wait::end_as(&vm)
    }
}

impl AttachConsole {
    pub(crate) fn execute(self) -> Outcome {
        let target = self.target.find()?;
        let api = target.api()?;
        if let Target::Named(vm) = &target
            && vm.record.main.is_some()
        {
            return left_by(attach(&vm.file(files::SERIAL), api)?);
        }
        let config = VmInfo::get(api)?.config;
        let console = config.and_then(|config| config.devices.console).ok_or_else(|| {
            Failure::vm(&target.label(), "it has no console beside its serial port; start it with --console")
        })?;
        left_by(attach(console.socket.as_path(), api)?)
    }
}

/// How the user left; or the signal that ended this client.
type LeftBy = Result<Left, i32>;

fn left_by(left: LeftBy) -> Outcome {
    Ok(left.map_or_else(Status::Signal, |_| Status::Success))
}

fn attach(console: &Path, api: &Path) -> Result<LeftBy, Failure> {
    let stream = UnixStream::connect(console).map_err(|error| {
        Failure::system(format!("connect to the console at {}", console.display()), error)
    })?;
    let mut by_signal = None;
    let left = attached::attach(&stream, |event| {
        match event {
            Event::EndVm => client::put_within(api, "/v1/stop", &(), TO_STOP)?,
            // The VM goes on.
            Event::Signal(signal) => by_signal = Some(signal),
            Event::Resized | Event::Tick => {}
        }
        Ok(by_signal.is_none())
    })?;
    if left == Left::Detached {
        say("");
    }
    Ok(by_signal.map_or(Ok(left), Err))
}
