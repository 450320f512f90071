//! The kernel command line.

use vm_memory::GuestMemory;

use crate::error::Error;
use crate::guest::write;
use crate::layout::COMMAND_LINE;

/// The word that ends the kernel's part of a command line. The rest goes to init.
const END: &str = "--";

/// Returns the part of a command line that the kernel reads.
#[must_use]
pub fn kernel_part(text: &str) -> &str {
    let (mut start, mut in_quotes) = (0, false);
    // A last word ends at the end of the text.
    for (position, byte) in text.bytes().chain([b' ']).enumerate() {
        match byte {
            b'"' => in_quotes = !in_quotes,
            _ if in_quotes || !byte.is_ascii_whitespace() => {}
            _ if text.get(start..position) == Some(END) => return &text[..start],
            _ => start = position + 1,
        }
    }
    text
}

/// Adds words to the part of a command line that the kernel reads.
pub fn add_words(text: &mut String, words: &str) {
    if words.is_empty() {
        return;
    }
    let (part, rest) = text.split_at(kernel_part(text).len());
    let parts = [part.trim_end(), words, rest].into_iter().filter(|part| !part.is_empty());
    *text = parts.collect::<Vec<_>>().join(" ");
}

/// Returns an error if the kernel would truncate or misread this command line.
///
/// # Errors
/// [`Error::CommandLineTooLong`], [`Error::CommandLineCharacter`].
pub(crate) fn check(text: &str, limit: usize) -> Result<(), Error> {
    if let Some(position) = text.bytes().position(|byte| byte == 0) {
        return Err(Error::CommandLineCharacter { what: "a NUL", position });
    }
    if let Some(position) = text.bytes().position(|byte| !byte.is_ascii()) {
        return Err(Error::CommandLineCharacter { what: "a character that is not ASCII", position });
    }
    if text.len() > limit {
        return Err(Error::CommandLineTooLong { length: text.len(), limit });
    }
    Ok(())
}

/// Writes a checked command line with its terminating NUL.
pub(crate) fn place<M: GuestMemory>(memory: &M, text: &str) -> Result<(), Error> {
    write(memory, "kernel command line", COMMAND_LINE, &[text.as_bytes(), b"\0"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_longer_than_the_limit_is_refused() {
        assert!(check(&"x".repeat(2047), 2047).is_ok());
        assert!(check("", 0).is_ok());
        assert_eq!(
            check(&"x".repeat(3000), 2047).unwrap_err().to_string(),
            "kernel command line is 3000 bytes long; the kernel takes at most 2047"
        );
    }

    #[test]
    fn added_words_go_to_the_kernel_and_not_to_init() {
        for (text, whole) in [
            ("", "new=1"),
            ("quiet", "quiet new=1"),
            ("quiet ", "quiet new=1"),
            ("-- /bin/sh", "new=1 -- /bin/sh"),
            ("quiet --", "quiet new=1 --"),
            ("quiet -- a -- b", "quiet new=1 -- a -- b"),
            ("quiet\t--\ta", "quiet new=1 --\ta"),
            ("a--b --c d--", "a--b --c d-- new=1"),
            (r#"x="a -- b" -- c"#, r#"x="a -- b" new=1 -- c"#),
            (r#"x="open -- c"#, r#"x="open -- c new=1"#),
        ] {
            let mut text = text.to_owned();
            add_words(&mut text, "");
            add_words(&mut text, "new=1");
            assert_eq!(text, whole);
        }
        assert_eq!(kernel_part("root=/dev/vdb -- root=x"), "root=/dev/vdb ");
    }

    #[test]
    fn nul_and_non_ascii_bytes_are_refused_with_their_position() {
        assert_eq!(check("ab\0", 9).unwrap_err().to_string(), "kernel command line has a NUL at byte 2");
        assert_eq!(
            check("root=é", 9).unwrap_err().to_string(),
            "kernel command line has a character that is not ASCII at byte 5"
        );
    }
}
