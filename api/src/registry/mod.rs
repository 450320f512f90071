//! A client of registries (OCI distribution specification): it gets documents and blobs.
//!
//! It is ours because of what users meet most: a registry that asks to wait (429 with `Retry-After`), a blob
//! whose connection breaks, and a document that does not end. The crate oci-client hides the first, leaves
//! the second to its caller, and reads the third as a whole.

mod blob;
mod credentials;
mod endpoint;
mod error;
mod request;
mod token;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oci_spec::image::Descriptor;
use reqwest::redirect::Policy;
use volt_image::digest::{self, Digest};
use volt_image::manifest::{ACCEPTED, MOST};
use volt_image::reference::Name;
use volt_image::store::{Source, Stream};

use blob::Blob;
use endpoint::Endpoint;
pub(crate) use endpoint::Mirror;
pub(crate) use error::RegistryError;
use request::Requests;

/// A repository of a registry, as its images and mirrors have it.
pub(crate) struct Registry {
    name: Name,
    /// The mirrors, with whether one has failed.
    mirrors: Vec<(Requests, AtomicBool)>,
    /// The registry itself.
    own: Requests,
}

impl Registry {
    /// Prepares requests for the image of a name. `plain_http` is for registries that have no TLS, and
    /// `is_cancelled` ends waits.
    ///
    /// # Errors
    /// The host cannot make a client.
    pub(crate) fn new(
        name: &Name,
        mirrors: &[Mirror],
        plain_http: bool,
        is_cancelled: &Arc<AtomicBool>,
    ) -> Result<Self, RegistryError> {
        let own = Endpoint::of(name.registry(), plain_http);
        let mirrors = mirrors.iter().filter(|mirror| mirror.registry == own.registry);
        let clients = [request::client(Policy::default())?, request::client(Policy::none())?];
        let requests = |endpoint| Requests::new(clients.clone(), endpoint, name.repository(), is_cancelled);
        let mirrors =
            mirrors.map(|mirror| (requests(mirror.endpoint.clone()).once(), AtomicBool::default())).collect();
        Ok(Self { name: name.clone(), mirrors, own: requests(own) })
    }

    /// Gets the document that the name leads to.
    ///
    /// # Errors
    /// No place has it, or none answers.
    pub(crate) fn first(&self) -> volt_image::Result<Vec<u8>> {
        let expected = self.name.digest();
        let version = expected.map(AsRef::as_ref).or(self.name.tag()).unwrap_or("latest");
        self.get_document("manifests", version, expected).map_err(remote)
    }

    fn get_document(
        &self,
        kind: &str,
        version: &str,
        expected: Option<&Digest>,
    ) -> Result<Vec<u8>, RegistryError> {
        self.at_each_place(|place| {
            let path = format!("{kind}/{version}");
            let response =
                place.get(&path, |request| request.header(reqwest::header::ACCEPT, ACCEPTED.join(", ")))?;
            let mut bytes = Vec::new();
            let url = place.url(&path);
            let read = response.take(MOST + 1).read_to_end(&mut bytes);
            read.map_err(|source| RegistryError::Cut { url: url.clone(), source: without_url(source) })?;
            if bytes.len() as u64 > MOST {
                return Err(RegistryError::Long { url, most: MOST });
            }
            let found = digest::of(&bytes);
            match expected.filter(|expected| **expected != found) {
                Some(expected) => Err(RegistryError::Digest { url, expected: expected.clone(), found }),
                None => Ok(bytes),
            }
        })
    }

    /// Asks mirrors first, unless they have failed. The error is that of the registry itself.
    fn at_each_place<'a, T>(
        &'a self,
        mut ask: impl FnMut(&'a Requests) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        for (mirror, has_failed) in &self.mirrors {
            if has_failed.load(Ordering::Relaxed) {
                continue;
            }
            match ask(mirror) {
                Err(RegistryError::Cancelled) => return Err(RegistryError::Cancelled),
                Err(error) => {
                    has_failed.store(true, Ordering::Relaxed);
                    log::warn!("mirror {}: {}", mirror.endpoint, volt_vmm::problem(&error));
                }
                answer => return answer,
            }
        }
        ask(&self.own)
    }
}

impl Source for Registry {
    fn document(&self, descriptor: &Descriptor) -> volt_image::Result<Vec<u8>> {
        let is_manifest = ACCEPTED.contains(&descriptor.media_type().to_string().as_str());
        let kind = if is_manifest { "manifests" } else { "blobs" };
        let expected = descriptor.digest();
        self.get_document(kind, expected.as_ref(), Some(expected)).map_err(remote)
    }

    fn layer(&self, descriptor: &Descriptor) -> io::Result<Stream<'_>> {
        let blob = self.at_each_place(|place| {
            let mut blob = Blob::new(place, descriptor);
            blob.begin()?;
            Ok(blob)
        });
        Ok(Box::new(blob.map_err(io::Error::other)?))
    }
}

/// Returns an error of a connection without its URL, which may have secrets.
fn without_url(error: io::Error) -> io::Error {
    match error.downcast::<reqwest::Error>() {
        Ok(error) => io::Error::other(error.without_url()),
        Err(error) => error,
    }
}

fn remote(error: RegistryError) -> volt_image::Error {
    volt_image::Error::Remote(Box::new(error))
}
