//! Reports a finished recording of a working set on standard error.

use std::sync::Arc;
use std::thread::JoinHandle;

use volt_vmm::{RecordingSummary, Vm, report};

use crate::failure::Failure;
use crate::messages::say;
use crate::threads;

/// Starts a thread that reports the end of the VM's recording. Returns `None` for a VM that is not recorded.
///
/// # Errors
/// The host cannot start the thread.
pub(crate) fn report_at_end(vm: &Arc<Vm>) -> Result<Option<JoinHandle<()>>, Failure> {
    if !vm.is_recorded() {
        return Ok(None);
    }
    let vm = Arc::clone(vm);
    let report_end = move || match vm.wait_recorded() {
        Some(Ok(recorded)) => say(format!("volt-vmm: {}", text(&recorded))),
        Some(Err(error)) => say(format!("volt-vmm: {}", report(&error))),
        None => {}
    };
    threads::spawn("recorded", "to wait for a recording", report_end).map(Some)
}

fn text(recorded: &RecordingSummary) -> String {
    let RecordingSummary { marker, pages, bytes, runs, before } = recorded;
    let mib = *bytes as f64 / f64::from(1 << 20);
    let mut text = format!("recorded {pages} pages ({mib:.1} MiB) in {runs} ranges, until {marker}");
    if let Some(before) = before {
        text += &format!(
            "; the previous set had {:.1} % of them, and {} of its {} pages stayed untouched",
            100.0 * before.hit_rate,
            before.in_vain,
            before.pages
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use volt_vmm::{RecordUntil, WorkingSetHits};

    use super::*;

    #[test]
    fn recording_is_reported_with_the_hits_of_the_previous_set() {
        let recorded = RecordingSummary {
            marker: RecordUntil::Console,
            pages: 384,
            bytes: 384 << 12,
            runs: 9,
            before: None,
        };
        assert_eq!(text(&recorded), "recorded 384 pages (1.5 MiB) in 9 ranges, until console");
        let before = Some(WorkingSetHits { pages: 400, hits: 288, hit_rate: 0.75, in_vain: 112 });
        let text = text(&RecordingSummary { before, ..recorded });
        assert!(
            text.ends_with(
                "; the previous set had 75.0 % of them, and 112 of its 400 pages stayed untouched"
            )
        );
    }
}
