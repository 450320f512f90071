//! The first words of sentences, in comments, in string literals and on pages.

use std::fs;
use std::io;
use std::path::Path;

use crate::Findings;
use crate::literals::literals;
use crate::text::{Kind, paragraphs};

/// Words that make a reader go back: a sentence begins with its subject.
const FORBIDDEN: [&str; 10] =
    ["What", "Who", "Whoever", "That", "None", "Nobody", "Of", "So", "Such", "Either"];

/// Finds sentences of this file that begin with a forbidden word.
pub(crate) fn check(file: &Path) -> io::Result<Findings> {
    let mut findings = Findings::new();
    let (kind, content) = (Kind::of(file), fs::read_to_string(file)?);
    let mut found = paragraphs(kind, &content);
    if kind == Kind::Rust {
        // A word alone is a name.
        found.extend(literals(&content).into_iter().filter(|found| found.text.contains(' ')));
    }
    for paragraph in found {
        for word in first_words(&paragraph.text).filter(|word| FORBIDDEN.contains(word)) {
            let (name, line) = (file.display(), paragraph.line);
            findings.push(format!("{name}:{line}: a sentence begins with {word:?}: {}", paragraph.text));
        }
    }
    Ok(findings)
}

/// The first word of each sentence, without marks around it.
fn first_words(text: &str) -> impl Iterator<Item = &str> {
    let mut begins = true;
    text.split_whitespace().filter_map(move |word| {
        let is_first = begins;
        let end = word.trim_end_matches(['"', '\'', ')', '*', '_']);
        begins = end.ends_with(['.', '?', '!']) && end.len() > 1;
        is_first.then(|| word.trim_matches(|c: char| !c.is_alphanumeric() && c != '`'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_word_of_each_sentence_is_found_through_marks() {
        let text = format!("**{}** is one. ({} it.) `None` is code, so fine? {}", "That", "Of", "What");
        let words: Vec<_> = first_words(&text).collect();
        assert_eq!(words, ["That", "Of", "`None`", "What"]);
    }
}
