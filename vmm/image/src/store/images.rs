//! Images of a store.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use oci_spec::image::ImageConfiguration;

use super::files::{appear, sync, write};
use super::layers::identity;
use super::{ImageRecord, LayerRecord, Store};
use crate::digest::{self, Digest};
use crate::erofs::{Metadata, Refusal};
use crate::error::{Error, Result};
use crate::manifest::configuration;
use crate::merge::{Placed, put_over};
use crate::reference::Name;
use crate::tree::{Inode, Tree};

/// Most layers of an image. Docker makes up to 127.
pub const MOST_LAYERS: usize = 500;

/// An image whose layers are stored.
#[derive(Clone, Copy, Debug)]
pub struct NewImage<'a> {
    /// The configuration, as it came.
    pub config: &'a [u8],
    /// Digest of its manifest, if it has one.
    pub manifest: Option<&'a Digest>,
    /// Its layers, the lowest first.
    pub layers: &'a [LayerRecord],
}

/// A stored image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Digest of its configuration.
    pub id: Digest,
    /// How programs of it run.
    pub config: ImageConfiguration,
    /// Where it came from.
    pub record: ImageRecord,
    /// The files of its disk, one after another: metadata, then its layers, each once.
    pub parts: Vec<PathBuf>,
}

impl Store {
    /// Stores an image whose layers are here. Returns its digest.
    ///
    /// # Errors
    /// A layer is damaged or missing, EROFS cannot have the image, or the host cannot write. The store is as
    /// before.
    pub fn add_image(&self, image: NewImage<'_>) -> Result<Digest> {
        let id = digest::of(image.config);
        let target = self.path("images", &id, "")?;
        if target.exists() {
            return Ok(id);
        }
        let config = configuration(image.config)?;
        let named: Vec<&str> = config.rootfs().diff_ids().iter().map(String::as_str).collect();
        let given: Vec<&str> = image.layers.iter().map(|layer| layer.diff_id.as_ref()).collect();
        if named != given {
            let problem = format!("it has the layers {named:?}, and the manifest has {given:?}");
            return Err(Error::Document { what: format!("configuration {id}"), problem });
        }
        let partial = self.own_partial();
        let made = self.write_image(&partial, &id, image);
        let made = made.and_then(|()| match appear(&partial, &target) {
            // Another process has made it meanwhile.
            Err(_) if target.exists() => {
                let _ = fs::remove_dir_all(&partial);
                Ok(())
            }
            appeared => appeared,
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&partial);
        }
        made.map(|()| id)
    }

    fn write_image(&self, directory: &Path, id: &Digest, image: NewImage<'_>) -> Result<()> {
        let stored = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let record = ImageRecord { manifest: image.manifest.cloned(), layers: image.layers.to_vec(), stored };
        fs::create_dir(directory).map_err(Error::host("make directory", directory))?;
        write(&directory.join("config.json"), image.config)?;
        write(&directory.join("image.json"), &serde_json::to_vec_pretty(&record).expect("a record is JSON"))?;
        self.write_metadata(&directory.join("metadata.erofs"), id, &unique(image.layers), image.layers)?;
        sync(directory)
    }

    /// Writes what stands before the layers on the image's disk.
    fn write_metadata(
        &self,
        path: &Path,
        id: &Digest,
        unique: &[&Digest],
        layers: &[LayerRecord],
    ) -> Result<()> {
        let refused = |source| Error::Tree { what: format!("image {id}"), source };
        // Blocks of layers count from the first layer on, until the length of the metadata is known.
        let (mut places, mut blocks) = (HashMap::new(), 0u32);
        for digest in unique {
            places.insert(digest.digest(), blocks);
            let count = self.layer_blocks(digest)?;
            blocks = blocks.checked_add(count).ok_or_else(|| refused(Refusal::TooLarge))?;
        }
        // One layer at a time is in memory.
        let mut merged = Tree::new(Inode::directory(0o755));
        for layer in layers {
            let tree = self.layer_tree(&layer.diff_id)?;
            let first = places.get(layer.diff_id.digest()).copied().unwrap_or_default();
            put_over(&mut merged, Placed { tree: &tree, first });
        }
        let metadata = Metadata::new(&merged, 1).map_err(refused)?;
        let first = 1 + metadata.blocks();
        let blocks = first.checked_add(blocks).ok_or_else(|| refused(Refusal::TooLarge))?;
        let metadata = metadata.content_from(first);
        let file = File::create(path).map_err(Error::host("create", path))?;
        let mut file = BufWriter::with_capacity(1 << 20, file);
        let written = file.write_all(&metadata.superblock(blocks, identity(id)));
        let written = written.and_then(|()| metadata.write(&mut file)).and_then(|()| file.flush());
        written.and_then(|()| file.get_ref().sync_all()).map_err(Error::host("write", path))
    }

