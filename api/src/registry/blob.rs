//! A blob as a stream that goes on where its connection broke.

use std::io::{self, Read};

use oci_spec::image::Descriptor;
use reqwest::StatusCode;
use reqwest::blocking::Response;
use reqwest::header::RANGE;

use super::request::{Requests, backoff};
use super::{RegistryError, without_url};

/// Most breaks without so many bytes between them.
const BREAKS: u32 = 5;
const ENOUGH: u64 = 64 << 10;

/// The stream of a blob.
pub(super) struct Blob<'a> {
    place: &'a Requests,
    path: String,
    size: u64,
    /// Bytes that were read.
    at: u64,
    response: Option<Response>,
    breaks: u32,
    /// Bytes that were read when breaks were last counted from 0.
    counted: u64,
}

impl<'a> Blob<'a> {
    pub(super) fn new(place: &'a Requests, descriptor: &Descriptor) -> Self {
        let path = format!("blobs/{}", descriptor.digest());
        Self { place, path, size: descriptor.size(), at: 0, response: None, breaks: 0, counted: 0 }
    }

    /// Asks for what is not read yet.
    pub(super) fn begin(&mut self) -> Result<(), RegistryError> {
        let at = self.at;
        let response = self.place.get(&self.path, |request| match at {
            0 => request,
            _ => request.header(RANGE, format!("bytes={at}-")),
        })?;
        // A registry may not know ranges, and begin anew.
        let known = if response.status() == StatusCode::PARTIAL_CONTENT { 0 } else { at };
        let mut known = response.take(known);
        match io::copy(&mut known, &mut io::sink()) {
            Ok(_) => {
                self.response = Some(known.into_inner());
                Ok(())
            }
            Err(source) => self.break_off(source),
        }
    }
}

impl Blob<'_> {
    /// Waits for a moment after the connection broke.
    fn break_off(&mut self, source: io::Error) -> Result<(), RegistryError> {
        self.response = None;
        if self.at >= self.counted + ENOUGH {
            (self.breaks, self.counted) = (0, self.at);
        }
        self.breaks += 1;
        let Self { place, path, at, size, .. } = self;
        let (url, source) = (place.url(path), without_url(source));
        if self.breaks == BREAKS {
            return Err(RegistryError::BrokeOff { url, at: *at, size: *size, source });
        }
        let wait = backoff(self.breaks);
        log::info!("{url}: {source} after {at} of {size} bytes; going on in {} s", wait.as_secs_f32());
        place.pause(wait)
    }
}

impl Read for Blob<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.size || buffer.is_empty() {
            return Ok(0);
        }
        let most = usize::try_from(self.size - self.at).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        loop {
            let Some(response) = &mut self.response else {
                self.begin().map_err(io::Error::other)?;
                continue;
            };
            match response.read(&mut buffer[..most]) {
                // The answer has all that it promised, so that another one would not have more.
                Ok(0) if response.content_length().is_some() => {
                    let Self { place, path, at, size, .. } = self;
                    let url = place.url(path);
                    return Err(io::Error::other(RegistryError::Short { url, at: *at, size: *size }));
                }
                Ok(0) => self.break_off(io::ErrorKind::UnexpectedEof.into()).map_err(io::Error::other)?,
                Err(error) => self.break_off(error).map_err(io::Error::other)?,
                Ok(count) => {
                    self.at += count as u64;
                    return Ok(count);
                }
            }
        }
    }
}
