//! The report of a benchmark: on standard output at once, and as a page of docs/ if the command asks for it.

use crate::{OrSay, Result, built, host};

/// Columns of a line of a page, at most.
const COLUMNS: usize = 108;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Document(String);

impl Document {
    /// Begins with a preface that is on the page alone.
    #[must_use]
    pub fn after(preface: &str) -> Self {
        Self(preface.to_owned() + "\n")
    }

    /// Adds a part: paragraphs, a table or a chart.
    pub fn say(&mut self, part: &str) {
        println!("{part}");
        self.0.push_str(part);
        self.0.push('\n');
    }

    /// Writes all parts as the page of this name, such as `docs/benchmarks.md`, in lines of limited length.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn write(&self, name: &str) -> Result<()> {
        let path = built::source_tree()?.join(name);
        std::fs::write(&path, wrapped(self.0.trim_end())).or_say(&format!("write {name}"))
    }
}

/// Breaks the lines of paragraphs and list items. Tables, headings and code blocks stay as they are.
fn wrapped(text: &str) -> String {
    let mut page = String::new();
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.starts_with(['|', '#', '<']) || line.chars().count() <= COLUMNS {
            page.push_str(line);
        } else {
            let indent = if line.starts_with("- ") { "  " } else { "" };
            push_words(&mut page, line.split_whitespace(), " ", &format!("\n{indent}"));
        }
        page.push('\n');
    }
    page
}

/// Appends words in lines of limited length, with `space` between two words and `next` between two lines.
fn push_words<'a>(page: &mut String, words: impl Iterator<Item = &'a str>, space: &str, next: &str) {
    let mut column = 0;
    for word in words {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > COLUMNS {
            page.push_str(next);
            column = next.chars().rev().take_while(|c| *c != '\n').count();
        } else if column > 0 {
            page.push_str(space);
            column += space.len();
        }
        page.push_str(word);
        column += length;
    }
}

/// How a page of this benchmark is made, by itself or in the lab.
#[must_use]
pub fn origin(bench: &str) -> String {
    match std::env::var_os("VOLT_LAB") {
        None => "The benchmark itself writes this page (`--write-docs`).".to_owned(),
        Some(_) => format!(
            "`benches/lab.sh {bench} --write-docs` writes this page. It uses the real kvm_amd on an emulated \
             processor (scripts/lab.sh), which guests, VMMs and host share. Compare ratios, not milliseconds."
        ),
    }
}

/// The host, its load, the time of the measurement, and the command: the benchmark's name with its options.
#[must_use]
pub fn circumstances(bench: &str, line: &str, load: f64) -> String {
    let command = format!("cargo bench --locked -p volt-benches --bench {bench} -- {line}");
    let mut broken = String::new();
    push_words(&mut broken, command.trim_end_matches([' ', '-']).split(' '), " ", " \\\n    ");
    format!("{}.\n\n```sh\n{broken}\n```\n", host::circumstances(load))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paragraph_is_broken_and_table_and_code_are_not() {
        let (words, long) = ("word ".repeat(30), "x".repeat(200));
        let page = wrapped(&format!("{words}\n- {words}\n| {long} |\n```sh\n{long} {long}\n```"));
        let lines: Vec<_> = page.lines().collect();
        assert_eq!(lines[0], "word ".repeat(21).trim_end());
        assert!(lines[3].starts_with("  word"), "{lines:?}");
        assert_eq!(
            lines[4..],
            [format!("| {long} |"), "```sh".into(), format!("{long} {long}"), "```".into()]
        );
    }

    #[test]
    fn long_command_goes_on_in_the_next_line() {
        let text = circumstances("x", &"--option 1 ".repeat(12), 0.0);
        let lines: Vec<_> = text.lines().skip_while(|line| *line != "```sh").collect();
        assert!(lines[1].ends_with(" \\") && lines[2].starts_with("    --"), "{lines:?}");
        assert!(lines.iter().all(|line| line.len() <= 110), "{lines:?}");
    }
}
