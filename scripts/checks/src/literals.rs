//! The string literals of Rust code: messages and help texts.

use crate::text::Paragraph;

/// All string literals of this code, one paragraph for each paragraph of text in them.
pub(crate) fn literals(code: &str) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let token = token(rest, first);
        if let Some(text) = content(token) {
            let text = text.replace("\\n", "\n").replace("\\\"", "\"");
            let texts = text.split("\n\n").map(|text| text.replace("\\\n", "").replace('\n', " "));
            found.extend(texts.map(|text| Paragraph { line, text }));
        }
        line += token.matches('\n').count();
        rest = &rest[token.len()..];
    }
    found
}

/// The next token, as far as it matters here: a comment, a literal, a name, or one character.
fn token(code: &str, first: char) -> &str {
    let to = |end: &str, from: usize| code[from..].find(end).map_or(code.len(), |at| from + at + end.len());
    let end = if code.starts_with("//") {
        code.find('\n').unwrap_or(code.len())
    } else if first == '"' {
        end_of_quoted(code)
    } else if code.starts_with("'\\") {
        to("'", 3)
    } else if first == '\'' {
        // A character, or the name of a lifetime.
        let mut chars = code.char_indices().skip(2);
        chars.next().filter(|(_, quote)| *quote == '\'').map_or(1, |(at, _)| at + 1)
    } else if first.is_alphanumeric() || first == '_' {
        let end = code.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(code.len());
        let hashes = code[end..].len() - code[end..].trim_start_matches('#').len();
        let is_raw = ["r", "br", "cr"].contains(&&code[..end]) && code[end + hashes..].starts_with('"');
        if is_raw { to(&format!("\"{}", "#".repeat(hashes)), end + hashes + 1) } else { end }
    } else {
        first.len_utf8()
    };
    &code[..end]
}

fn end_of_quoted(code: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in code.char_indices().skip(1) {
        if c == '"' && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    code.len()
}

/// The text of a literal.
fn content(token: &str) -> Option<&str> {
    let is_literal = !token.starts_with(['/', '\'']) && token.len() > 1;
    let (_, text) = token.split_once('"').filter(|_| is_literal)?;
    text.trim_end_matches('#').strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_found_and_comments_characters_and_lifetimes_are_none() {
        let code = "// \"a\"\nfn f<'a>(x: &'a str) {\n    say('\"', '\\'', \"b \\\"c\\\" \\\n d\");\n"
            .to_owned()
            + "    say(r#\"e \"f\"\"#, b\"g\\n\\nh\");\n}";
        let found: Vec<_> = literals(&code).into_iter().map(|found| (found.line, found.text)).collect();
        let expected = [(3, "b \"c\"  d"), (5, "e \"f\""), (5, "g"), (5, "h")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }
}
