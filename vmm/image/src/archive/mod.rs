//! Images in a directory or in a tar archive: an OCI layout (image-layout.md of the OCI image specification),
//! or what `docker save` makes. Newer versions of docker make both in one archive.

mod docker;
mod files;
mod oci;
mod save;
mod section;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::reference::Name;
use crate::store::{Options, Store};
use files::Files;
pub use save::save;

/// An image that was loaded.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Digest of its configuration.
    pub id: Digest,
    /// The names that it got.
    pub names: Vec<Name>,
}

/// Loads the images of a directory, or of an archive that may be compressed.
///
/// # Errors
/// It has no images, they are damaged, or the host cannot write. Images before the damaged one are loaded.
pub fn load(store: &Store, path: &Path, options: Options<'_>) -> Result<Vec<Loaded>> {
    let _kept = store.keep()?;
    let files = Files::open(store, path, options.limits, options.is_cancelled)?;
    // docker's list has whole names, which an OCI layout need not have.
    if files.has("manifest.json") {
        docker::load(store, &files, options)
    } else if files.has("index.json") {
        oci::load(store, &files, options)
    } else {
        let problem = "it has neither index.json nor manifest.json: it is no OCI layout, and docker save did \
                       not make it";
        Err(Error::Document { what: path.display().to_string(), problem: problem.to_owned() })
    }
}

/// Names an image.
fn loaded(store: &Store, id: Digest, names: &[String]) -> Result<Loaded> {
    let names = names.iter().map(|name| name.parse()).collect::<Result<Vec<Name>>>()?;
    names.iter().try_for_each(|name| store.name(name, &id))?;
    Ok(Loaded { id, names })
}
