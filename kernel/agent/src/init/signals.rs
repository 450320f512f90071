//! Signals to process 1, which takes them one at a time.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::system;

/// Signal of the power button (`CONFIG_ACPI_TINY_POWER_BUTTON_SIGNAL`). Linux sends it to process 1 alone.
pub(super) const POWER_BUTTON: i32 = 38;
/// Signals that go on to the main process.
const FORWARDED: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];

/// A signal that process 1 takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Signal {
    /// A child ended.
    Child,
    /// The VM shall end: its power button or Ctrl-Alt-Del was pressed.
    Stop,
    /// A signal to the main process.
    Forward(i32),
}

fn taken() -> impl Iterator<Item = i32> {
    FORWARDED.into_iter().chain([libc::SIGCHLD, POWER_BUTTON])
}

/// Keeps signals until [`wait`] takes them, and makes Ctrl-Alt-Del a signal rather than a reset.
pub(super) fn block() {
    system::block_signals(taken());
    let _ = rustix::system::reboot(rustix::system::RebootCommand::CadOff);
}

/// Takes the next signal, or none if the time has passed.
pub(super) fn wait(time: Option<Duration>) -> Option<Signal> {
    let (number, is_of_kernel) = system::next_signal(taken(), time)?;
    Some(meaning(number, is_of_kernel))
}

/// Takes the next signal, or none if the time has passed or the link has a message.
pub(super) fn wait_beside(link: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Option<Signal> {
    // Without the descriptor, a link's message waits for the next signal.
    let (Some(link), Ok(signals)) = (link, system::signal_file(taken())) else { return wait(time) };
    system::await_input([link, signals.as_fd()], time);
    wait(Some(Duration::ZERO))
}

fn meaning(number: i32, is_of_kernel: bool) -> Signal {
    match number {
        libc::SIGCHLD => Signal::Child,
        POWER_BUTTON => Signal::Stop,
        libc::SIGINT if is_of_kernel => Signal::Stop,
        other => Signal::Forward(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_the_power_button_stop_and_other_signals_go_on() {
        assert_eq!(meaning(libc::SIGINT, true), Signal::Stop);
        assert_eq!(meaning(38, true), Signal::Stop);
        assert_eq!(meaning(libc::SIGINT, false), Signal::Forward(2));
        assert_eq!(meaning(libc::SIGTERM, false), Signal::Forward(15));
        assert_eq!(meaning(libc::SIGCHLD, true), Signal::Child);
    }
}
