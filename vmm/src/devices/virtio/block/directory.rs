//! The directory of a layer: the first flush syncs it, because the layer's name may not be on disk yet.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::host_file::HostFile;
use super::sync_tracker::SyncTracker;

/// A directory that was open when its layer was opened, whatever it is called later.
#[derive(Debug)]
pub struct LayerDirectory {
    /// `None` if its user may not read it, as in mode 0711.
    opened: Option<File>,
    /// A failed sync stays one, as for a layer: the kernel reports it once.
    syncs: Arc<SyncTracker>,
}

impl LayerDirectory {
    /// Opens the directory in which the file `path` lies.
    ///
    /// # Errors
    /// The host refuses for another reason than a missing permission.
    pub fn of(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let opened = match File::open(parent.unwrap_or(Path::new("."))) {
            Ok(opened) => Some(opened),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        Ok(Self { opened, syncs: Arc::default() })
    }

    /// Syncs the directory. Syncs `layer` with its metadata if the directory cannot be read: ext4, XFS and
    /// btrfs then write the name of a file that is new, too. Syncing all of the file system would wait for
    /// what others wrote there, and fail for their errors.
    ///
    /// # Errors
    /// The host refuses, or refused before.
    pub fn sync(&self, layer: &HostFile) -> io::Result<()> {
        let Some(directory) = &self.opened else { return layer.sync(File::sync_all) };
        self.syncs.begin()?.end(directory.sync_all())
    }
}
