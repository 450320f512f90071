//! The streams of the main process in a VM that runs an image, as those of this process.

use crate::agent::{Agent, InputKind, Selected};
use crate::failure::Failure;
use crate::messages::say;
use crate::run_dir::record::MainOfImage;
use crate::run_dir::vm_dir::VmDir;
use crate::terminal;
use crate::terminal::attached::{self, Event, Keys, Left};
use crate::terminal::signal_queue::SignalQueue;

/// The client of a main process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It started the process, and passes all of its output and the whole input.
    Starter,
    /// It came later: output begins now, and other clients may give more input.
    Guest,
}

/// Passes the streams of the main process until it ends, or the user leaves. If the agent starts again, this
/// goes on where it was.
///
/// # Errors
/// The agent does not answer.
pub(super) fn pass(agent: &Agent, vm: &VmDir, main: &MainOfImage, place: Place) -> Result<Left, Failure> {
    let MainOfImage { is_terminal, is_interactive, .. } = *main;
    let kind = InputKind { is_terminal, is_whole: place == Place::Starter };
    let input = is_interactive.then_some(kind);
    let keys = (is_terminal && is_interactive && terminal::is_terminal()).then_some(Keys::ControlPQ);
    // A paused VM takes the size later, or never.
    let resize = || terminal::size().map(|size| agent.resize(&Selected::MAIN, size));
    let mut session = agent.follow_main(place == Place::Starter, input)?;
    if is_terminal && place == Place::Guest {
        resize();
    }
    loop {
        let left = attached::connect(&mut session, keys, |event| {
            match event {
                Event::Signal(number) => {
                    let sent = agent.signal(&Selected::MAIN, number);
                    sent.unwrap_or_else(|failure| say(format!("volt-vmm: {failure}")));
                }
                Event::Resized if is_terminal => drop(resize()),
                Event::EndVm | Event::Resized | Event::Tick => {}
            }
            Ok(true)
        })?;
        if left != Left::Ended || session.end().is_some() {
            return Ok(left);
        }
        // The agent has ended, or the VM before all output was read.
        let signals =
            SignalQueue::block_ending().map_err(|source| Failure::system("block signals", source))?;
        let again = agent.wait_ready(Some(&signals), || vm.is_alive());
        let next = again.and_then(|()| agent.follow_again(&session, input, || vm.is_alive()));
        match next {
            Ok(next) => session = next,
            Err(failure @ Failure::Interrupted { .. }) => return Err(failure),
            Err(failure) => {
                let name = vm.name();
                say(format!("volt-vmm: {failure}"));
                say(format!(
                    "volt-vmm: VM {name}: its last output may be missing here; volt-vmm logs {name} has it"
                ));
                return Ok(Left::Ended);
            }
        }
    }
}
