//! Puts an image into a store: its layers side by side, then itself.

use std::io::{self, Read};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::images::MOST_LAYERS;
use super::{Claim, LayerRecord, NewImage, Options, Packed, Store};
use crate::cancel::{Cancellable, check};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::unpacked::Limits;

/// Layers that are stored at once, as docker does it.
const AT_ONCE: usize = 3;

/// A stream of a layer.
pub type Stream<'a> = Box<dyn Read + Send + 'a>;

/// A layer of an image, and how to get it.
pub struct Wanted<'a> {
    /// Its digests.
    pub record: LayerRecord,
    /// Whether the stream must have the digest of the record, too: it may be compressed.
    pub is_packed: bool,
    /// Opens the stream.
    pub open: Box<dyn Fn() -> io::Result<Stream<'a>> + Send + Sync + 'a>,
}

/// Gets to know how far the layers are.
pub trait Progress: Sync {
    /// A layer is here already.
    fn present(&self, layer: &LayerRecord);
    /// A layer begins to come.
    fn begin(&self, layer: &LayerRecord);
    /// More bytes of it came.
    fn advance(&self, layer: &LayerRecord, bytes: u64);
    /// A layer is stored.
    fn done(&self, layer: &LayerRecord);
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn present(&self, _: &LayerRecord) {}
    fn begin(&self, _: &LayerRecord) {}
    fn advance(&self, _: &LayerRecord, _: u64) {}
    fn done(&self, _: &LayerRecord) {}
}

impl Store {
    /// Stores the layers of an image that are missing, and the image. Returns its digest.
    ///
    /// # Errors
    /// A stream cannot be read or is damaged, or the host cannot write. Whole layers stay for the next try.
    pub fn add(
        &self,
        config: &[u8],
        manifest: Option<&Digest>,
        wanted: &[Wanted<'_>],
        Options { platform, limits, progress, is_cancelled }: Options<'_>,
    ) -> Result<Digest> {
        platform.check(config)?;
        if wanted.len() > MOST_LAYERS {
            let problem = format!("it has {} layers, and may have {MOST_LAYERS}", wanted.len());
            return Err(Error::Document { what: "the image".to_owned(), problem });
        }
        let work = Work {
            store: self,
            wanted,
            limits,
            progress,
            is_cancelled,
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(wanted.len()) {
                scope.spawn(|| work.take_turns());
            }
        });
        if let Some(failure) = work.failure.into_inner().expect("no thread panics with it") {
            return Err(failure);
        }
        check(is_cancelled)?;
        let layers: Vec<_> = wanted.iter().map(|wanted| wanted.record.clone()).collect();
        self.add_image(NewImage { config, manifest, layers: &layers })
    }
}

/// The layers of an image, shared by threads.
struct Work<'a, 's> {
    store: &'a Store,
    wanted: &'a [Wanted<'s>],
    limits: Limits,
    progress: &'a dyn Progress,
    is_cancelled: &'a AtomicBool,
    next: AtomicUsize,
    /// A layer failed, and the others are of no use.
    is_over: AtomicBool,
    failure: Mutex<Option<Error>>,
}

impl Work<'_, '_> {
    fn take_turns(&self) {
        while let Some(wanted) = self.wanted.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = self.store_layer(wanted) {
                // Only the first failure tells the reason: it ends the other layers.
                if !self.is_over.swap(true, Ordering::Relaxed) {
                    *self.failure.lock().expect("no thread panics with it") = Some(error);
                }
                return;
            }
        }
    }

    fn store_layer(&self, wanted: &Wanted<'_>) -> Result<()> {
        let record = &wanted.record;
        let Claim::Missing(partial) = self.store.claim_layer(&record.diff_id, self.is_cancelled)? else {
            self.progress.present(record);
            return Ok(());
        };
        self.progress.begin(record);
        let unreadable = |source: io::Error| Error::Layer {
            digest: record.diff_id.clone(),
            source: crate::tar::TarError::from(source).into(),
        };
        let stream = (wanted.open)().map_err(unreadable)?;
        let stream = Cancellable { inner: stream, is_cancelled: self.is_cancelled };
        let packed = Packed { digest: record.digest.clone(), size: record.size };
        let stream = Observed { inner: stream, work: self, record };
        partial.fill(stream, wanted.is_packed.then_some(&packed), self.limits)?;
        self.progress.done(record);
        Ok(())
    }
}

/// A stream that tells how far it is, and ends when another layer fails.
struct Observed<'a, R, W> {
    inner: R,
    work: &'a W,
    record: &'a LayerRecord,
}

impl<R: Read> Read for Observed<'_, R, Work<'_, '_>> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.work.is_over.load(Ordering::Relaxed) {
            return Err(io::Error::other("another layer of the image failed"));
        }
        let count = self.inner.read(buffer)?;
        self.work.progress.advance(self.record, count as u64);
        Ok(count)
    }
}
