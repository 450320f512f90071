//! Puts an image into a store from wherever its documents and layers are.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oci_spec::image::Descriptor;

use super::{LayerRecord, Progress, Store, Stream, Wanted, diff_ids};
use crate::digest::Digest;
use crate::error::Result;
use crate::manifest::{Platform, checked, resolve};
use crate::unpacked::Limits;

/// A place that has images: a registry, or an archive.
pub trait Source: Sync {
    /// Gets a document: an index, a manifest or a configuration. The caller checks its digest.
    ///
    /// # Errors
    /// It is not there.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>>;

    /// Opens the stream of a layer. The caller checks its digest.
    ///
    /// # Errors
    /// It is not there.
    fn layer(&self, descriptor: &Descriptor) -> io::Result<Stream<'_>>;
}

/// Chooses an image, and who is told how far it is.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// The platform of images that have several.
    pub platform: &'a Platform,
    /// Most that a layer may become.
    pub limits: Limits,
    /// Gets to know how far the layers are.
    pub progress: &'a dyn Progress,
    /// Ends the layers if it is set.
    pub is_cancelled: &'a Arc<AtomicBool>,
}

impl Store {
    /// Stores the image to which a document leads: an index or a manifest. Returns its digest. The store must
    /// be kept meanwhile.
    ///
    /// # Errors
    /// A document or a layer is not there or damaged, or the host cannot write.
    pub fn take_in(&self, source: &dyn Source, first: Vec<u8>, options: Options<'_>) -> Result<Digest> {
        let document = |descriptor: &Descriptor| checked(descriptor, source.document(descriptor)?);
        let found = resolve(first, options.platform, document)?;
        let config = document(found.manifest.config())?;
        let layers = found.manifest.layers();
        let wanted: Vec<Wanted<'_>> = layers
            .iter()
            .zip(diff_ids(&config, layers.len())?)
            .map(|(layer, diff_id)| Wanted {
                record: LayerRecord { diff_id, digest: layer.digest().clone(), size: layer.size() },
                is_packed: true,
                open: Box::new(|| source.layer(layer)),
            })
            .collect();
        self.add(&config, Some(&found.digest), &wanted, options)
    }
}
