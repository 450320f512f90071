//! Images: their layers as EROFS file systems, mounted by the host and compared with what they were made of.

mod pulling;

mod ext4;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, llistxattr, mknodat, setxattr};
use volt_image::directory::Directory;
use volt_image::erofs::append;
use volt_image::layer::{Forget, Layer};
use volt_tests::{Scratch, needs, output};

/// A mounted image, unmounted on drop.
struct Mounted(PathBuf);

impl Mounted {
    fn new(kind: &str, options: &str, image: &Path, place: PathBuf) -> Self {
        fs::create_dir_all(&place).unwrap();
        let done = output(Command::new("mount").args(["-t", kind, "-o", options]).arg(image).arg(&place));
        assert!(done.status.success(), "{done:?}");
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = output(Command::new("umount").arg(&self.0));
    }
}

/// All that a file system tells of a file.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    device: u64,
    links: u64,
    attributes: BTreeMap<String, Vec<u8>>,
    /// Names that share the inode.
    names: BTreeSet<PathBuf>,
    content: Vec<u8>,
}

/// Looks at a tree, file by file.
fn look(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut seen, mut names_of) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<_>>::new());
    let mut next = vec![root.to_owned()];
    while let Some(path) = next.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        let (mut links, mut content) = (found.nlink(), Vec::new());
        if found.is_dir() {
            let entries: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap()).collect();
            // Not every file system counts them.
            links = 2 + entries.iter().filter(|entry| entry.file_type().unwrap().is_dir()).count() as u64;
            next.extend(entries.iter().map(|entry| entry.path()));
        } else if found.is_file() {
            content = fs::read(&path).unwrap();
        } else if found.is_symlink() {
            content = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
        }
        seen.insert(
            name.clone(),
            Seen {
                mode: found.mode(),
                owner: (found.uid(), found.gid()),
                modified: (found.mtime(), found.mtime_nsec()),
                device: found.rdev(),
                links,
                attributes: attributes(&path),
                names: BTreeSet::new(),
                content,
            },
        );
        names_of.entry(found.ino()).or_default().insert(name);
    }
    for names in names_of.into_values() {
        names.iter().for_each(|name| seen.get_mut(name).unwrap().names = names.clone());
    }
    seen
}

fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4 << 10];
    let len = llistxattr(path, &mut names).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let name = String::from_utf8(name.to_vec()).unwrap();
            let mut value = vec![0; 4 << 10];
            let len = lgetxattr(path, name.as_str(), &mut value).unwrap();
            value.truncate(len);
            (name, value)
        })
        .collect()
}

/// Makes a tar of a directory, with sparse files in a version of PAX, and an EROFS image of that.
fn image_of(source: &Path, scratch: &Scratch, version: &str) -> PathBuf {
    let [archive, image] = ["tar", "erofs"].map(|name| scratch.path(&format!("{version}.{name}")));
    let mut tar = Command::new("tar");
    tar.args(["--sparse", "--xattrs", "--xattrs-include=*"]).arg("--format=posix");
    tar.arg(format!("--sparse-version={version}"));
    let done = output(tar.arg("-cf").arg(&archive).arg("-C").arg(source).arg("."));
    assert!(done.status.success(), "{done:?}");
    let file = File::create(&image).unwrap();
    let layer = Layer::read(File::open(&archive).unwrap(), &file, &mut Forget).unwrap();
    append(&layer.tree, &file, layer.blocks, [7; 16]).unwrap().unwrap();
    image
}

