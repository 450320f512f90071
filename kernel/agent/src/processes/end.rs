//! The last event of a command.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use volt_job::Ended;

use crate::messages::process::EndEvent;

/// The end of a command.
#[derive(Clone, Debug)]
pub struct End {
    /// As E2B's clients have it.
    pub event: EndEvent,
    /// As shells have it: 128 and the number after a signal.
    pub status: u8,
}

/// Describes an exit.
pub fn of(status: io::Result<ExitStatus>) -> End {
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let told = format!("cannot get the exit status: {error}");
            let event = EndEvent { exit_code: -1, exited: false, status: told.clone(), error: Some(told) };
            return End { event, status: u8::MAX };
        }
    };
    let shown = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or_default();
    End { event: event(status), status: (shown & 0xff) as u8 }
}

fn event(status: ExitStatus) -> EndEvent {
    if let Some(code) = status.code() {
        let told = format!("exit status {code}");
        return EndEvent {
            exit_code: code,
            exited: true,
            error: (code != 0).then(|| told.clone()),
            status: told,
        };
    }
    let signal = status.signal().unwrap_or_default();
    let dumped = if status.core_dumped() { " (core dumped)" } else { "" };
    let told = format!("signal: {}{dumped}", name(signal));
    EndEvent { exit_code: -1, exited: false, status: told.clone(), error: Some(told) }
}

/// Describes the end that process 1 reports.
pub fn of_main(ended: &Ended) -> End {
    let raw = ended.signal.map_or(i32::from(ended.status) << 8, i32::from);
    let mut event = event(ExitStatus::from_raw(raw));
    if ended.out_of_memory {
        let status = &event.status;
        event.error = Some(format!("{status}, out of memory"));
    }
    End { event, status: ended.status }
}

/// The usual words for a signal.
fn name(signal: i32) -> String {
    let known = match signal {
        libc::SIGHUP => "hangup",
        libc::SIGINT => "interrupt",
        libc::SIGQUIT => "quit",
        libc::SIGILL => "illegal instruction",
        libc::SIGABRT => "aborted",
        libc::SIGBUS => "bus error",
        libc::SIGFPE => "floating point exception",
        libc::SIGKILL => "killed",
        libc::SIGSEGV => "segmentation fault",
        libc::SIGPIPE => "broken pipe",
        libc::SIGTERM => "terminated",
        other => return format!("signal {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_and_signal_are_told_apart() {
        let ended = event(ExitStatus::from_raw(3 << 8));
        assert_eq!((ended.exit_code, ended.exited, ended.error.as_deref()), (3, true, Some("exit status 3")));
        assert_eq!(event(ExitStatus::from_raw(0)).error, None);
        let ended = event(ExitStatus::from_raw(9));
        assert_eq!((ended.exit_code, ended.exited, ended.status.as_str()), (-1, false, "signal: killed"));
    }

    #[test]
    fn report_of_process_1_names_want_of_memory_as_the_error() {
        let killed = of_main(&Ended { out_of_memory: true, ..Ended::signal(9) });
        assert_eq!((killed.event.exit_code, killed.event.exited, killed.status), (-1, false, 137));
        assert_eq!(killed.event.error.as_deref(), Some("signal: killed, out of memory"));
        let exited = of_main(&Ended::exit(200));
        assert_eq!((exited.event.exit_code, exited.status), (200, 200));
    }
}
