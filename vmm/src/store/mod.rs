//! Stores of snapshots. A store is a directory; callers use only names in it.

mod aside;
pub mod dir;
pub mod files;
pub mod reservation;
pub mod writeback;

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The directory of a file: the current one for a name alone.
fn parent_of(place: &Path) -> PathBuf {
    match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A place with named snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store at a URL: `file:///var/lib/volt`, or the path alone.
    ///
    /// # Errors
    /// The URL's scheme is unknown, or its path is not absolute.
    pub fn open(url: &str) -> Result<Self> {
        let path = match url.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => path,
            Some(("file", _)) => {
                return Err(Error::config("store", format!("{url}: file:// takes an absolute path")));
            }
            Some((scheme, _)) => {
                return Err(Error::config(
                    "store",
                    format!("{url}: no store of the kind {scheme:?}; use file:///DIR"),
                ));
            }
            None => url,
        };
        if path.is_empty() {
            return Err(Error::config("store", "an empty path names no directory"));
        }
        Ok(Self { root: path.into() })
    }

    /// Splits the path of a snapshot's directory into its store and its name.
    ///
    /// # Errors
    /// The path has no last component that can be a name, such as `/` or `..`.
    pub fn split(path: &Path) -> Result<(Self, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
            Error::config("snapshot_path", format!("{}: does not name a snapshot directory", path.display()))
        })?;
        Ok((Self { root: parent_of(path) }, name.to_owned()))
    }

    /// The directory of the snapshot `name`.
    ///
    /// # Errors
    /// The name is not a single path component, so it would reach outside the store.
    pub fn path_of(&self, name: &str) -> Result<PathBuf> {
        let path = Path::new(name);
        if path.file_name().is_none_or(|last| last != name) {
            return Err(Error::config(
                "snapshot name",
                format!("{name:?} is not the name of one directory in a store"),
            ));
        }
        Ok(self.root.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_opens_at_urls_and_paths_and_refuses_others() {
        let root = |url| Store::open(url).map(|store| store.root);
        assert_eq!(root("file:///var/lib/volt").unwrap(), Path::new("/var/lib/volt"));
        assert_eq!(root("snaps").unwrap(), Path::new("snaps"));
        for (url, why) in [("file://volt", "absolute"), ("ftp://x", "\"ftp\""), ("", "empty")] {
            let error = root(url).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn path_splits_into_store_and_name() {
        for path in ["/a/b", "b", "x/y/b", "/b"] {
            let (store, name) = Store::split(Path::new(path)).unwrap();
            assert_eq!(name, "b");
            assert_eq!(
                store.path_of(&name).unwrap(),
                Path::new(".").join(path).components().collect::<PathBuf>().strip_prefix(".").map_or_else(
                    |_| path.into(),
                    |p| if path == "b" { Path::new("./b").to_owned() } else { p.to_owned() }
                )
            );
        }
        for path in ["/", "..", "a/.."] {
            assert!(Store::split(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn name_cannot_leave_the_store() {
        let store = Store::open("/s").unwrap();
        for name in ["../x", "a/b", "", ".", "..", "/etc"] {
            assert!(store.path_of(name).is_err(), "{name:?}");
        }
    }
}
