//! Signals that cancel a long act of a command.

use super::signal_queue::SignalQueue;
use crate::failure::Failure;

/// The signals that ask this process to end: the first cancels the act, a second ends the process at once.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: SignalQueue,
    /// The signal that cancelled the act.
    by: Option<i32>,
}

impl Interrupts {
    /// Blocks the signals until this is dropped.
    ///
    /// # Errors
    /// The host has no descriptor.
    pub(crate) fn block() -> Result<Self, Failure> {
        let signals =
            SignalQueue::block_ending().map_err(|source| Failure::system("receive signals", source))?;
        Ok(Self { signals, by: None })
    }

    /// Takes the signals that have come, and calls `cancel` for the first. Says so on standard error.
    pub(crate) fn take(&mut self, cancel: impl FnOnce() -> Result<(), Failure>) {
        let came = self.signals.take();
        let Some(first) = came.first() else { return };
        if self.by.is_some() || came.len() > 1 {
            std::process::exit(128 + first);
        }
        self.by = Some(*first);
        let after = "a second signal ends this command at once";
        match cancel() {
            Ok(()) => eprintln!("volt-vmm: cancelling; {after}"),
            Err(failure) => eprintln!("volt-vmm: {failure}; {after}"),
        }
    }

    /// Returns the outcome of the act, whose error is that of a cancelled one after a signal.
    pub(crate) fn outcome_of<T>(&self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        match (outcome, self.by) {
            (Err(failure), Some(signal)) => {
                Err(Failure::Interrupted { problem: volt_vmm::problem(&failure), signal })
            }
            (outcome, _) => outcome,
        }
    }
}
