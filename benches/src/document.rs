//! What a benchmark says: on standard output at once, and in a document of this tree if it is asked to.

use std::path::Path;
use std::process::Command;

use crate::{OrSay, Result, host};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Document(String);

impl Document {
    /// Says something, which stands by itself.
    pub fn say(&mut self, part: &str) {
        println!("{part}");
        self.0.push_str(part);
        self.0.push('\n');
    }

    /// Writes what was said so far as the document of this name, such as `docs/benchmarks.md`.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self, name: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
        std::fs::write(&path, self.0.trim_end().to_owned() + "\n").or_say(&format!("write {name}"))
    }
}

/// On what host, at what load and when it was measured, and by what command: the benchmark's name, and its options as they were given.
#[must_use]
pub fn circumstances(bench: &str, line: &str, load: f64) -> String {
    let kvm = volt_vmm::kvm::host::kvm_module().unwrap_or("unknown");
    let command = format!("cargo bench -p volt-benches --bench {bench} -- {line}");
    format!(
        "{}, {} CPUs; Linux {}; KVM module {kvm}; load average at the start {load:.1}; {}.\n\n```sh\n{}\n```\n",
        host::cpu(),
        host::cpus(),
        host::kernel(),
        today(),
        command.trim_end_matches([' ', '-']),
    )
}

fn today() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output();
    date.map_or_else(|_| "no date".to_owned(), |date| String::from_utf8_lossy(&date.stdout).trim().to_owned())
}
