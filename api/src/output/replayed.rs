//! The result of a replay, as a table.

use std::fmt::Write as _;

use volt_vmm::internal::{Measured, Replay};

const COLUMNS: [&str; 8] =
    ["touches", "total ms", "average us", "min us", "p50 us", "p99 us", "max us", "MiB/s"];

const ABOUT: &str = "\
Each round reads each page of the recording once, in recorded order. A time is of one read, including the
clock's own cost. \"before\" is the median time of the work before the first read, such as mapping.
";

/// Formats a head, a row for each strategy, and the meaning of the columns.
pub(crate) fn text(found: &Replay) -> String {
    let mut text = String::new();
    let files: Vec<_> = found.memory_files.iter().map(|file| file.display().to_string()).collect();
    let rows = [
        ("id", found.id.clone()),
        ("memory", files.join(" over ")),
        ("pages", format!("{} of 4 KiB, in the order of {}", found.pages, found.recording.display())),
        ("rounds", found.rounds.to_string()),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<8}{value}");
    }
    let _ = write!(text, "\n{:<28}", "strategy");
    for column in COLUMNS {
        let _ = write!(text, "{column:>11}");
    }
    let _ = writeln!(text, "{:>12}", "before ms");
    found.strategies.iter().for_each(|measured| row(&mut text, measured));
    let _ = write!(text, "\n{ABOUT}");
    let stayed = found.strategies.iter().filter_map(|measured| measured.stayed_cached).max();
    if let Some(stayed) = stayed.filter(|stayed| *stayed > 0) {
        let _ = writeln!(
            text,
            "The kernel kept {stayed} of the pages in the page cache, although it was asked to drop them."
        );
    }
    text
}

fn row(text: &mut String, measured: &Measured) {
    let Measured {
        strategy,
        touches,
        total_ns,
        average_ns,
        min_ns,
        p50_ns,
        p99_ns,
        max_ns,
        mib_per_s,
        before_ns,
        stayed_cached: _,
    } = measured;
    let milliseconds = |ns: &u64| format!("{:.3}", *ns as f64 / 1e6);
    let _ = write!(text, "{strategy:<28}{touches:>11}{:>11}", milliseconds(total_ns));
    for ns in [average_ns, min_ns, p50_ns, p99_ns, max_ns] {
        let _ = write!(text, "{:>11.2}", *ns as f64 / 1e3);
    }
    let _ = writeln!(text, "{mib_per_s:>11.0}{:>12}", milliseconds(before_ns));
}
