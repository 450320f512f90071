//! What a benchmark says: on standard output at once, and in a document of this tree if it is asked to.

use std::path::Path;

use crate::{OrSay, Result, host};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Document(String);

impl Document {
    /// With a beginning that is not said.
    #[must_use]
    pub fn after(preface: &str) -> Self {
        Self(preface.to_owned() + "\n")
    }

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
    let command = format!("cargo bench -p volt-benches --bench {bench} -- {line}");
    format!("{}.\n\n```sh\n{}\n```\n", host::circumstances(load), command.trim_end_matches([' ', '-']))
}
