//! Removal of images, and of layers that no image has.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::Store;
use super::images::unique;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::reference::Name;

/// A report of what was removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Removed {
    /// Names, written out.
    pub names: Vec<String>,
    /// Images.
    pub images: Vec<Digest>,
    /// Layers.
    pub layers: usize,
    /// Bytes of the host that are free now.
    pub bytes: u64,
}

impl Store {
    /// Takes a name from its image, or all names if `text` is its digest. Removes the image if it has no name
    /// then, and the layers that no other image has. Waits for those that add images.
    ///
    /// # Errors
    /// No image is so named, `is_used` tells that a file of it is used, or the host cannot remove it.
    pub fn remove(&self, text: &str, is_used: impl Fn(&Path) -> bool) -> Result<Removed> {
        let _alone = self.alone()?;
        let id = self.find(text)?;
        let names = self.names()?;
        let by_name = text.parse::<Name>().ok().map(|name| name.to_string());
        let gone: Vec<String> = match by_name.filter(|name| names.contains_key(name)) {
            Some(name) => vec![name],
            None => names.iter().filter(|(_, named)| **named == id).map(|(name, _)| name.clone()).collect(),
        };
        let is_last = names.iter().all(|(name, named)| *named != id || gone.contains(name));
        let mut removed = Removed { names: gone.clone(), ..Removed::default() };
        if is_last {
            self.refuse_used(&id, text, is_used)?;
        }
        self.change_names(|names| names.retain(|name, _| !gone.contains(name)))?;
        if is_last {
            self.remove_image(&id, &mut removed)?;
            self.remove_layers(&mut removed)?;
        }
        Ok(removed)
    }

    /// Removes images without a name, layers that no image has, and what killed processes left. Images that
    /// are used stay.
    ///
    /// # Errors
    /// The host cannot list or remove files.
    pub fn prune(&self, is_used: impl Fn(&Path) -> bool) -> Result<Removed> {
        let _alone = self.alone()?;
        let mut removed = Removed::default();
        let names = self.names()?;
        for id in self.images()? {
            let is_named = names.values().any(|named| *named == id);
            if !is_named && self.refuse_used(&id, id.as_ref(), &is_used).is_ok() {
                self.remove_image(&id, &mut removed)?;
            }
        }
        self.remove_layers(&mut removed)?;
        let partial = self.root.join("partial");
        for entry in fs::read_dir(&partial).map_err(Error::host("list", &partial))?.flatten() {
            remove(&entry.path(), &mut removed.bytes)?;
        }
        Ok(removed)
    }

    fn refuse_used(&self, id: &Digest, text: &str, is_used: impl Fn(&Path) -> bool) -> Result<()> {
        // The metadata are of this image alone; its layers may be used by others.
        let metadata = self.path("images", id, "")?.join("metadata.erofs");
        if is_used(&metadata) { Err(Error::Used(text.to_owned())) } else { Ok(()) }
    }

    fn remove_image(&self, id: &Digest, removed: &mut Removed) -> Result<()> {
        let path = self.path("images", id, "")?;
        // It is no image any more from one moment to the next.
        let partial = self.own_partial();
        fs::rename(&path, &partial).map_err(Error::host("remove", &path))?;
        remove(&partial, &mut removed.bytes)?;
        removed.images.push(id.clone());
        Ok(())
    }

    fn remove_layers(&self, removed: &mut Removed) -> Result<()> {
        let mut held = HashSet::new();
        for id in self.images()? {
            for layer in unique(&self.image(&id)?.record.layers) {
                held.extend([self.layer_path(layer)?, self.stream_path(layer)?]);
            }
        }
        let layers = self.root.join("layers");
        for entry in fs::read_dir(&layers).map_err(Error::host("list", &layers))?.flatten() {
            let path = entry.path();
            if !held.contains(&path) {
                remove(&path, &mut removed.bytes)?;
                removed.layers += usize::from(path.extension() == Some("erofs".as_ref()));
            }
        }
        Ok(())
    }
}

/// Removes a file or a directory of files, and adds the bytes that they take on the host.
fn remove(path: &Path, bytes: &mut u64) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::symlink_metadata(path).map_err(Error::host("look at", path))?;
    let gone = if found.is_dir() {
        for entry in fs::read_dir(path).map_err(Error::host("list", path))?.flatten() {
            remove(&entry.path(), bytes)?;
        }
        fs::remove_dir(path)
    } else {
        *bytes += found.blocks() * 512;
        fs::remove_file(path)
    };
    gone.map_err(Error::host("remove", path))
}
