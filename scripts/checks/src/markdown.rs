//! Structure of Markdown: fenced code blocks and headings.

use std::collections::BTreeMap;

/// Follows fenced code blocks, line by line.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    language: Option<String>,
}

impl Fences {
    /// Whether this line, the next of its file, is part of a code block or is one of its fences.
    pub(crate) fn is_code(&mut self, line: &str) -> bool {
        let Some(language) = line.trim_start().strip_prefix("```") else { return self.language.is_some() };
        self.language = if self.language.is_some() { None } else { Some(language.trim().to_owned()) };
        true
    }

    /// The language of the block that the last line is in.
    pub(crate) fn language(&self) -> Option<&str> {
        self.language.as_deref()
    }
}

/// Anchors of a page's headings, as GitHub and mdBook make them.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let mut fences = Fences::default();
    let mut counts = BTreeMap::new();
    let mut anchors = Vec::new();
    for line in page.lines() {
        if fences.is_code(line) || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String =
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = counts.entry(anchor.clone()).or_insert(0);
        anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_lower_case_and_numbered_when_they_repeat() {
        let page = "# A `B`: c, d\n```\n# no heading\n```\n## A B c d\n## A B c d";
        assert_eq!(anchors(page), ["a-b-c-d", "a-b-c-d-1", "a-b-c-d-2"]);
    }
}
