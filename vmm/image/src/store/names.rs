//! Names of images.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;

use super::Store;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::reference::Name;

/// Images by their names, written out.
pub(super) type Names = BTreeMap<String, Digest>;

impl Store {
    /// Names an image. Another image may lose the name.
    ///
    /// # Errors
    /// The host cannot read or write the names.
    pub fn name(&self, name: &Name, image: &Digest) -> Result<()> {
        self.change_names(|names| drop(names.insert(name.to_string(), image.clone())))
    }

    /// Returns all names, with their images.
    ///
    /// # Errors
    /// The file of names cannot be read, or is damaged.
    pub fn names(&self) -> Result<BTreeMap<String, Digest>> {
        let path = self.root.join("names.json");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Names::new()),
            read => read.map_err(Error::host("read", &path))?,
        };
        serde_json::from_slice(&bytes).map_err(|problem| Error::Document {
            what: path.display().to_string(),
            problem: problem.to_string(),
        })
    }

    pub(super) fn change_names<T>(&self, change: impl FnOnce(&mut Names) -> T) -> Result<T> {
        let path = self.root.join("names.json");
        let lock = File::open(&self.root).and_then(|root| root.lock().map(|()| root));
        let _lock = lock.map_err(Error::host("lock", &self.root))?;
        let mut names = self.names()?;
        let changed = change(&mut names);
        let bytes = serde_json::to_vec_pretty(&names).expect("names are JSON");
        self.replace(&path, &bytes)?;
        Ok(changed)
    }
}