    /// Returns the configuration of an image as it came.
    ///
    /// # Errors
    /// The image is not here.
    pub fn config(&self, id: &Digest) -> Result<Vec<u8>> {
        let path = self.path("images", id, "")?.join("config.json");
        fs::read(&path).map_err(Error::host("read", &path))
    }

    /// Returns a stored image.
    ///
    /// # Errors
    /// The image is not here, or its files are damaged.
    pub fn image(&self, id: &Digest) -> Result<Image> {
        let directory = self.path("images", id, "")?;
        let path = directory.join("image.json");
        let record = fs::read(&path).map_err(Error::host("read", &path))?;
        let record: ImageRecord = serde_json::from_slice(&record).map_err(|problem| Error::Document {
            what: path.display().to_string(),
            problem: problem.to_string(),
        })?;
        let mut parts = vec![directory.join("metadata.erofs")];
        for layer in unique(&record.layers) {
            parts.push(self.layer_path(layer)?);
        }
        Ok(Image { id: id.clone(), config: configuration(&self.config(id)?)?, record, parts })
    }

    /// Returns the digests of all images.
    ///
    /// # Errors
    /// The host cannot list them.
    pub fn images(&self) -> Result<Vec<Digest>> {
        let path = self.root.join("images");
        let entries = fs::read_dir(&path).map_err(Error::host("list", &path))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut digests: Vec<String> = names.map(|name| format!("sha256:{name}")).collect();
        digests.sort();
        Ok(digests.iter().filter_map(|digest| digest.parse().ok()).collect())
    }

    /// Finds an image by its name, or by its digest or the beginning of that.
    ///
    /// # Errors
    /// No image or more than one is so named.
    pub fn find(&self, text: &str) -> Result<Digest> {
        let named = text.parse::<Name>();
        if let Ok(name) = &named
            && let Some(id) = self.names()?.remove(&name.to_string())
        {
            return Ok(id);
        }
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(named.err().unwrap_or_else(|| Error::Unknown(text.to_owned())));
        }
        let mut found = self.images()?.into_iter().filter(|id| id.digest().starts_with(digits));
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(Error::Ambiguous(text.to_owned())),
            (Some(id), None) => Ok(id),
            (None, _) => Err(Error::Unknown(text.to_owned())),
        }
    }
}

/// The layers of an image, each once, in the order of the disk's parts.
pub(super) fn unique(layers: &[LayerRecord]) -> Vec<&Digest> {
    let mut unique = Vec::new();
    for layer in layers {
        if !unique.contains(&&layer.diff_id) {
            unique.push(&layer.diff_id);
        }
    }
    unique
}

/// Returns the digests of an image's plain layers, which its configuration names.
///
/// # Errors
/// The configuration is malformed, or has other than `count` layers.
pub fn diff_ids(config: &[u8], count: usize) -> Result<Vec<Digest>> {
    let id = digest::of(config);
    let refused = |problem: String| Error::Document { what: format!("configuration {id}"), problem };
    let parsed = configuration(config)?;
    let digests = parsed.rootfs().diff_ids().iter().map(|digest| digest.parse());
    let digests: Vec<Digest> = digests
        .collect::<std::result::Result<_, _>>()
        .map_err(|problem| refused(format!("the digest of a layer is none: {problem}")))?;
    if digests.len() == count {
        return Ok(digests);
    }
    Err(refused(format!("it has {} layers, and the manifest has {count}", digests.len())))
}
