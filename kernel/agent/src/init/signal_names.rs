//! Names of signals, as images give their stop signals.

const NAMES: [(&str, i32); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];
/// The first and the last real-time signal, as glibc numbers them. musl would begin at 35.
const REAL_TIME: [i32; 2] = [34, 64];

/// Returns the number of `SIGTERM`, `term`, `15`, `SIGRTMIN+3` or `RTMAX-1`.
pub(super) fn number(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let [first, last] = REAL_TIME;
    let offset = |rest: &str, sign| match rest.strip_prefix(sign) {
        Some(offset) => offset.parse::<u8>().ok().map(i32::from),
        None => rest.is_empty().then_some(0),
    };
    let found = if let Some(rest) = bare.strip_prefix("RTMIN") {
        first + offset(rest, '+')?
    } else if let Some(rest) = bare.strip_prefix("RTMAX") {
        last - offset(rest, '-')?
    } else if let Some((_, number)) = NAMES.iter().find(|(name, _)| *name == bare) {
        return Some(*number);
    } else {
        return name.parse().ok().filter(|number| (1..=last).contains(number));
    };
    (first..=last).contains(&found).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn names_and_numbers_of_signals_are_known() {
        for (name, expected) in [
            ("SIGTERM", 15),
            ("quit", 3),
            ("9", 9),
            ("SIGRTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("RTMAX-1", 63),
            ("64", 64),
        ] {
            assert_eq!(number(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn other_words_are_no_signals() {
        for name in ["", "SIG", "0", "65", "-1", "SIGRTMIN+31", "RTMAX+1", "RTMIN3", "SIG15"] {
            assert_eq!(number(name), None, "{name}");
        }
    }
}
