//! Page faults of guests by their cause, where the host traces KVM's (`kvm:kvm_page_fault`, Linux 6.2).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::table::Table;
use crate::{OrSay, Result};

const TRACING: &str = "/sys/kernel/debug/tracing";
const EVENT: &str = "events/kvm/kvm_page_fault/enable";
const ABOUT: &str = "The same by cause, of one run each, with the accesses to devices. The error code \
tells what the guest did (nested page faults, AMD64 manual, volume 2, 15.25.6), and the instruction's \
address whether its kernel or a program did it.";

/// Bits of the error code.
const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const FETCH: u64 = 1 << 4;
const OF_PAGE_TABLES: u64 = 1 << 33;

/// Faults by cause.
pub type Causes = BTreeMap<&'static str, u64>;

/// Runs `act`, and counts the faults of all VMs meanwhile. `None` where the host does not trace them.
///
/// # Errors
/// The act fails, or the host refuses to trace.
pub fn counted(act: impl FnOnce() -> Result<()>) -> Result<Option<Causes>> {
    let tracing = Path::new(TRACING);
    if !tracing.join(EVENT).exists() {
        act()?;
        return Ok(None);
    }
    let write = |name: &str, text: &str| fs::write(tracing.join(name), text).or_say("trace page faults");
    write("buffer_size_kb", "8192")?;
    write("trace", "")?;
    write(EVENT, "1")?;
    let acted = act();
    write(EVENT, "0")?;
    acted?;
    if lost(tracing)? {
        return Err("the trace of page faults has lost some".to_owned());
    }
    let trace = fs::read_to_string(tracing.join("trace")).or_say("read the trace of page faults")?;
    let mut causes = Causes::new();
    for line in trace.lines().filter_map(|line| line.split_once("kvm_page_fault:")) {
        *causes.entry(cause(line.1).ok_or_else(|| format!("a page fault is {:?}", line.1))?).or_default() +=
            1;
    }
    Ok(Some(causes))
}

/// Whether a processor's buffer was too short for all records.
fn lost(tracing: &Path) -> Result<bool> {
    let processors = fs::read_dir(tracing.join("per_cpu")).or_say("list the buffers of the trace")?;
    for processor in processors.flatten() {
        let stats =
            fs::read_to_string(processor.path().join("stats")).or_say("read the state of a buffer")?;
        if stats.lines().any(|line| line.starts_with("overrun: ") && line != "overrun: 0") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The cause of a fault: `vcpu 0 rip 0xffff address 0x1000 error_code 0x100000006`.
fn cause(event: &str) -> Option<&'static str> {
    let words: Vec<_> = event.split_whitespace().collect();
    let number = |name: &str| {
        let word = words.iter().position(|word| *word == name)?;
        u64::from_str_radix(words.get(word + 1)?.trim_start_matches("0x"), 16).ok()
    };
    let (rip, code) = (number("rip")?, number("error_code")?);
    let is_kernel = rip >> 63 == 1;
    Some(match (code, is_kernel) {
        _ if code & OF_PAGE_TABLES != 0 => "a walk of the guest's page tables",
        (_, true) if code & FETCH != 0 => "code of its kernel",
        (_, false) if code & FETCH != 0 => "code of a program",
        (_, true) if code & WRITE != 0 && code & PRESENT != 0 => {
            "its kernel writes to a page that was mapped"
        }
        (_, false) if code & WRITE != 0 && code & PRESENT != 0 => {
            "a program writes to a page that was mapped"
        }
        (_, true) if code & WRITE != 0 => "its kernel writes",
        (_, false) if code & WRITE != 0 => "a program writes",
        (_, true) => "its kernel reads",
        (_, false) => "a program reads",
    })
}

/// The table of several acts, by their names.
#[must_use]
pub fn table(acts: &[(&str, Causes)]) -> String {
    let columns: Vec<_> =
        ["cause of a page fault"].into_iter().chain(acts.iter().map(|(name, _)| *name)).collect();
    let mut table = Table::new(&columns);
    let mut rows: Vec<_> = acts.iter().flat_map(|(_, causes)| causes.keys().copied()).collect();
    rows.sort_unstable();
    rows.dedup();
    for row in rows {
        let count = |(_, causes): &(&str, Causes)| causes.get(row).copied().unwrap_or(0).to_string();
        table.row([row.to_owned()].into_iter().chain(acts.iter().map(count)));
    }
    format!("{ABOUT}\n\n{table}")
}

#[cfg(test)]
mod tests {
    use super::cause;

    #[test]
    fn cause_is_told_by_error_code_and_instruction() {
        for (rip, code, expected) in [
            ("0xffffffff81000000", "0x100000004", "its kernel reads"),
            ("0xffffffff81000000", "0x100000007", "its kernel writes to a page that was mapped"),
            ("0x7f0000001000", "0x100000006", "a program writes"),
            ("0x7f0000001000", "0x100000014", "code of a program"),
            ("0x7f0000001000", "0x200000006", "a walk of the guest's page tables"),
        ] {
            let event = format!(" vcpu 0 rip {rip} address 0x0000000001fff000 error_code {code}");
            assert_eq!(cause(&event), Some(expected), "{event}");
        }
        assert_eq!(cause("vcpu 0 address 0x1000"), None);
    }
}
