//! Texts that a guest has written, which may be hostile.

/// Most characters of a text that a guest has written, in a message.
const LONGEST: usize = 500;

/// Escapes the characters of a text that a terminal would obey, except ends of lines and tabs.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && !matches!(character, '\n' | '\t') {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
}

/// Shortens a text of a guest to a part of a line for a user, and escapes it.
#[must_use]
pub fn shown(text: &str) -> String {
    let text: String = text.chars().take(LONGEST).collect();
    harmless(&text).replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_guest_is_one_short_line_without_control_characters() {
        assert_eq!(shown("a\n\x1b[2Jb\tc"), "a \\u{1b}[2Jb\tc");
        assert_eq!(shown(&"x".repeat(LONGEST + 1)).len(), LONGEST);
        assert_eq!(harmless("a\r\nb"), "a\\r\nb");
    }
}
