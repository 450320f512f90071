//! The kernel command line.

use vm_memory::GuestMemory;

use crate::error::Error;
use crate::guest::write;
use crate::layout::COMMAND_LINE;

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
    fn nul_and_non_ascii_bytes_are_refused_with_their_position() {
        assert_eq!(check("ab\0", 9).unwrap_err().to_string(), "kernel command line has a NUL at byte 2");
        assert_eq!(
            check("root=é", 9).unwrap_err().to_string(),
            "kernel command line has a character that is not ASCII at byte 5"
        );
    }
}
