//! The content of a snapshot, as text.

use std::fmt::Write as _;

use volt_vmm::snapshot::{ChunkSum, Inspection};

/// Formats an inspection. The page ranges, if any, come last.
pub(crate) fn text(found: &Inspection) -> String {
    let mut text = String::new();
    let (metadata, file) = (&found.metadata, &found.memory_file);
    let host = &metadata.host;
    let mut rows = vec![
        ("id", metadata.id.clone()),
        ("taken", format!("{} by volt-vmm {}", metadata.created, metadata.volt_vmm)),
        (
            "on",
            format!(
                "{}, microcode {}, Linux {}, {}",
                host.cpu_vendor, host.microcode, host.kernel, host.kvm_module
            ),
        ),
        ("VM", format!("{} vCPUs, {} MiB of memory", metadata.vcpus, metadata.memory_bytes >> 20)),
        ("memory", format!("{}: {} bytes, {} on disk", file.name, file.bytes, file.disk_bytes)),
    ];
    if let Some(pack) = &file.pack {
        rows.push((
            "packed",
            format!("format version {}, in chunks of {} KiB", pack.version, pack.chunk_bytes >> 10),
        ));
        rows.push(("digest", pack.digest.clone()));
        let share = 100.0 * pack.index_bytes as f64 / metadata.memory_bytes as f64;
        rows.push(("index", format!("{} bytes, {share:.3} % of the memory", pack.index_bytes)));
    }
    if let Some(set) = &found.working_set {
        let mib = set.bytes as f64 / f64::from(1 << 20);
        rows.push((
            "touched",
            format!(
                "{} pages first, {mib:.1} MiB in {} ranges: a restore reads them ahead",
                set.pages, set.runs
            ),
        ));
    }
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<8}{value}");
    }
    let what = if file.pack.is_some() { "chunks" } else { "ranges" };
    let _ =
        writeln!(text, "\n{:<8}{what:>10}{:>16}{:>16}{:>10}", "kind", "memory KiB", "stored KiB", "ratio");
    let mut all = ChunkSum::default();
    for (kind, sum) in &found.kinds {
        row(&mut text, kind, sum);
        all.count += sum.count;
        all.memory_bytes += sum.memory_bytes;
        all.stored_bytes += sum.stored_bytes;
    }
    row(&mut text, "all", &all);
    if !found.pages.is_empty() {
        text.push_str("\npages of 4 KiB              kind\n");
        for stretch in &found.pages {
            let range = format!("{}..{}", stretch.pages.start, stretch.pages.end);
            let _ = writeln!(text, "{range:<28}{}", stretch.kind);
        }
    }
    text
}

fn row(text: &mut String, kind: &str, sum: &ChunkSum) {
    let ratio = match sum.stored_bytes {
        0 => "-".to_owned(),
        stored => format!("{:.2}", sum.memory_bytes as f64 / stored as f64),
    };
    let (memory, stored) = (sum.memory_bytes >> 10, sum.stored_bytes.div_ceil(1024));
    let _ = writeln!(text, "{kind:<8}{:>10}{memory:>16}{stored:>16}{ratio:>10}", sum.count);
}
