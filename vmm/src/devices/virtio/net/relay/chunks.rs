//! The end of a chunked body (RFC 9112, section 7.1). Servers differ in all but the plain form, so extensions
//! of chunks and trailers are refused.

/// Most digits of a chunk's size, and the largest size in bytes: what all servers can count.
const MOST_DIGITS: u8 = 8;
const LARGEST: u32 = i32::MAX as u32;

/// A position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkPosition {
    /// Among the digits of a size.
    Size {
        digits: u8,
        size: u32,
    },
    /// Behind the carriage return of a size.
    SizeEnd {
        size: u32,
    },
    /// In a chunk.
    Data {
        left: u32,
    },
    /// Behind a chunk, and behind its carriage return.
    DataEnd,
    DataEndFeed,
    /// Behind the last size, and behind the carriage return there.
    Last,
    LastFeed,
    /// Behind the body.
    Over,
}

impl ChunkPosition {
    /// The start of a body.
    pub const START: Self = Self::Size { digits: 0, size: 0 };

    /// Moves over the next bytes. Returns how many of them are of the body.
    ///
    /// # Errors
    /// The body is malformed or ambiguous.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < bytes.len() && *self != Self::Over {
            if let Self::Data { left } = self {
                let run = (bytes.len() - at).min(*left as usize);
                // No more than `left`, which is an u32.
                *left -= run as u32;
                at += run;
                if *left == 0 {
                    *self = Self::DataEnd;
                }
            } else {
                *self = self.after(bytes[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// The position behind a byte that is no data.
    fn after(self, byte: u8) -> Result<Self, &'static str> {
        match (self, byte) {
            (Self::Size { digits: 1.., size }, b'\r') => Ok(Self::SizeEnd { size }),
            (Self::Size { digits, size }, _) => {
                let digit = (byte as char).to_digit(16).ok_or("the size of a chunk is no number")?;
                let size = size.checked_mul(16).and_then(|size| size.checked_add(digit));
                match size.filter(|size| digits < MOST_DIGITS && *size <= LARGEST) {
                    Some(size) => Ok(Self::Size { digits: digits + 1, size }),
                    None => Err("a chunk is too large"),
                }
            }
            (Self::SizeEnd { size: 0 }, b'\n') => Ok(Self::Last),
            (Self::SizeEnd { size }, b'\n') => Ok(Self::Data { left: size }),
            (Self::DataEnd, b'\r') => Ok(Self::DataEndFeed),
            (Self::DataEndFeed, b'\n') => Ok(Self::START),
            (Self::Last, b'\r') => Ok(Self::LastFeed),
            (Self::LastFeed, b'\n') => Ok(Self::Over),
            (Self::Last, _) => Err("the request has trailers"),
            _ => Err("a chunk ends without a carriage return and a line feed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The position behind bytes that come in pieces of `step`, and how many are of the body.
    fn position(bytes: &[u8], step: usize) -> Result<(ChunkPosition, usize), &'static str> {
        let (mut position, mut taken) = (ChunkPosition::START, 0);
        for piece in bytes.chunks(step) {
            taken += position.advance(piece)?;
        }
        Ok((position, taken))
    }

    #[test]
    fn end_of_a_body_is_found_at_every_split() {
        let body = b"5\r\nhello\r\n0a\r\n0\r\n\r\n56789\r\n7fff\r\n";
        let whole = b"1\r\na\r\n00000003\r\n\r\n0\r\n000\r\n\r\nGET /";
        for step in 1..whole.len() {
            let expected = whole.len() - 5;
            assert_eq!(position(whole, step), Ok((ChunkPosition::Over, expected)), "{step}");
            assert_eq!(position(body, step), Ok((ChunkPosition::Data { left: 0x7fff }, body.len())));
        }
    }

    #[test]
    fn ambiguous_bodies_are_refused() {
        for (body, words) in [
            (&b"\r\n"[..], "no number"),
            (b"+1\r\na\r\n", "no number"),
            (b" 1\r\na\r\n", "no number"),
            (b"1 \r\na\r\n", "no number"),
            (b"0x1\r\na\r\n", "no number"),
            (b"1;a=b\r\na\r\n", "no number"),
            (b"1\na\r\n", "no number"),
            (b"g\r\n", "no number"),
            (b"000000001\r\na\r\n", "too large"),
            (b"80000000\r\n", "too large"),
            (b"100000000\r\n", "too large"),
            (b"1\rxa\r\n", "carriage return"),
            (b"1\r\nab\r\n", "carriage return"),
            (b"1\r\na\n0\r\n", "carriage return"),
            (b"1\r\na\r\r\n", "carriage return"),
            (b"0\r\nX: y\r\n\r\n", "trailers"),
            (b"0\r\n\n", "trailers"),
            (b"0\r\n\rX", "carriage return"),
        ] {
            for step in [1, body.len()] {
                let refusal = position(body, step).unwrap_err();
                assert!(refusal.contains(words), "{body:?}: {refusal}");
            }
        }
    }
}
