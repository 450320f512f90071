//! Lists VMs, and finds one by its name, by the beginning of its id or by the path of its API socket.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::root::RunRoot;
use super::vm_dir::VmDir;
use crate::descriptors::allow_descriptors;
use crate::failure::Failure;

/// Lists all VMs with names, by name.
///
/// # Errors
/// The root cannot be read.
pub(crate) fn all(root: &RunRoot) -> Result<Vec<VmDir>, Failure> {
    // Each keeps two descriptors, and a question to it takes another one.
    allow_descriptors();
    let entries = match fs::read_dir(root.path()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => {
            entries.map_err(|error| Failure::run_dir(root.path(), format!("cannot list it: {error}")))?
        }
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<_> =
        names.filter(|name| !name.starts_with('.')).filter_map(|name| VmDir::open(root, &name)).collect();
    found.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    Ok(found)
}

/// Finds the VM of this name, or else the one whose id begins so.
///
/// # Errors
/// There is none, or several ids begin so.
pub(crate) fn find(root: &RunRoot, word: &str) -> Result<VmDir, Failure> {
    let is_name = word.parse::<super::name::VmName>().is_ok();
    if is_name && let Some(vm) = VmDir::open(root, word) {
        return Ok(vm);
    }
    let begins = |vm: &VmDir| !word.is_empty() && vm.record.id.starts_with(word);
    let mut found: Vec<_> = all(root)?.into_iter().filter(begins).collect();
    match (found.pop(), &found[..]) {
        (Some(vm), []) => Ok(vm),
        (None, _) => Err(unknown(word)),
        (Some(last), others) => {
            let names = others.iter().chain([&last]).map(|vm| format!("{} ({})", vm.name(), vm.record.id));
            let names = names.collect::<Vec<_>>().join(", ");
            Err(Failure::vm(word, format!("the ids of several VMs begin so: {names}; give more digits")))
        }
    }
}

/// The error for a VM that does not exist.
pub(crate) fn unknown(word: &str) -> Failure {
    Failure::vm(word, "no VM has this name, and no id begins so; volt-vmm ps -a lists all VMs")
}

/// Finds the VM whose API is at this socket.
pub(crate) fn find_by_socket(root: &RunRoot, socket: &Path) -> Option<VmDir> {
    let socket = std::path::absolute(socket).ok()?;
    all(root).ok()?.into_iter().find(|vm| vm.record.api_socket == socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::claim::Claim;
    use crate::run_dir::record::{NewRecord, Origin};
    use crate::run_dir::root::tests::scratch;
    use crate::run_dir::vm_dir::write_record;

    /// Claims a name with this id.
    fn with_id(root: &RunRoot, name: &str, id: &str) -> Claim {
        let new = NewRecord::of(Origin::Kernel("/k".to_owned()));
        let mut claim = root.claim(Some(name.parse().unwrap()), new).unwrap();
        id.clone_into(&mut claim.record.id);
        write_record(claim.directory(), &claim.record).unwrap();
        claim
    }

    #[test]
    fn vm_is_found_by_name_then_by_the_beginning_of_its_id() {
        let (_dir, root) = scratch();
        let _kept =
            [with_id(&root, "web", "abc111"), with_id(&root, "db", "abc222"), with_id(&root, "ab", "f00")];
        let name = |word: &str| find(&root, word).map(|vm| vm.name().to_string()).map_err(|e| e.to_string());
        assert_eq!(name("web").unwrap(), "web");
        assert_eq!(name("abc1").unwrap(), "web");
        assert_eq!(name("abc222").unwrap(), "db");
        assert_eq!(name("ab").unwrap(), "ab", "a name goes before an id");
        assert_eq!(name("f").unwrap(), "ab");
        let error = name("abc").unwrap_err();
        assert!(error.contains("db (abc222)") && error.contains("web (abc111)"), "{error}");
        for word in ["", "x", "we", "../web", "web/", "..", ".lock", "abc1111"] {
            assert!(name(word).unwrap_err().contains("no VM has this name"), "{word}");
        }
    }

    #[test]
    fn vm_is_found_by_the_path_of_its_socket() {
        let (_dir, root) = scratch();
        let claim = with_id(&root, "web", "abc");
        let found = find_by_socket(&root, &claim.directory().join("api.sock")).unwrap();
        assert_eq!(found.name().as_str(), "web");
        assert!(find_by_socket(&root, Path::new("/no/api.sock")).is_none());
    }
}
