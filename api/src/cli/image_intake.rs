//! Images on their way into the store, with a bar: from a registry, or from an archive.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use volt_image::digest::Digest;
use volt_image::manifest::Platform;
use volt_image::reference::Name;
use volt_image::store::{LayerRecord, Options, Progress};
use volt_image::unpacked::Limits;

use super::image_place::store;
use crate::failure::Failure;
use crate::output::progress::watching;
use crate::registry::{Mirror, Registry};

/// Mirrors where no option names any: REGISTRY=URL, separated by commas.
const MIRRORS: &str = "VOLT_REGISTRY_MIRRORS";

/// Counts the bytes of all layers.
#[derive(Debug, Default)]
struct Bytes {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress for Bytes {
    fn present(&self, _: &LayerRecord) {}

    fn begin(&self, layer: &LayerRecord) {
        self.total.fetch_add(layer.size, Ordering::Relaxed);
    }

    fn advance(&self, _: &LayerRecord, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    fn done(&self, _: &LayerRecord) {}
}

/// Stores images with a bar. A signal cancels it.
pub(super) fn with_bar<T>(
    what: &'static str,
    platform: Option<&Platform>,
    step: impl FnOnce(Options<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (bytes, is_cancelled, own) = (Bytes::default(), Arc::<AtomicBool>::default(), Platform::default());
    let options = Options {
        platform: platform.unwrap_or(&own),
        limits: Limits::default(),
        progress: &bytes,
        is_cancelled: &is_cancelled,
    };
    let cancel = || {
        is_cancelled.store(true, Ordering::Relaxed);
        Ok(())
    };
    let look = || (bytes.done.load(Ordering::Relaxed), bytes.total.load(Ordering::Relaxed));
    watching(what, cancel, look, || step(options))
}

/// Gets an image and names it. Without mirrors, those of the environment count.
///
/// # Errors
/// The registry or the host refuses, or a signal came.
pub(super) fn pull(
    name: &Name,
    platform: Option<&Platform>,
    mirrors: Vec<Mirror>,
    plain_http: bool,
) -> Result<Digest, Failure> {
    let store = store()?;
    with_bar("pulling the image", platform, |options| {
        let mirrors = if mirrors.is_empty() { mirrors_of_environment()? } else { mirrors };
        let registry = Registry::new(name, &mirrors, plain_http, options.is_cancelled);
        let registry = registry.map_err(|error| volt_image::Error::Remote(Box::new(error)))?;
        let _kept = store.keep()?;
        let id = store.take_in(&registry, registry.first()?, options)?;
        store.name(name, &id)?;
        Ok(id)
    })
}

fn mirrors_of_environment() -> Result<Vec<Mirror>, Failure> {
    let text = env::var(MIRRORS).unwrap_or_default();
    let mirrors = text.split(',').filter(|mirror| !mirror.trim().is_empty());
    mirrors
        .map(|mirror| {
            mirror.trim().parse().map_err(|problem| Failure::Server(format!("{MIRRORS}: {problem}")))
        })
        .collect()
}
