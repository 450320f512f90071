//! Writes images as one archive, which docker, podman and this crate load: an OCI layout with docker's list.
//!
//! Layers are the plain streams that once came, byte for byte, so that the image keeps its digest. Its
//! manifest is new: it names plain layers.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};
use tar::{EntryType, Header};

use crate::digest::{self, Digest};
use crate::error::{Error, Result};
use crate::reference::Name;
use crate::store::{Image, Store};

/// Writes images with these names to `to`, which messages call `target`.
///
/// # Errors
/// An image is damaged, or the archive cannot be written.
pub fn save(store: &Store, images: &[(Image, Vec<Name>)], to: &mut impl Write, target: &Path) -> Result<()> {
    let mut archive = Archive { to, target, blobs: BTreeSet::new() };
    let (mut manifests, mut list) = (Vec::new(), Vec::new());
    archive.file("oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes())?;
    for (image, names) in images {
        let config = store.config(&image.id)?;
        archive.blob(&digest::of(&config), &config)?;
        let mut layers = Vec::new();
        for layer in &image.record.layers {
            let size = store.stream_len(&layer.diff_id)?;
            archive.layer(store, &layer.diff_id, size)?;
            layers.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer.diff_id, "size": size,
            }));
        }
        let kind = "application/vnd.oci.image.config.v1+json";
        let config = json!({"mediaType": kind, "digest": image.id, "size": config.len()});
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
        let manifest = manifest.to_string().into_bytes();
        let named = digest::of(&manifest);
        archive.blob(&named, &manifest)?;
        let descriptor = json!({"mediaType": kind, "digest": named, "size": manifest.len()});
        // A digest is that of the manifest that was pulled, and this one has another.
        let names: Vec<_> = names.iter().filter_map(Name::tagged).collect();
        manifests.extend(named_by(&descriptor, &names));
        let paths: Vec<_> = image.record.layers.iter().map(|layer| path(&layer.diff_id)).collect();
        let tags: Vec<_> = names.iter().map(Name::short).collect();
        list.push(json!({"Config": path(&image.id), "RepoTags": tags, "Layers": paths}));
    }
    archive.file("index.json", json!({"schemaVersion": 2, "manifests": manifests}).to_string().as_bytes())?;
    archive.file("manifest.json", json!(list).to_string().as_bytes())?;
    archive.finish()
}

/// A descriptor for each name.
fn named_by(descriptor: &Value, names: &[Name]) -> Vec<Value> {
    let mut named: Vec<Value> = names
        .iter()
        .map(|name| {
            let mut descriptor = descriptor.clone();
            descriptor["annotations"] = json!({
                "io.containerd.image.name": name.to_string(),
                "org.opencontainers.image.ref.name": name.tag().unwrap_or_default(),
            });
            descriptor
        })
        .collect();
    if named.is_empty() {
        named.push(descriptor.clone());
    }
    named
}

fn path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm(), digest.digest())
}

struct Archive<'a, W> {
    to: &'a mut W,
    target: &'a Path,
    /// Blobs that are written: images share layers.
    blobs: BTreeSet<String>,
}

impl<W: Write> Archive<'_, W> {
    fn file(&mut self, path: &str, content: &[u8]) -> Result<()> {
        self.entry(path, content.len() as u64, |to, target| {
            to.write_all(content).map_err(Error::host("write", target))
        })
    }

    fn blob(&mut self, digest: &Digest, content: &[u8]) -> Result<()> {
        if self.blobs.insert(digest.to_string()) { self.file(&path(digest), content) } else { Ok(()) }
    }

    fn layer(&mut self, store: &Store, layer: &Digest, size: u64) -> Result<()> {
        if !self.blobs.insert(layer.to_string()) {
            return Ok(());
        }
        self.entry(&path(layer), size, |to, target| store.write_stream(layer, to, target))
    }

    fn entry(
        &mut self,
        path: &str,
        size: u64,
        write: impl FnOnce(&mut W, &Path) -> Result<()>,
    ) -> Result<()> {
        const RECORD: usize = 512;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        header.set_cksum();
        self.put(header.as_bytes())?;
        write(self.to, self.target)?;
        let padding = usize::try_from(size.wrapping_neg() % RECORD as u64).expect("less than a record");
        self.put(&[0; RECORD][..padding])
    }

    /// Ends the archive with two records of zeros.
    fn finish(mut self) -> Result<()> {
        self.put(&[0; 1024])?;
        self.to.flush().map_err(Error::host("write", self.target))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let put: io::Result<()> = self.to.write_all(bytes);
        put.map_err(Error::host("write", self.target))
    }
}
