//! Links, anchors and file names in Markdown files.

use std::fs;
use std::io;
use std::path::Path;

use crate::Findings;
use crate::markdown::{Fences, anchors};

/// A word that begins so names a file of the repository.
const ROOTS: [&str; 10] =
    [".cargo/", ".ci/", "api/", "benches/", "docs/", "kernel/", "scripts/", "tests/", "vmm/", "./scripts/"];
/// Pages of the site may link to each other alone: nothing else is published.
const SITE: &str = "docs";

/// Finds links and file names on this page that lead nowhere.
pub(crate) fn check(page: &Path) -> io::Result<Findings> {
    let content = fs::read_to_string(page)?;
    let mut findings = Findings::new();
    let mut fences = Fences::default();
    for (line, text) in (1..).zip(content.lines()) {
        let mut problem = |problem: String| findings.push(format!("{}:{line}: {problem}", page.display()));
        if fences.is_code(text) {
            if fences.language() == Some("sh") {
                files_in(text)
                    .filter(|file| !Path::new(file).exists())
                    .for_each(|file| problem(missing(file)));
            }
            continue;
        }
        for code in text.split('`').skip(1).step_by(2) {
            files_in(code).filter(|file| !Path::new(file).exists()).for_each(|file| problem(missing(file)));
        }
        for link in links_in(text) {
            if let Some(found) = check_link(page, &content, link)? {
                problem(found);
            }
        }
    }
    Ok(findings)
}

fn missing(file: &str) -> String {
    format!("there is no file {file}")
}

/// File names of the repository among the words. Placeholders, which are in capitals, are left out.
fn files_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split_whitespace().map(|word| word.trim_matches(['(', ')', ',', ';', '"', '\'']));
    words.filter(|word| ROOTS.iter().any(|root| word.starts_with(root))).filter(|word| {
        let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        let is_placeholder =
            |part: &str| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        is_plain && !word.split('/').any(is_placeholder)
    })
}

/// Targets of the inline links of a line, outside code.
fn links_in(text: &str) -> Vec<&str> {
    let outside: Vec<&str> = text.split("](").skip(1).collect();
    outside.into_iter().filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

fn check_link(page: &Path, content: &str, link: &str) -> io::Result<Option<String>> {
    if link.contains("://") || link.starts_with("mailto:") {
        return Ok(None);
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let directory = page.parent().unwrap_or(Path::new(""));
    let target = directory.join(file);
    if !file.is_empty() && !target.exists() {
        return Ok(Some(format!("link to {link}: there is no such file")));
    }
    if directory.starts_with(SITE) && file.starts_with("..") {
        return Ok(Some(format!("link to {link}: leaves the site; name the file without a link")));
    }
    let Some(anchor) = anchor else { return Ok(None) };
    let other = if file.is_empty() { content.to_owned() } else { fs::read_to_string(&target)? };
    let is_there = anchors(&other).iter().any(|known| known == anchor);
    Ok((!is_there).then(|| format!("link to {link}: that page has no such heading")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_found_and_placeholders_left_out() {
        let found: Vec<_> =
            files_in("run ./scripts/a.sh --x, tests/TARGET/b and (docs/c.md) of x/docs").collect();
        assert_eq!(found, ["./scripts/a.sh", "docs/c.md"]);
    }

    #[test]
    fn wrong_file_and_wrong_anchor_are_findings() {
        let check = |link| check_link(Path::new("docs/x.md"), "# Here it is", link).unwrap();
        assert_eq!(check("#here-it-is"), None);
        assert_eq!(check("https://example.org/x#y"), None);
        assert!(check("#not-here").unwrap().contains("no such heading"));
        assert!(check("absent.md").unwrap().contains("no such file"));
    }

    #[test]
    fn every_link_of_a_line_is_found() {
        assert_eq!(links_in("[a](b.md) and [c](d.md#e)"), ["b.md", "d.md#e"]);
    }
}
