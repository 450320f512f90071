//! Exit statuses of `volt-vmm`, in one place; `--help` prints the same table.

use volt_vmm::{Ending, Error};

use crate::failure::Failure;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// The guest powered off, a client or a key ended the VM, or the command succeeded.
    Success,
    /// An error, printed on standard error; or `doctor` found that no VM can be created, or no Linux guest
    /// run.
    Error,
    /// The guest asked for a reboot.
    Reboot,
    /// A vCPU triple-faulted.
    TripleFault,
    /// The guest crashed in another way.
    Crashed,
    /// A thread made a system call that its filter forbids.
    Forbidden,
    /// The guest's kernel panicked, and said so.
    Panicked,
    /// A signal ended the process.
    Signal(i32),
    /// The status of the program that ran in a guest.
    Program(u8),
}

impl Status {
    /// Every status of this program, by number.
    const ALL: [Self; 9] = [
        Self::Success,
        Self::Error,
        Self::Reboot,
        Self::TripleFault,
        Self::Crashed,
        Self::Forbidden,
        Self::Panicked,
        Self::Signal(0),
        Self::Program(0),
    ];

    /// Statuses that other code exits with: clap, and the panic handler of Rust.
    const OF_OTHERS: [(u8, &str); 2] =
        [(2, "invalid arguments"), (101, "bug in volt-vmm, located on standard error")];

    /// Returns the table in `--help`.
    pub(crate) fn help() -> String {
        let rows = Self::rows();
        let rows = rows.iter().map(|(number, cause)| format!("\n  {number:<7}{cause}"));
        format!("Exit status:{}", rows.collect::<String>())
    }

    /// Returns number and cause of each status, by number.
    fn rows() -> Vec<(String, &'static str)> {
        let of_others = Self::OF_OTHERS.map(|(code, cause)| (code, code.to_string(), cause));
        let own = Self::ALL.map(|status| {
            let code = status.code();
            match status {
                Self::Signal(_) => (code, format!("{code}+N"), status.cause()),
                Self::Program(_) => (u8::MAX, "any".to_owned(), status.cause()),
                _ => (code, code.to_string(), status.cause()),
            }
        });
        let mut rows: Vec<_> = own.into_iter().chain(of_others).collect();
        rows.sort_unstable();
        rows.into_iter().map(|(_, number, cause)| (number, cause)).collect()
    }

    fn cause(self) -> &'static str {
        match self {
            Self::Success => "the guest powered off, Ctrl-A X ended the VM, or the command succeeded",
            Self::Error => {
                "error on standard error, or doctor: no VM, or no Linux guest, can run, or a check is bad"
            }
            Self::Reboot => "the guest asked for a reboot",
            Self::TripleFault => "the guest ended in a triple fault",
            Self::Crashed => "the guest crashed in another way",
            Self::Forbidden => "a thread made a system call that its seccomp filter forbids",
            Self::Panicked => "the guest's kernel panicked, and said it through pvpanic",
            Self::Signal(_) => "ended by signal N (130: SIGINT, 143: SIGTERM)",
            Self::Program(_) => "run IMAGE and exec: the status of the program in the guest",
        }
    }

    /// Returns the status for the end of a guest. `by_signal` is the signal that asked for it, or 0.
    pub(crate) fn of_ending(ending: Ending, by_signal: i32) -> Self {
        match ending {
            Ending::Stopped if by_signal != 0 => Self::Signal(by_signal),
            Ending::Stopped | Ending::Poweroff => Self::Success,
            Ending::Reboot => Self::Reboot,
            Ending::Panicked => Self::Panicked,
            Ending::TripleFault => Self::TripleFault,
        }
    }

    /// Returns the status for an error of the process.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::Vmm(error) => Self::of_error(error),
            Failure::Interrupted { signal, .. } => Self::Signal(*signal),
            _ => Self::Error,
        }
    }

    /// Returns the status for an error of the library.
    pub(crate) fn of_error(error: &Error) -> Self {
        match error {
            Error::Crashed(_) => Self::Crashed,
            _ => Self::Error,
        }
    }

    /// Returns the status with this number, as a process of this program ended with it.
    pub(crate) fn of_code(code: u8) -> Self {
        match code {
            129.. => Self::Signal(i32::from(code) - 128),
            _ => Self::ALL.into_iter().find(|status| status.code() == code).unwrap_or(Self::Program(code)),
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
            Self::Forbidden => 6,
            Self::Panicked => 7,
            Self::Signal(number) => 128_u8.saturating_add(u8::try_from(number).unwrap_or(0)),
            Self::Program(code) => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::tests::{table_rows, variants_in};

    #[test]
    fn every_ending_has_its_documented_status() {
        assert_eq!(Status::of_ending(Ending::Poweroff, 0).code(), 0);
        assert_eq!(Status::of_ending(Ending::Stopped, 0).code(), 0);
        assert_eq!(Status::of_ending(Ending::Stopped, libc::SIGTERM).code(), 143);
        assert_eq!(Status::of_ending(Ending::Poweroff, libc::SIGTERM).code(), 0);
        assert_eq!(Status::of_ending(Ending::Reboot, 0).code(), 3);
        assert_eq!(Status::of_ending(Ending::TripleFault, 0).code(), 4);
        assert_eq!(Status::of_ending(Ending::Panicked, 0).code(), 7);
        assert_eq!(Status::of_failure(&Error::Crashed("x".into()).into()).code(), 5);
        assert_eq!(Status::of_failure(&Failure::Server("x".into())).code(), 1);
    }

    #[test]
    fn status_is_known_by_its_number() {
        let of_others = [Status::Signal(0), Status::Program(0)];
        for status in Status::ALL.into_iter().filter(|status| !of_others.contains(status)) {
            assert_eq!(Status::of_code(status.code()), status);
        }
        assert_eq!(Status::of_code(143), Status::Signal(15));
        assert_eq!(Status::of_code(42), Status::Program(42));
    }

    #[test]
    fn list_has_every_variant_and_each_number_once() {
        let listed = Status::ALL.map(|status| format!("{status:?}").replace("(0)", ""));
        assert_eq!(listed.to_vec(), variants_in(include_str!("exit.rs"), "Status"));
        let mut numbers: Vec<_> = Status::rows().into_iter().map(|(number, _)| number).collect();
        numbers.dedup();
        assert_eq!(numbers, ["0", "1", "2", "3", "4", "5", "6", "7", "101", "128+N", "any"]);
    }

    #[test]
    fn troubleshooting_has_every_status_with_its_cause_and_cure() {
        let page = include_str!("../../../docs/troubleshooting.md").replace("`doctor`", "doctor");
        let rows: Vec<_> = table_rows(page.split("## Errors").next().unwrap()).collect();
        let documented: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), row[1])).collect();
        assert_eq!(documented, Status::rows());
        let without_cure: Vec<_> = rows.iter().filter(|row| row[2].is_empty()).map(|row| row[0]).collect();
        assert_eq!(without_cure, ["0", "128+N", "any"], "only these need no cure");
    }
}
