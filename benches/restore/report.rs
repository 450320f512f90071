//! What was measured, on standard output and in `docs/benchmarks.md`.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use volt_benches::table::Table;
use volt_benches::{OrSay, Result, host};

use crate::options::Options;

const DOCUMENT: &str = "../docs/benchmarks.md";

/// The document: what stands before the first measurement.
const PREFACE: &str = "\
# Benchmarks

Written by the benchmark itself (`--write-docs`). Every number stands beside its **floor**: a small C program
(`benches/programs/floor.c`) that makes the same KVM calls, from a state that needs no decoding, and nothing else. Runs of
all take turns, so a disturbance meets them alike; what compares best are minima and ratios.

The guest is a loop that writes one byte after another to COM1, so that its first byte after a restore is all but its first
instruction. It touches few pages; the page cache is warm.
";

/// See the module. Every part is printed at once.
pub struct Report {
    text: String,
}

impl Report {
    /// Begins with the circumstances.
    pub fn new(options: &Options, load: f64) -> Self {
        let mut report = Self { text: String::new() };
        let kvm = volt_vmm::kvm::host::kvm_module().unwrap_or("unknown");
        let command = format!("cargo bench -p volt-benches --bench restore -- {}", options.line);
        let command = command.trim_end_matches([' ', '-']);
        report.say(&format!(
            "## Restore\n\n{}, {} CPUs; Linux {}; KVM module {kvm}; load average at the start {load:.1}; {}.\n\n```sh\n{command}\n```\n",
            host::cpu(),
            host::cpus(),
            host::kernel(),
            today(),
        ));
        report
    }

    /// Exec to first byte.
    pub fn whole(&mut self, table: &Table) {
        self.say(
            "### The whole process\n\nFrom the start of the process to the first byte that the resumed guest sends, read from a pipe. \
             The floor is a process too: once with glibc, as `cc -static` makes it, and once with musl, whose start-up does not \
             ask CPUID (on a host that is a VM itself, each asking leaves for the hypervisor). volt-vmm uses musl.\n",
        );
        self.say(&table.to_string());
    }

    /// The same, with devices and without.
    pub fn devices(&mut self, (table, steps): &(Table, Table)) {
        self.say(
            "### What devices cost\n\nThe whole process again, 128 MiB, once without devices and once with one of each kind, all of them \
             set to work by the guest before the snapshot: a disk with a layer over a shared base, a network interface on a tap that is \
             there already, vsock, randomness, a balloon.\n",
        );
        self.say(&table.to_string());
        self.say("By step, in the library:\n");
        self.say(&steps.to_string());
    }

    /// Call to first byte, and the steps.
    pub fn library(&mut self, totals: &Table, details: &[(u64, Table)]) {
        self.say(
            "### The library\n\nFrom the call on an open `Snapshot` to the guest's first byte, in a process that is there already.\n",
        );
        self.say(&totals.to_string());
        for (mib, table) in details {
            self.say(&format!("By step, {mib} MiB:\n"));
            self.say(&table.to_string());
        }
    }

    /// Memory.
    pub fn resident(&mut self, table: &Table) {
        self.say(
            "### Memory\n\nResident memory of the process, less the guest's own; the peak is the kernel's high-water mark. The program \
             itself is in it, as a file that all processes share.\n",
        );
        self.say(&table.to_string());
    }

    /// Replaces this benchmark's part of the document.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).or_say("create docs/")?;
        fs::write(&path, format!("{PREFACE}\n{}", self.text.trim_end().to_owned() + "\n"))
            .or_say("write docs/benchmarks.md")
    }

    fn say(&mut self, text: &str) {
        println!("{text}");
        let _ = writeln!(self.text, "{text}");
    }
}

fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    date.map_or_else(|_| "no date".to_owned(), |date| String::from_utf8_lossy(&date.stdout).trim().to_owned())
}