/// A tree with the edges that images have.
fn edges(root: &Path) {
    let path = |name: &str| root.join(name);
    fs::create_dir(root).unwrap();
    fs::create_dir_all(path("usr/lib/deep")).unwrap();
    fs::write(path("usr/lib/file"), "content").unwrap();
    fs::hard_link(path("usr/lib/file"), path("!first")).unwrap();
    fs::hard_link(path("usr/lib/file"), path("n".repeat(255).as_str())).unwrap();
    fs::write(path("File"), "a name that differs in case").unwrap();
    fs::write(path("file"), vec![3; 10_000]).unwrap();
    fs::write(path("empty"), "").unwrap();
    symlink("usr/lib", path("lib")).unwrap();
    symlink("t".repeat(4095), path("long")).unwrap();
    mknodat(
        CWD,
        path("null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    )
    .unwrap();
    mknodat(
        CWD,
        path("disk"),
        FileType::BlockDevice,
        Mode::from_raw_mode(0o600),
        rustix::fs::makedev(259, 70_000),
    )
    .unwrap();
    mknodat(CWD, path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let sparse = File::create(path("sparse")).unwrap();
    sparse.write_all_at(b"x", 5_000_000).unwrap();
    sparse.set_len(20 << 20).unwrap();
    let set = |name: &str, attribute: &str, value: &[u8]| {
        setxattr(path(name), attribute, value, XattrFlags::empty()).unwrap();
    };
    // Version 2 of file capabilities; a value with newlines; a value that a record of PAX might be.
    set("File", "security.capability", &[1, 0, 0, 2, 10, 4, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    set("file", "user.text", b"a\nb\n12 path=x\n\0");
    set("file", "trusted.long", &[5; 3000]);
    set("usr", "user.of a directory", b"");
    chown(path("file"), Some(3_000_000_000), Some(70_000)).unwrap();
    fs::set_permissions(path("file"), Permissions::from_mode(0o6755)).unwrap();
    fs::set_permissions(path("usr/lib/deep"), Permissions::from_mode(0o1777)).unwrap();
    for number in 0..3000 {
        fs::write(path(&format!("usr/lib/deep/{number}")), number.to_string()).unwrap();
    }
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_nanos(1_234_567_891);
    File::open(path("empty")).unwrap().set_modified(before_1970).unwrap();
}

#[test]
fn mounted_layer_has_all_that_its_files_had() {
    needs!(root, erofs);
    let scratch = Scratch::new();
    let source = scratch.path("source");
    edges(&source);
    let expected = look(&source);
    for version in ["0.0", "0.1", "1.0"] {
        let image = image_of(&source, &scratch, version);
        let mounted = Mounted::new("erofs", "loop,ro", &image, scratch.path(&format!("{version}-mounted")));
        let found = look(&mounted.0);
        assert_eq!(found.len(), expected.len(), "{version}");
        for (name, seen) in &expected {
            let found = &found[name];
            assert_eq!(found.content.len(), seen.content.len(), "{version}: {name:?}");
            assert!(found == seen, "{version}: {name:?}: {found:?} is not {seen:?}");
        }
        // The holes of a file are holes of the image.
        let held = fs::metadata(&image).unwrap();
        assert!(held.blocks() * 512 + (19 << 20) < held.len(), "{version}: {} blocks", held.blocks());
    }
}

#[test]
fn mounted_directory_has_all_that_its_files_had() {
    needs!(root, erofs);
    let scratch = Scratch::new();
    let source = scratch.path("source");
    edges(&source);
    UnixListener::bind(source.join("socket")).unwrap();
    let image = scratch.path("image");
    Directory::read(&source).unwrap().write(&File::create(&image).unwrap(), [7; 16]).unwrap();
    let mounted = Mounted::new("erofs", "loop,ro", &image, scratch.path("mounted"));
    let (expected, found) = (look(&source), look(&mounted.0));
    assert_eq!(found.len(), expected.len());
    for (name, seen) in &expected {
        assert!(found[name] == *seen, "{name:?}: {:?} is not {seen:?}", found[name]);
    }
    let held = fs::metadata(&image).unwrap();
    assert!(held.blocks() * 512 + (19 << 20) < held.len(), "{} blocks", held.blocks());
}

/// A tree whose inodes, attributes, links and directories end at every place of a block.
fn sizes(root: &Path) {
    fs::create_dir(root).unwrap();
    for number in 0..1200usize {
        let path = root.join(format!("f{number}"));
        fs::write(&path, vec![1; number * 7 % 9000]).unwrap();
        let value = vec![number as u8; number * 5 % 3500];
        setxattr(&path, "user.a", &value, XattrFlags::empty()).unwrap();
        symlink("t".repeat(1 + number * 11 % 4095), root.join(format!("l{number}"))).unwrap();
    }
    for number in 0..120usize {
        let directory = root.join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        setxattr(&directory, "user.a", &vec![2; number * 13 % 3000], XattrFlags::empty()).unwrap();
        for entry in 0..number * 2 {
            let name = format!("{entry:04}{}", "n".repeat((number + entry) * 7 % 200));
            File::create(directory.join(name)).unwrap();
        }
    }
}

#[test]
fn files_and_directories_of_all_sizes_are_read_whole() {
    needs!(root, erofs);
    let scratch = Scratch::new();
    let source = scratch.path("source");
    sizes(&source);
    let expected = look(&source);
    let image = image_of(&source, &scratch, "1.0");
    let mounted = Mounted::new("erofs", "loop,ro", &image, scratch.path("mounted"));
    let found = look(&mounted.0);
    assert_eq!(found.len(), expected.len());
    for (name, seen) in &expected {
        assert!(found[name] == *seen, "{name:?}: {:?} is not {seen:?}", found[name]);
    }
}
