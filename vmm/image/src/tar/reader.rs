//! A stream, entry by entry.

use std::io::{self, Read, Take};
use std::mem::take;

use tar::{EntryType, Header};

use super::header::{Entry, LongNames, entry};
use super::pax::Records;
use super::{Malformed, TarError, sparse};

const RECORD: usize = 512;
/// Most bytes of the records and long names of an entry, and of records that are for all entries.
const LONGEST_HEADER: u64 = 1 << 20;
const LONGEST_GLOBAL: u64 = 4 << 10;

/// Reads a stream in one pass.
#[derive(Debug)]
pub struct Reader<R> {
    input: Take<R>,
    /// Bytes behind those of the current entry, up to a whole record.
    padding: u64,
    global: Records,
    /// Bytes of global records that may yet come.
    global_left: u64,
}

impl<R: Read> Reader<R> {
    /// Reads a stream that is not compressed.
    pub fn new(input: R) -> Self {
        Self { input: input.take(0), padding: 0, global: Records::default(), global_left: LONGEST_GLOBAL }
    }

    /// Returns the next entry, or nothing at the stream's end. The unread rest of the
    /// current one is skipped.
    ///
    /// # Errors
    /// The stream is no tar, ends within an entry, or cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let (mut local, mut long) = (Records::default(), LongNames::default());
        let mut left = LONGEST_HEADER;
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|_| Malformed("a size is no number"))?;
            match header.entry_type() {
                EntryType::XGlobalHeader => {
                    let mut left = self.global_left;
                    let records = Records::parse(&self.small(size, &mut left)?)?;
                    self.global_left = left;
                    self.global = take(&mut self.global).overlaid(records);
                }
                EntryType::XHeader => local = local.overlaid(Records::parse(&self.small(size, &mut left)?)?),
                EntryType::GNULongName => long.path = Some(self.name(size, &mut left)?),
                EntryType::GNULongLink => long.link = Some(self.name(size, &mut left)?),
                _ => return self.begin(&header, self.global.clone().overlaid(local), long, size).map(Some),
            }
        }
    }

    /// Reads the bytes of the current entry: those of the parts of a file.
    pub fn content(&mut self) -> &mut impl Read {
        &mut self.input
    }

    /// Returns the stream, whose position is that of the current entry's content.
    pub fn input(&self) -> &R {
        self.input.get_ref()
    }

    /// Ends with the stream, whatever is left of it.
    pub fn into_input(self) -> R {
        self.input.into_inner()
    }

    fn begin(
        &mut self,
        header: &Header,
        records: Records,
        long: LongNames,
        size: u64,
    ) -> Result<Entry, TarError> {
        let has_content =
            matches!(header.entry_type(), EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
        // Some programs give links and directories a size, and no content.
        let mut stored = if has_content { records.number("size")?.unwrap_or(size) } else { 0 };
        self.padding = stored.wrapping_neg() % RECORD as u64;
        self.input.set_limit(u64::MAX);
        let map = sparse::map(header, &records, &mut stored, &mut self.input)?;
        self.input.set_limit(stored);
        let file = map.unwrap_or_else(|| (stored, if stored == 0 { Vec::new() } else { vec![(0, stored)] }));
        entry(header, &records, long, file).map_err(|fault| {
            let path = String::from_utf8_lossy(&header.path_bytes()).into_owned();
            TarError::Entry { path, fault }
        })
    }

    /// Reads a header. The stream ends with a record of zeros, or just so.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut header = Header::new_old();
        self.input.set_limit(RECORD as u64);
        let mut filled = 0;
        while filled < RECORD {
            match self.input.read(&mut header.as_mut_bytes()[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let sum: u32 = header
            .as_bytes()
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { u32::from(b' ') } else { u32::from(*byte) })
            .sum();
        if header.cksum().ok() == Some(sum) {
            Ok(Some(header))
        } else {
            Err(Malformed("a header's checksum is wrong").into())
        }
    }

    /// Reads the whole content of a header that describes the next one.
    fn small(&mut self, size: u64, left: &mut u64) -> Result<Vec<u8>, TarError> {
        *left = left.checked_sub(size).ok_or(Malformed("the records of an entry are too long"))?;
        self.padding = size.wrapping_neg() % RECORD as u64;
        self.input.set_limit(size);
        let mut bytes = Vec::new();
        self.input.read_to_end(&mut bytes)?;
        if bytes.len() as u64 == size {
            Ok(bytes)
        } else {
            Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
        }
    }

    /// Reads a long name, which ends with a zero.
    fn name(&mut self, size: u64, left: &mut u64) -> Result<Vec<u8>, TarError> {
        let mut name = self.small(size, left)?;
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
        Ok(name)
    }

    fn skip_rest(&mut self) -> Result<(), TarError> {
        let rest = self.input.limit().checked_add(take(&mut self.padding));
        let rest = rest.ok_or(Malformed("a size exceeds 64 bits"))?;
        self.input.set_limit(rest);
        let skipped = io::copy(&mut self.input, &mut io::sink())?;
        if skipped == rest { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
    }
}
