//! A layer of real files.

use std::fs;
use std::path::Path;
use std::process::Command;

use volt_benches::scratch::Scratch;
use volt_image::digest::{self, Digest};

use super::Any;

pub(crate) struct Source {
    /// The tar.
    pub(crate) plain: Vec<u8>,
    /// The same, compressed.
    pub(crate) packed: Vec<u8>,
    pub(crate) diff_id: Digest,
    pub(crate) digest: Digest,
    /// Files in it.
    pub(crate) files: usize,
}

impl Source {
    /// Packs the first files of a directory, by name, up to so many bytes.
    pub(crate) fn of(directory: &Path, most: u64, scratch: &Scratch) -> Any<Self> {
        let [list, plain] = ["list", "layer.tar"].map(|name| scratch.path(name));
        let names = chosen(directory, most)?;
        fs::write(&list, names.join("\0"))?;
        let mut tar = Command::new("tar");
        tar.args(["--format=posix", "--no-recursion", "--null", "-cf"]).arg(&plain).arg("-C").arg(directory);
        succeeds(tar.arg("-T").arg(&list))?;
        succeeds(Command::new("gzip").args(["-1", "--keep"]).arg(&plain))?;
        let (plain, packed) = (fs::read(&plain)?, fs::read(scratch.path("layer.tar.gz"))?);
        let (diff_id, digest) = (digest::of(&plain), digest::of(&packed));
        Ok(Self { plain, packed, diff_id, digest, files: names.len() })
    }
}

fn chosen(directory: &Path, most: u64) -> Any<Vec<String>> {
    let (mut names, mut sum) = (Vec::new(), 0);
    let mut next = vec![directory.to_owned()];
    while let Some(path) = next.pop() {
        let mut entries: Vec<_> = fs::read_dir(&path)?.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let found = entry.metadata()?;
            if sum + found.len() > most {
                continue;
            }
            sum += found.len();
            let name = entry.path();
            names.extend(name.strip_prefix(directory)?.to_str().map(str::to_owned));
            if found.is_dir() {
                next.push(name);
            }
        }
    }
    Ok(names)
}

fn succeeds(command: &mut Command) -> Any<()> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
