//! Streams that may be compressed by gzip or zstd: their first bytes tell.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use zstd_safe::{DCtx, InBuffer, OutBuffer};

/// Bytes that are read of a compressed stream at once.
const BUFFER: usize = 128 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();

/// Most that a stream may become.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes.
    pub size: u64,
    /// Times its compressed size; not looked at below `free` bytes.
    pub ratio: u64,
    /// Bytes that a stream may become in any case.
    pub free: u64,
}

impl Default for Limits {
    /// 256 GiB. Beyond 1 GiB, 1,100 times the compressed size: gzip cannot reach more than 1,032.
    fn default() -> Self {
        Self { size: 256 << 30, ratio: 1100, free: 1 << 30 }
    }
}

/// The plain content of a stream.
pub struct Unpacked<'a> {
    plain: Box<dyn Read + 'a>,
    packed: Rc<Cell<u64>>,
    len: u64,
    limits: Limits,
}

impl<'a> Unpacked<'a> {
    /// Begins to read a stream.
    ///
    /// # Errors
    /// Its first bytes cannot be read.
    pub fn new(stream: impl Read + 'a, limits: Limits) -> io::Result<Self> {
        let packed = Rc::new(Cell::new(0));
        let mut stream = Counted { inner: stream, count: Rc::clone(&packed) };
        let mut first = Vec::new();
        (&mut stream).take(ZSTD.len() as u64).read_to_end(&mut first)?;
        let (is_gzip, is_zstd) = (first.starts_with(&GZIP), first.starts_with(&ZSTD));
        let stream = BufReader::with_capacity(BUFFER, io::Cursor::new(first).chain(stream));
        let plain: Box<dyn Read + 'a> = if is_gzip {
            Box::new(MultiGzDecoder::new(stream))
        } else if is_zstd {
            Box::new(Zstd { stream, context: DCtx::create(), is_within_frame: false })
        } else {
            Box::new(stream)
        };
        Ok(Self { plain, packed, len: 0, limits })
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.plain.read(buffer)?;
        self.len += count as u64;
        let Limits { size, ratio, free } = self.limits;
        let packed = self.packed.get();
        if self.len > size {
            return Err(io::Error::other(format!("it is larger than {size} bytes when unpacked")));
        }
        if self.len > free && self.len / ratio > packed {
            let why = format!("{packed} bytes become {} and more: over {ratio} times as many", self.len);
            return Err(io::Error::other(why));
        }
        Ok(count)
    }
}

struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.count.set(self.count.get() + count as u64);
        Ok(count)
    }
}

/// Frames of zstd, one after another.
struct Zstd<R> {
    stream: R,
    context: DCtx<'static>,
    is_within_frame: bool,
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let bytes = self.stream.fill_buf()?;
            let is_end = bytes.is_empty();
            let (mut input, mut output) = (InBuffer::around(bytes), OutBuffer::around(&mut *buffer));
            let hint = self.context.decompress_stream(&mut output, &mut input).map_err(|code| {
                io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
            })?;
            let (taken, made) = (input.pos(), output.pos());
            self.stream.consume(taken);
            if taken > 0 || made > 0 {
                self.is_within_frame = hint != 0;
            }
            match (made, is_end, self.is_within_frame) {
                (0, true, true) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (0, false, _) => {}
                _ => return Ok(made),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
        let mut context = zstd_safe::CCtx::create();
        context.set_parameter(zstd_safe::CParameter::ChecksumFlag(true)).unwrap();
        context.compress2(&mut packed, bytes).unwrap();
        packed
    }

    fn unpack(stream: &[u8], limits: Limits) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        Unpacked::new(stream, limits)?.read_to_end(&mut plain).map(|_| plain)
    }

    #[test]
    fn streams_of_several_members_become_what_they_were() {
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(|number| (number / 7).to_le_bytes()).collect();
        let halves = bytes.split_at(bytes.len() / 2);
        let joined = |pack: fn(&[u8]) -> Vec<u8>| [pack(halves.0), pack(halves.1)].concat();
        for stream in [joined(gzip), joined(zstd), bytes.clone()] {
            assert!(unpack(&stream, Limits::default()).unwrap() == bytes);
        }
        for short in [&b""[..], b"a", b"\x1f", b"\x28\xb5\x2f"] {
            assert_eq!(unpack(short, Limits::default()).unwrap(), short);
        }
    }

    #[test]
    fn damaged_and_cut_streams_are_refused() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for stream in [gzip(&bytes), zstd(&bytes)] {
            for end in [5, stream.len() / 2, stream.len() - 1] {
                assert!(unpack(&stream[..end], Limits::default()).is_err(), "{end} of {}", stream.len());
            }
            let mut damaged = stream.clone();
            damaged[stream.len() / 2..][..100].fill(0x55);
            assert!(unpack(&damaged, Limits::default()).is_err());
        }
    }

    #[test]
    fn stream_that_becomes_too_large_is_refused() {
        let bytes = vec![0; 4 << 20];
        let limits = Limits { size: 3 << 20, ..Limits::default() };
        for stream in [gzip(&bytes), zstd(&bytes), bytes.clone()] {
            assert!(unpack(&stream, limits).unwrap_err().to_string().contains("larger than 3145728 bytes"));
        }
        let limits = Limits { ratio: 100, free: 1 << 20, ..Limits::default() };
        for stream in [gzip(&bytes), zstd(&bytes)] {
            assert!(unpack(&stream, limits).unwrap_err().to_string().contains("over 100 times as many"));
        }
        assert!(unpack(&bytes, limits).is_ok());
    }
}
