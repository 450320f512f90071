//! The length of lines, in code and on pages.

use std::fs;
use std::io;
use std::path::Path;

use crate::Findings;
use crate::markdown::Fences;
use crate::text::Kind;

const LONGEST: usize = 110;

/// Finds lines of this file that are too long.
pub(crate) fn check(file: &Path) -> io::Result<Findings> {
    let found = too_long(Kind::of(file), &fs::read_to_string(file)?);
    let finding =
        |(line, length)| format!("{}:{line}: {length} columns, more than {LONGEST}", file.display());
    Ok(found.into_iter().map(finding).collect())
}

/// Numbers and lengths of the lines that are too long, without tables, links, diagrams and URLs.
fn too_long(kind: Kind, content: &str) -> Vec<(usize, usize)> {
    let mut fences = Fences::default();
    let mut found = Vec::new();
    for (line, text) in (1..).zip(content.lines()) {
        let prose = kind.prose(text);
        let is_diagram = prose.is_some_and(|prose| fences.is_code(prose))
            && matches!(fences.language(), Some("text" | "mermaid"));
        // A line of a script that begins so goes on with a pipeline.
        let row = if kind == Kind::Hash { prose } else { prose.or(Some(text)) };
        let is_table = row.is_some_and(|row| row.trim_start().starts_with('|'));
        let is_link = prose.is_some_and(|prose| prose.contains("](")) || text.contains("://");
        let length = text.chars().count();
        if length > LONGEST && !is_diagram && !is_table && !is_link {
            found.push((line, length));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_found_and_long_table_link_and_diagram_are_not() {
        let long = "x".repeat(LONGEST + 1);
        let page = format!("{long}\n| {long} |\n[{long}](y)\n```text\n{long}\n```\n```sh\n{long}\n```");
        assert_eq!(too_long(Kind::Markdown, &page), [(1, 111), (8, 111)]);
        let code = format!("/// ```text\n/// {long}\n/// ```\n/// {long}\n// https://{long}");
        assert_eq!(too_long(Kind::Rust, &code), [(4, 115)]);
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        assert_eq!(too_long(Kind::Hash, &"ä".repeat(LONGEST)), []);
    }

    #[test]
    fn long_line_of_a_pipeline_is_no_table() {
        let long = "x".repeat(LONGEST);
        assert_eq!(too_long(Kind::Hash, &format!("| {long}\n# | {long}")), [(1, 112)]);
    }
}
