//! Reads `multipart/form-data`.

use std::io::{self, Read, Write};

/// Longest header of a part.
const LONGEST_HEADER: usize = 16 << 10;

const BUFFER: usize = 32 << 10;

/// The parts of a body.
pub struct Parts<R> {
    body: R,
    buffer: Vec<u8>,
    /// The mark between parts: a line break, two dashes and the boundary.
    delimiter: Vec<u8>,
    in_content: bool,
}

/// The header of a part.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The field.
    pub name: String,
    /// The file's name.
    pub file_name: Option<String>,
}

/// Reads the boundary from a content type.
pub fn boundary(content_type: &str) -> Option<String> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|boundary| (1..=70).contains(&boundary.len()))
}

/// Reads a parameter, which may be quoted.
fn parameter(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([';', ' ', '\t']);
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find(';').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

/// Reads to the closing quote. Returns the text, and what follows.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(letters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the multipart body {why}"))
}

impl<R: Read> Parts<R> {
    /// Begins to read.
    pub fn new(body: R, boundary: &str) -> Self {
        // The first delimiter needs no line break before it.
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        Self { body, buffer: b"\r\n".to_vec(), delimiter, in_content: true }
    }

    /// Reads the header of the next part. Skips what is left of the last one.
    pub fn next(&mut self) -> io::Result<Option<Part>> {
        if self.in_content {
            self.copy(&mut io::sink())?;
        }
        while self.buffer.len() < 2 {
            self.fill()?;
        }
        if self.buffer.starts_with(b"--") {
            return Ok(None);
        }
        let header = loop {
            // The line break before the header is that of the delimiter, so an empty header ends too.
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break self.buffer.drain(..end + 4).collect::<Vec<_>>();
            }
            if self.buffer.len() > LONGEST_HEADER {
                return Err(wrong("has a part with a long header"));
            }
            self.fill()?;
        };
        self.in_content = true;
        let header = String::from_utf8_lossy(&header);
        let disposition = header.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.to_owned())
        });
        let disposition = disposition.ok_or_else(|| wrong("has a part without Content-Disposition"))?;
        let (_, parameters) = disposition.split_once(';').unwrap_or_default();
        let name = parameter(parameters, "name").ok_or_else(|| wrong("has a part without a name"))?;
        Ok(Some(Part { name, file_name: parameter(parameters, "filename") }))
    }

    /// Copies the content of the part.
    pub fn copy(&mut self, target: &mut impl Write) -> io::Result<()> {
        loop {
            if let Some(end) = find(&self.buffer, &self.delimiter) {
                target.write_all(&self.buffer[..end])?;
                self.buffer.drain(..end + self.delimiter.len());
                self.in_content = false;
                return Ok(());
            }
            // The end of the buffer may be the beginning of a delimiter.
            let safe = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
            target.write_all(&self.buffer[..safe])?;
            self.buffer.drain(..safe);
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        let filled = self.buffer.len();
        self.buffer.resize(filled + BUFFER, 0);
        let read = loop {
            match self.body.read(&mut self.buffer[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
        match read? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the multipart body ends early")),
            _ => Ok(()),
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|&byte| byte == wanted[0]) {
        if text[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let Self(rest) = self;
            let length = rest.len().min(1);
            buffer[..length].copy_from_slice(&rest[..length]);
            *rest = &rest[length..];
            Ok(length)
        }
    }

    const BODY: &[u8] = b"preamble\r\n--XX\r\nContent-Disposition: form-data; name=\"file\"; \
        filename=\"/a \\\"b\\\"; c\"\r\nContent-Type: text/plain\r\n\r\none\r\n--X\r\ntwo\r\n--XX\r\n\
        content-disposition: form-data; name=other\r\n\r\n\r\n--XX--\r\nepilogue";

    fn all(body: impl Read) -> io::Result<Vec<(Part, Vec<u8>)>> {
        let mut parts = Parts::new(body, "XX");
        let mut found = Vec::new();
        while let Some(part) = parts.next()? {
            let mut content = Vec::new();
            parts.copy(&mut content)?;
            found.push((part, content));
        }
        Ok(found)
    }

    #[test]
    fn parts_are_read_at_any_pace() {
        let wanted = vec![
            (
                Part { name: "file".into(), file_name: Some("/a \"b\"; c".into()) },
                b"one\r\n--X\r\ntwo".to_vec(),
            ),
            (Part { name: "other".into(), file_name: None }, Vec::new()),
        ];
        assert_eq!(all(Slow(BODY)).unwrap(), wanted);
        assert_eq!(all(BODY).unwrap(), wanted);
    }

    #[test]
    fn cut_body_is_an_error_at_every_byte() {
        let end = BODY.len() - b"\r\nepilogue".len();
        for length in 0..end {
            assert!(all(&BODY[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn unread_content_is_skipped() {
        let mut parts = Parts::new(BODY, "XX");
        assert_eq!(parts.next().unwrap().unwrap().name, "file");
        assert_eq!(parts.next().unwrap().unwrap().name, "other");
        assert_eq!(parts.next().unwrap(), None);
    }

    #[test]
    fn boundary_is_read_from_the_content_type() {
        assert_eq!(boundary("multipart/form-data; boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("Multipart/Form-Data;charset=x;boundary=ab").as_deref(), Some("ab"));
        assert_eq!(boundary("text/plain; boundary=ab"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
    }
}
