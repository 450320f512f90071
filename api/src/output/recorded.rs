//! What a recording of a VM's working set came to, on standard error.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use volt_vmm::{RecordingSummary, Vm, report};

use crate::failure::Failure;

/// Begins to wait for the end of a recording, if there is one, to say what is kept.
///
/// # Errors
/// The host refuses the thread.
pub(crate) fn tell_at_end(vm: &Arc<Vm>) -> Result<Option<JoinHandle<()>>, Failure> {
    if !vm.is_recorded() {
        return Ok(None);
    }
    let vm = Arc::clone(vm);
    let tell = move || match vm.wait_recorded() {
        Some(Ok(recorded)) => eprintln!("volt-vmm: {}", text(&recorded)),
        Some(Err(error)) => eprintln!("volt-vmm: {}", report(&error)),
        None => {}
    };
    let thread = thread::Builder::new().name("volt-recorded".into()).spawn(tell);
    thread.map(Some).map_err(|source| Failure::system("start the thread that waits for a recording", source))
}

fn text(recorded: &RecordingSummary) -> String {
    let RecordingSummary { marker, pages, bytes, runs, before } = recorded;
    let mib = *bytes as f64 / f64::from(1 << 20);
    let mut text = format!("recorded {pages} pages ({mib:.1} MiB) in {runs} runs, until {marker}");
    if let Some(before) = before {
        text += &format!(
            "; the set before this one named {:.1} % of them, and {} pages of its {} in vain",
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
    fn a_recording_in_words() {
        let recorded = RecordingSummary {
            marker: RecordUntil::Console,
            pages: 384,
            bytes: 384 << 12,
            runs: 9,
            before: None,
        };
        assert_eq!(text(&recorded), "recorded 384 pages (1.5 MiB) in 9 runs, until console");
        let before = Some(WorkingSetHits { pages: 400, hits: 288, hit_rate: 0.75, in_vain: 112 });
        let text = text(&RecordingSummary { before, ..recorded });
        assert!(
            text.ends_with(
                "; the set before this one named 75.0 % of them, and 112 pages of its 400 in vain"
            )
        );
    }
}
