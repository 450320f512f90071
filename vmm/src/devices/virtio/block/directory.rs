//! The directory of a layer: the first flush syncs it, because the layer's name may not be on disk yet.

use std::fs::File;
use std::io;
use std::path::Path;

/// A directory that was open when its layer was opened, whatever it is called later.
#[derive(Debug)]
pub struct Directory {
    /// `None` if its user may not read it, as in mode 0711.
    opened: Option<File>,
}

impl Directory {
    /// Opens the directory in which the file `path` lies.
    ///
    /// # Errors
    /// The host refuses for another reason than a missing permission.
    pub fn of(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        match File::open(parent.unwrap_or(Path::new("."))) {
            Ok(opened) => Ok(Self { opened: Some(opened) }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Self { opened: None }),
            Err(error) => Err(error),
        }
    }

    /// Syncs the directory. Syncs the whole file system of `layer` if the directory cannot be read.
    ///
    /// # Errors
    /// The host refuses.
    pub fn sync(&self, layer: &File) -> io::Result<()> {
        match &self.opened {
            Some(directory) => directory.sync_all(),
            None => Ok(rustix::fs::syncfs(layer)?),
        }
    }
}
