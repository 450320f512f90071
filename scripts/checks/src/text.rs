//! The prose of a file: paragraphs of a Markdown page, or comments of code.

use std::path::Path;

use crate::markdown::Fences;

/// Prose that belongs together: a paragraph, a list item, a cell of a table, a heading or a comment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Paragraph {
    /// Line where it begins, from 1.
    pub(crate) line: usize,
    /// Its lines, joined by spaces.
    pub(crate) text: String,
}

/// The language of a file, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Markdown,
    Rust,
    /// C and linker scripts, whose comments begin with `//` too, or stand in `/*` and `*/`.
    C,
    /// Shell scripts, TOML and others, whose comments begin with `#`.
    Hash,
}

impl Kind {
    pub(crate) fn of(file: &Path) -> Self {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("md") => Self::Markdown,
            Some("rs") => Self::Rust,
            Some("c" | "h" | "ld") => Self::C,
            _ => Self::Hash,
        }
    }

    /// The text of a comment on this line, or of the line itself on a page.
    pub(crate) fn prose(self, line: &str) -> Option<&str> {
        let trimmed = line.trim_start();
        match self {
            Self::Markdown => Some(line),
            Self::Rust | Self::C => ["///", "//!", "//"].iter().find_map(|mark| trimmed.strip_prefix(mark)),
            Self::Hash if trimmed.starts_with("#!") => None,
            Self::Hash => trimmed.strip_prefix('#'),
        }
    }

    /// A comment after code on the same line.
    fn trailing_comment(self, line: &str) -> Option<&str> {
        let mark = match self {
            Self::Markdown => return None,
            Self::Rust | Self::C => " // ",
            Self::Hash => " # ",
        };
        line.split_once(mark).filter(|(code, _)| !code.trim().is_empty()).map(|(_, comment)| comment)
    }
}

/// All paragraphs of a file, without code blocks.
pub(crate) fn paragraphs(kind: Kind, content: &str) -> Vec<Paragraph> {
    if kind == Kind::C {
        paragraphs_of_lines(kind, &with_line_comments(content))
    } else {
        paragraphs_of_lines(kind, content)
    }
}

/// Writes comments in `/*` and `*/` as comments by `//`, a line a line.
fn with_line_comments(content: &str) -> String {
    let mut written = String::new();
    let mut is_inside = false;
    for line in content.lines() {
        let (before, comment) = match line.split_once("/*") {
            _ if is_inside => ("", line.trim_start().trim_start_matches("* ")),
            Some((before, comment)) => (before, comment),
            None => {
                written.push_str(line);
                written.push('\n');
                continue;
            }
        };
        is_inside = !comment.contains("*/");
        let (comment, after) = comment.split_once("*/").unwrap_or((comment, ""));
        let after = after.trim();
        written.push_str(&if after.is_empty() {
            format!("{before}// {}\n", comment.trim())
        } else {
            format!("{before}{after}\n")
        });
    }
    written
}

fn paragraphs_of_lines(kind: Kind, content: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut fences = Fences::default();
    let mut goes_on = false;
    for (line, whole) in (1..).zip(content.lines()) {
        let Some(prose) = kind.prose(whole) else {
            goes_on = false;
            found.extend(
                kind.trailing_comment(whole).map(|text| Paragraph { line, text: text.trim().to_owned() }),
            );
            continue;
        };
        let text = prose.trim();
        if fences.is_code(prose) || text.is_empty() {
            goes_on = false;
        } else if text.starts_with('|') {
            goes_on = false;
            let cells = text.split('|').map(str::trim).filter(|cell| !cell.is_empty());
            found.extend(cells.map(|cell| Paragraph { line, text: cell.to_owned() }));
        } else if let Some(last) = found.last_mut().filter(|_| goes_on && !begins_block(text)) {
            last.text.push(' ');
            last.text.push_str(text);
        } else {
            goes_on = !text.starts_with('#');
            found.push(Paragraph { line, text: without_mark(text).to_owned() });
        }
    }
    found
}

/// Whether a line begins a list item or a heading.
fn begins_block(text: &str) -> bool {
    text.starts_with('#') || without_mark(text) != text
}

/// The line without its mark of a list item or heading.
fn without_mark(text: &str) -> &str {
    let number = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    if number.len() < text.len() && number.starts_with(". ") {
        return number[2..].trim_start();
    }
    ["- ", "* "]
        .iter()
        .find_map(|mark| text.strip_prefix(mark))
        .unwrap_or(text)
        .trim_start_matches(['#', ' '])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(kind: Kind, content: &str) -> Vec<(usize, String)> {
        paragraphs(kind, content).into_iter().map(|found| (found.line, found.text)).collect()
    }

    #[test]
    fn page_has_paragraphs_items_and_cells_but_no_code() {
        let page = "# Head\nOne\ntwo.\n\n- item\n  goes on\n1. next\n```sh\n# code\n```\n| a | b |";
        let expected = [(1, "Head"), (2, "One two."), (5, "item goes on"), (7, "next"), (11, "a"), (11, "b")];
        assert_eq!(texts(Kind::Markdown, page), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_has_comments_but_no_strings() {
        let code = "//! Top\n//! goes on.\nlet x = 1; // why\nlet y = \"//z\";\n/// Item";
        let expected = [(1, "Top goes on."), (3, "why"), (5, "Item")];
        assert_eq!(texts(Kind::Rust, code), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn comments_of_c_are_read_in_both_forms() {
        let code = "/* Top\n * goes on. */\n// one\nint a; /* why */\nint b(/* c */ void);\n/* d\n   e */\n";
        let expected = [(1, "Top goes on. one"), (4, "why"), (6, "d e")];
        assert_eq!(texts(Kind::C, code), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn script_has_comments_but_no_interpreter_line() {
        let expected = [(2, "Does this. And that.".to_owned()), (4, "why".to_owned())];
        assert_eq!(texts(Kind::Hash, "#!/bin/sh\n# Does this.\n# And that.\nx=1 # why"), expected);
    }
}
