//! A line of `volt-vmm events`: the time, the VM, and what happened to it.

use std::time::SystemTime;

use serde::Serialize;

use crate::failure::Failure;
use crate::output::print;
use crate::rest::{EndCause, Event, EventState};
use crate::run_dir::outcome::EndOfVm;
use crate::run_dir::record::Origin;
use crate::run_dir::vm_dir::VmDir;

/// Something that happened to a VM.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Happening {
    /// The VM's API told it.
    Told(Event),
    /// The run directory told it.
    Found(Found),
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Found {
    /// The VM appeared while others were followed.
    Started { origin: Origin },
    /// Its process has ended.
    Ended {
        #[serde(flatten)]
        end: EndOfVm,
    },
}

impl Happening {
    pub(super) fn started(vm: &VmDir) -> Self {
        Self::Found(Found::Started { origin: vm.record.origin.clone() })
    }

    pub(super) fn ended(end: EndOfVm) -> Self {
        Self::Found(Found::Ended { end })
    }

    fn text(&self) -> String {
        let mib = |bytes: &u64| *bytes as f64 / f64::from(1 << 20);
        match self {
            Self::Told(Event::State { state }) => match state {
                EventState::NotStarted => "not started".to_owned(),
                EventState::Running => "running".to_owned(),
                EventState::Paused => "paused".to_owned(),
                EventState::Ended => "ending".to_owned(),
            },
            Self::Told(Event::SnapshotProgress { done_bytes, total_bytes }) => {
                format!("snapshot: {:.1} of {:.1} MiB", mib(done_bytes), mib(total_bytes))
            }
            Self::Told(Event::ForkProgress { done_bytes, total_bytes }) => {
                format!("fork: {:.1} of {:.1} MiB", mib(done_bytes), mib(total_bytes))
            }
            Self::Told(Event::LoadProgress { done_bytes, total_bytes }) => {
                format!("load: {:.1} of {:.1} MiB", mib(done_bytes), mib(total_bytes))
            }
            Self::Told(Event::DeviceFailed { device, problem }) => {
                format!("device {device} failed: {problem}")
            }
            Self::Told(Event::Denied { device, what }) => format!("{device} denied {what}"),
            Self::Told(Event::Ended { cause, problem }) => {
                let cause = match cause {
                    EndCause::Poweroff => "the guest powered off",
                    EndCause::Reboot => "the guest asked for a reboot",
                    EndCause::Panicked => "the guest's kernel panicked",
                    EndCause::TripleFault => "the guest ended in a triple fault",
                    EndCause::Stopped => "a signal or a request ended the VM",
                    EndCause::Crashed => "the VM could not go on",
                };
                let problem = problem.iter().map(|problem| format!(": {problem}"));
                format!("ended: {cause}{}", problem.collect::<String>())
            }
            Self::Found(Found::Started { origin }) => format!("started from {}", origin.text()),
            Self::Found(Found::Ended { end }) => format!("ended with status {}: {}", end.status, end.message),
        }
    }
}

/// Prints lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Printer {
    pub(super) as_json: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    name: &'a str,
    /// Absent for a VM without a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(flatten)]
    happening: &'a Happening,
}

impl Printer {
    /// Prints a line of the VM `name`.
    ///
    /// # Errors
    /// Standard output takes no more.
    pub(super) fn print(self, name: &str, id: Option<&str>, happening: &Happening) -> Result<(), Failure> {
        let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
        print::text(&self.line(Line { time, name, id, happening }))
    }

    fn line(self, line: Line<'_>) -> String {
        match self.as_json {
            true => {
                let json = serde_json::to_string(&line);
                json.unwrap_or_else(|_| unreachable!("it has text keys alone")) + "\n"
            }
            // An error may have several lines.
            false => format!("{} {} {}\n", line.time, line.name, line.happening.text().replace('\n', " ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::outcome::Cause;

    fn line(as_json: bool, happening: Happening) -> String {
        let (time, name, id) = ("T".to_owned(), "web", Some("f00"));
        Printer { as_json }.line(Line { time, name, id, happening: &happening })
    }

    #[test]
    fn line_has_time_name_and_event() {
        let end = || EndOfVm { ended: None, ..EndOfVm::now(3, Cause::Reboot, "m") };
        let progress =
            || Happening::Told(Event::SnapshotProgress { done_bytes: 1 << 20, total_bytes: 3 << 20 });
        for (happening, text, json) in [
            (
                progress(),
                "snapshot: 1.0 of 3.0 MiB",
                r#""event":"snapshot_progress","done_bytes":1048576,"total_bytes":3145728"#,
            ),
            (
                Happening::ended(end()),
                "ended with status 3: m",
                r#""event":"ended","status":3,"cause":"reboot","message":"m","ended":null"#,
            ),
        ] {
            assert_eq!(
                line(true, happening),
                format!("{{\"time\":\"T\",\"name\":\"web\",\"id\":\"f00\",{json}}}\n")
            );
            let again = if text.starts_with('s') { progress() } else { Happening::ended(end()) };
            assert_eq!(line(false, again), format!("T web {text}\n"));
        }
        let started = || Happening::Found(Found::Started { origin: Origin::Fork("web".to_owned()) });
        assert_eq!(line(false, started()), "T web started from fork of web\n");
        assert!(line(true, started()).ends_with("\"event\":\"started\",\"origin\":{\"fork\":\"web\"}}\n"));
        let fork = Event::ForkProgress { done_bytes: 1 << 20, total_bytes: 3 << 20 };
        assert_eq!(Happening::Told(fork).text(), "fork: 1.0 of 3.0 MiB");
        let load = Event::LoadProgress { done_bytes: 1 << 20, total_bytes: 3 << 20 };
        assert_eq!(line(false, Happening::Told(load)), "T web load: 1.0 of 3.0 MiB\n");
        let failed = Event::DeviceFailed { device: "rng".to_owned(), problem: "p".to_owned() };
        assert_eq!(line(false, Happening::Told(failed)), "T web device rng failed: p\n");
    }
}
