//! Lists directories.

use std::fs;
use std::path::{Path, PathBuf};

use super::entry::describe;
use crate::connect::{Code, RpcError};
use crate::messages::filesystem::EntryInfo;
use crate::users::Names;

/// Most entries of one answer.
const MOST: usize = 100_000;

/// Lists the entries down to a depth, each directory's in the order of their names.
pub fn list(directory: &Path, depth: u32) -> Result<Vec<EntryInfo>, RpcError> {
    let act = format!("list {}", directory.display());
    let metadata = fs::metadata(directory).map_err(|error| RpcError::of_file(&act, &error))?;
    if !metadata.is_dir() {
        let message = format!("cannot {act}: it is no directory");
        return Err(RpcError::new(Code::InvalidArgument, message));
    }
    let (names, mut entries) = (Names::read(), Vec::new());
    let depth = depth.max(1);
    // Entries to come, the next one last. Calls of one another would fill the stack in a deep tree.
    let mut pending: Vec<_> = children(directory)?.into_iter().map(|path| (path, depth)).rev().collect();
    while let Some((path, depth)) = pending.pop() {
        // An entry may disappear in the meantime.
        let Ok(entry) = describe(&path, &names) else { continue };
        let is_directory = entry.permissions.starts_with('d');
        if entries.len() == MOST {
            let message = format!("the list has more than {MOST} entries; list with less depth");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        entries.push(entry);
        if is_directory && depth > 1 {
            match children(&path) {
                Ok(below) => pending.extend(below.into_iter().map(|path| (path, depth - 1)).rev()),
                // A directory may disappear too.
                Err(error) if error.code == Code::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(entries)
}

/// Paths of the entries of a directory, in the order of their names.
fn children(directory: &Path) -> Result<Vec<PathBuf>, RpcError> {
    let failed = |error| RpcError::of_file(&format!("list {}", directory.display()), &error);
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    if let Ok(paths) = &mut paths {
        paths.sort();
    }
    paths.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::{Scratch, in_small_thread};

    #[test]
    fn entries_come_in_order_down_to_the_depth() {
        let scratch = Scratch::new();
        for directory in ["b/c/d", "a", "b/e"] {
            fs::create_dir_all(scratch.path(directory)).unwrap();
        }
        fs::write(scratch.path("b/c.txt"), "").unwrap();
        let paths = |depth| -> Vec<String> {
            let entries = list(&scratch.path(""), depth).unwrap();
            let relative =
                |entry: &EntryInfo| Path::new(&entry.path).strip_prefix(scratch.path("")).unwrap().to_owned();
            entries.iter().map(|entry| relative(entry).to_str().unwrap().to_owned()).collect()
        };
        assert_eq!(paths(0), ["a", "b"]);
        assert_eq!(paths(2), ["a", "b", "b/c", "b/c.txt", "b/e"]);
        assert_eq!(paths(9), ["a", "b", "b/c", "b/c/d", "b/c.txt", "b/e"]);
    }

    #[test]
    fn deep_tree_is_listed_on_a_small_stack() {
        let scratch = Scratch::new();
        scratch.deep("tree");
        let tree = scratch.path("tree");
        assert_eq!(in_small_thread(move || list(&tree, u32::MAX)).unwrap().len(), 900);
    }
}
