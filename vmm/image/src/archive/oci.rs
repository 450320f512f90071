//! An OCI layout.

use std::io;

use oci_spec::image::{Descriptor, ImageIndex};

use super::files::Files;
use super::{Loaded, loaded};
use crate::error::{Error, Result};
use crate::manifest::checked;
use crate::store::{Options, Source, Store, Stream};

/// Annotations that name an image: containerd's has the whole name, and OCI's may have the tag alone.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Blobs by their digest.
struct Blobs<'a>(&'a Files);

impl Source for Blobs<'_> {
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.0.read(&path(descriptor))
    }

    fn layer(&self, descriptor: &Descriptor) -> io::Result<Stream<'_>> {
        Ok(self.0.find(&path(descriptor))?.1)
    }
}

pub(super) fn load(store: &Store, files: &Files, options: Options<'_>) -> Result<Vec<Loaded>> {
    let index = files.read("index.json")?;
    let index: ImageIndex = serde_json::from_slice(&index).map_err(|problem| Error::Document {
        what: files.path().join("index.json").display().to_string(),
        problem: problem.to_string(),
    })?;
    let blobs = Blobs(files);
    let load_one = |first: &Descriptor| {
        let id = store.take_in(&blobs, checked(first, blobs.document(first)?)?, options)?;
        loaded(store, id, name(first).as_slice())
    };
    let is_wanted = |first: &&Descriptor| {
        let wanted = options.platform;
        let found = first.platform().as_ref();
        found.is_none_or(|found| (found.os(), found.architecture()) == (&wanted.os, &wanted.architecture))
    };
    let loaded: Vec<_> = index.manifests().iter().filter(is_wanted).map(load_one).collect::<Result<_>>()?;
    if loaded.is_empty() {
        let problem =
            format!("it has no image for {}/{}", options.platform.os, options.platform.architecture);
        return Err(Error::Document { what: files.path().display().to_string(), problem });
    }
    Ok(loaded)
}

/// The name that a descriptor has. An image with several has as many descriptors.
fn name(descriptor: &Descriptor) -> Option<String> {
    let annotation = |key: &str| descriptor.annotations().as_ref()?.get(key).cloned();
    // A tag alone would name an image of docker's library.
    annotation(NAMES[0]).or_else(|| annotation(NAMES[1]).filter(|name| name.contains([':', '/'])))
}

fn path(descriptor: &Descriptor) -> String {
    let digest = descriptor.digest();
    format!("blobs/{}/{}", digest.algorithm(), digest.digest())
}
