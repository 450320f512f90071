//! Signals that cancel a long act of a command.

use std::process::exit;

use super::signal_queue::SignalQueue;
use crate::failure::Failure;
use crate::messages::say_over_progress;

/// The signals that ask this process to end: the first cancels the act, a later one ends the process at once.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: SignalQueue,
    /// The first signal.
    by: Option<i32>,
    is_cancelled: bool,
}

impl Interrupts {
    /// Blocks the signals until this is dropped.
    ///
    /// # Errors
    /// The host has no descriptor.
    pub(crate) fn block() -> Result<Self, Failure> {
        let signals =
            SignalQueue::block_ending().map_err(|source| Failure::system("receive signals", source))?;
        Ok(Self { signals, by: None, is_cancelled: false })
    }

    /// Takes the signals that have come. Calls `cancel` after the first, and at each later call until it
    /// succeeds. Says so on standard error.
    pub(crate) fn heed(&mut self, cancel: impl FnOnce() -> Result<(), Failure>) {
        let came = self.signals.take();
        let is_first = self.by.is_none();
        if let Some(signal) = came.first() {
            if !is_first {
                say_over_progress("volt-vmm: another signal ended this command before its act");
                exit(128 + signal);
            }
            self.by = Some(*signal);
        }
        if self.by.is_none() || self.is_cancelled {
            return;
        }
        let after = "another signal ends this command at once";
        match cancel() {
            Ok(()) => {
                self.is_cancelled = true;
                say_over_progress(format!("volt-vmm: cancelling; {after}"));
            }
            Err(failure) if is_first => {
                say_over_progress(format!("volt-vmm: {failure}; {after}"));
            }
            Err(_) => {}
        }
    }

    /// Returns the outcome of the act, whose error is that of a cancelled one after a signal. A signal that
    /// came too late has no effect on an act that has succeeded.
    pub(crate) fn outcome_of<T>(self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        let late = self.signals.take();
        let by = self.by.or(late.first().copied());
        match (outcome, by) {
            (Err(failure), Some(signal)) => {
                Err(Failure::Interrupted { problem: volt_vmm::problem(&failure), signal })
            }
            (outcome, _) => outcome,
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    /// Sends a signal to this thread alone, which blocks it.
    fn receive_signal() {
        // SAFETY: the signal is blocked, so it stays pending.
        unsafe { libc::raise(libc::SIGTERM) };
    }

    fn refused() -> Failure {
        Failure::Server("refused".to_owned())
    }

    #[test]
    fn act_is_cancelled_after_a_signal_until_that_succeeds() {
        let mut interrupts = Interrupts::block().unwrap();
        interrupts.heed(|| panic!("there is no signal"));
        receive_signal();
        interrupts.heed(|| Err(refused()));
        let mut calls = 0;
        for _ in 0..2 {
            interrupts.heed(|| {
                calls += 1;
                Ok(())
            });
        }
        assert_eq!(calls, 1);
        let outcome = interrupts.outcome_of::<()>(Err(refused()));
        assert!(matches!(outcome, Err(Failure::Interrupted { signal: libc::SIGTERM, .. })), "{outcome:?}");
    }

    #[test]
    fn signal_after_the_act_does_not_change_its_success() {
        let interrupts = Interrupts::block().unwrap();
        receive_signal();
        assert_eq!(interrupts.outcome_of(Ok(7)).unwrap(), 7);
        let interrupts = Interrupts::block().unwrap();
        receive_signal();
        assert!(matches!(interrupts.outcome_of::<()>(Err(refused())), Err(Failure::Interrupted { .. })));
    }
}
