//! Exit statuses of `volt-vmm`, in one place; `--help` prints the same table.

use volt_vmm::{Ending, Error};

use crate::failure::Failure;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The guest powered off, a client or a key ended the VM, or the command succeeded.
    Success,
    /// An error, printed on standard error; or `doctor` found that this host cannot create a VM.
    Error,
    /// The guest asked for a reboot.
    Reboot,
    /// A vCPU triple-faulted.
    TripleFault,
    /// The guest crashed in another way.
    Crashed,
    /// A signal ended the process.
    Signal(i32),
}

impl Status {
    /// The table in `--help`. Status 2 comes from clap, for invalid arguments.
    pub(crate) const HELP: &str = "\
Exit status:
  0      the guest powered off, Ctrl-A X ended the VM, or the command succeeded
  1      error, printed on standard error
  2      invalid arguments
  3      the guest asked for a reboot
  4      the guest ended in a triple fault
  5      the guest crashed in another way
  101    bug in volt-vmm, located on standard error
  128+N  ended by signal N (130: SIGINT, 143: SIGTERM)";

    /// Returns the status for the end of a guest. `by_signal` is the signal that asked for it, or 0.
    pub(crate) fn of_ending(ending: Ending, by_signal: i32) -> Self {
        match ending {
            Ending::Stopped if by_signal != 0 => Self::Signal(by_signal),
            Ending::Stopped | Ending::Poweroff => Self::Success,
            Ending::Reboot => Self::Reboot,
            Ending::TripleFault => Self::TripleFault,
        }
    }

    /// Returns the status for an error of the process.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::Vmm(Error::Crashed(_)) => Self::Crashed,
            _ => Self::Error,
        }
    }

    /// Returns the number for exit(2).
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Error => 1,
            Self::Reboot => 3,
            Self::TripleFault => 4,
            Self::Crashed => 5,
            Self::Signal(number) => 128_u8.saturating_add(u8::try_from(number).unwrap_or(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_documented_status() {
        assert_eq!(Status::of_ending(Ending::Poweroff, 0).code(), 0);
        assert_eq!(Status::of_ending(Ending::Stopped, 0).code(), 0);
        assert_eq!(Status::of_ending(Ending::Stopped, libc::SIGTERM).code(), 143);
        assert_eq!(Status::of_ending(Ending::Poweroff, libc::SIGTERM).code(), 0);
        assert_eq!(Status::of_ending(Ending::Reboot, 0).code(), 3);
        assert_eq!(Status::of_ending(Ending::TripleFault, 0).code(), 4);
        assert_eq!(Status::of_failure(&Error::Crashed("x".into()).into()).code(), 5);
        assert_eq!(Status::of_failure(&Failure::Server("x".into())).code(), 1);
    }

    #[test]
    fn troubleshooting_has_every_status_of_the_help_and_no_other() {
        let rows = |text: &'static str, before: &str| -> Vec<&'static str> {
            let of_row = text.lines().filter_map(|line| line.strip_prefix(before)?.split_whitespace().next());
            of_row.filter(|status| status.starts_with(|digit: char| digit.is_ascii_digit())).collect()
        };
        let page = include_str!("../../../docs/troubleshooting.md");
        let documented = rows(page.split("## Errors").next().unwrap(), "| ");
        assert_eq!(documented, rows(Status::HELP, "  "));
        assert_eq!(documented.len(), 8);
    }
}
