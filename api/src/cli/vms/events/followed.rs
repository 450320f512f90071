//! A VM that is followed from its first event to its end.

use super::line::{Happening, Printer};
use crate::cli::vms::target::Target;
use crate::client::events::EventStream;
use crate::cures;
use crate::failure::Failure;
use crate::messages::say;
use crate::rest::{Event, EventState};
use crate::run_dir::vm_dir::VmDir;

/// See the module.
#[derive(Debug)]
pub(super) struct Followed {
    target: Target,
    /// Absent while the VM starts, and after its last event.
    stream: Option<EventStream>,
    /// Whether no stream follows: the VM ends, or its API refuses.
    is_over: bool,
    /// Whether the start is still to be printed.
    has_arrived: bool,
    /// Whether the VM was seen to have started.
    has_started: bool,
    /// The state that was printed last.
    state: Option<EventState>,
}

impl Followed {
    pub(super) fn of(target: Target) -> Self {
        Self { target, stream: None, is_over: false, has_arrived: false, has_started: false, state: None }
    }

    /// A VM that appeared while others were followed.
    pub(super) fn arrived(vm: VmDir) -> Self {
        Self { has_arrived: true, ..Self::of(Target::Named(vm.into())) }
    }

    pub(super) fn stream(&self) -> Option<&EventStream> {
        self.stream.as_ref()
    }

    /// Prints what has happened. Returns false after the end.
    ///
    /// # Errors
    /// Standard output takes no more, or no process serves the socket.
    pub(super) fn step(&mut self, printer: Printer) -> Result<bool, Failure> {
        if self.has_arrived
            && let Target::Named(vm) = &self.target
        {
            // Before the second look: a VM that has ended starts no more.
            let is_alive = vm.is_alive();
            if !vm.has_started() {
                // A start that is refused, as of a fork, frees the name again.
                return Ok(is_alive);
            }
            self.print(printer, &Happening::started(vm))?;
            (self.has_arrived, self.has_started) = (false, true);
        }
        if self.stream.is_none() && !self.is_over {
            self.connect()?;
        }
        self.take_events(printer)?;
        if self.stream.is_some() {
            return Ok(true);
        }
        match &self.target {
            Target::Named(vm) => match vm.end() {
                // The directory may be gone by now, with the record.
                Some(end) if self.has_started || vm.has_started() => {
                    self.print(printer, &Happening::ended(end)).map(|()| false)
                }
                Some(_) => Ok(false),
                None => Ok(true),
            },
            Target::Socket(_) => Ok(false),
        }
    }

    /// Connects, if the VM's API is ready.
    fn connect(&mut self) -> Result<(), Failure> {
        match (EventStream::open(self.socket()), &self.target) {
            (Ok(stream), _) => (self.stream, self.has_started) = (Some(stream), true),
            // It starts, or has just ended.
            (Err(_), Target::Named(_)) => {}
            (Err(error), Target::Socket(socket)) => {
                return Err(Failure::socket(socket, format!("cannot connect: {error}")));
            }
        }
        Ok(())
    }

    fn socket(&self) -> &std::path::Path {
        match &self.target {
            Target::Named(vm) => &vm.record.api_socket,
            Target::Socket(socket) => socket,
        }
    }

    fn take_events(&mut self, printer: Printer) -> Result<(), Failure> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let (events, is_open) = match stream.take() {
            Ok(taken) => taken,
            Err(refusal) => {
                let reason = refusal.report(cures::as_option);
                say(format!("volt-vmm: VM {} tells its end alone: {reason}", self.target.label()));
                self.is_over = true;
                (Vec::new(), false)
            }
        };
        for event in events {
            self.tell(printer, event)?;
        }
        if !is_open {
            self.stream = None;
            // A VM without a name leaves no other trace of its end.
            self.is_over |= matches!(self.target, Target::Socket(_));
        }
        Ok(())
    }

    fn tell(&mut self, printer: Printer, event: Event) -> Result<(), Failure> {
        match &event {
            // After another connection it is no news.
            Event::State { state } if self.state.replace(*state) == Some(*state) => return Ok(()),
            Event::Ended { .. } => {
                self.is_over = true;
                // The run directory tells status and cause once the process has ended.
                if matches!(self.target, Target::Named(_)) {
                    return Ok(());
                }
            }
            _ => {}
        }
        self.print(printer, &Happening::Told(event))
    }

    fn print(&self, printer: Printer, happening: &Happening) -> Result<(), Failure> {
        let id = match &self.target {
            Target::Named(vm) => Some(vm.record.id.as_str()),
            Target::Socket(_) => None,
        };
        printer.print(&self.target.label(), id, happening)
    }
}
