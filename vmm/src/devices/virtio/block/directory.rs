//! The directory of a layer. The first flush syncs it, because the layer's name may not be on disk yet.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::host_file::HostFile;
use super::sync_tracker::SyncTracker;
use crate::paths;

/// The directory of a layer, opened with the layer; a later rename does not matter.
#[derive(Debug)]
pub struct LayerDirectory {
    /// `None` if the user may not read the directory, as in mode 0711.
    opened: Option<File>,
    /// Remembers a failed sync, as for a layer: the kernel reports it once.
    syncs: Arc<SyncTracker>,
}

impl LayerDirectory {
    /// Opens the directory of the file `path`.
    ///
    /// # Errors
    /// The host refuses for another reason than a missing permission.
    pub fn of(path: &Path) -> io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let opened = match paths::open_to_read(parent.unwrap_or(Path::new("."))) {
            Ok(opened) => Some(opened),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        Ok(Self { opened, syncs: Arc::default() })
    }

    /// Syncs the directory. If the directory cannot be read, syncs `layer` with its metadata instead: ext4,
    /// XFS and btrfs then write the name of a new file, too. A sync of the whole file system would wait for
    /// the writes of other processes, and fail for their errors.
    ///
    /// # Errors
    /// This sync failed, or an earlier one did.
    pub fn sync(&self, layer: &HostFile) -> io::Result<()> {
        let Some(directory) = &self.opened else { return layer.sync(File::sync_all) };
        self.syncs.begin()?.end(directory.sync_all())
    }
}
