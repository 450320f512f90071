//! An image of two layers, made of tar streams as registries give them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use serde_json::json;
use tar::{Builder, EntryType, Header};
use volt_image::digest::{self, Digest};
use volt_image::store::{Claim, LayerRecord, NewImage, Store};
use volt_image::unpacked::Limits;
use volt_tests::Scratch;

/// Applets of busybox that the image has as links.
const APPLETS: &str = "sh cat chmod env false grep head hostname id kill ln ls mkdir mv nc poweroff ps pwd \
                       rm sha256sum sleep sort stat tail tr true wc";
/// Bytes of the large file.
const LARGE: usize = 5 << 20;
/// Version 2 of file capabilities, effective, with CAP_SYS_ADMIN, which setting the host name takes.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// An init that echoes lines of the console, and powers off by the button's signal or the line `off`.
const INIT: &str = "#!/bin/sh
    trap 'echo stopping; poweroff -f' 38
    echo \"process $$, $*\"
    while :; do
        read line && case $line in
            off) poweroff -f;;
            *) echo \"got $line\";;
        esac
    done
";

/// A layer as a tar stream.
struct Tar(Builder<Vec<u8>>);

impl Tar {
    fn add(&mut self, path: &str, kind: EntryType, mode: u32, owner: (u64, u64), content: &[u8]) {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mtime(1_700_000_000);
        if kind == EntryType::Symlink {
            header.set_size(0);
            self.0.append_link(&mut header, path, std::str::from_utf8(content).unwrap()).unwrap();
        } else {
            header.set_size(content.len() as u64);
            self.0.append_data(&mut header, path, content).unwrap();
        }
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.add(path, EntryType::Regular, mode, (0, 0), content);
    }

    fn directory(&mut self, path: &str) {
        self.add(path, EntryType::Directory, 0o755, (0, 0), b"");
    }
}

/// The content of the large file.
pub(super) fn large() -> Vec<u8> {
    (0..LARGE as u32 / 4).flat_map(|number| number.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

fn busybox() -> Vec<u8> {
    let path = std::env::var("PATH").unwrap_or_default();
    let found =
        path.split(':').map(|directory| Path::new(directory).join("busybox")).find(|path| path.exists());
    fs::read(found.expect("the test needs an agent, and so busybox")).unwrap()
}

fn lower() -> Vec<u8> {
    let mut tar = Tar(Builder::new(Vec::new()));
    let busybox = busybox();
    ["bin/", "sbin/", "etc/", "directory/", "gone-directory/", "opaque/"]
        .iter()
        .for_each(|path| tar.directory(path));
    tar.file("bin/busybox", 0o755, &busybox);
    for applet in APPLETS.split_whitespace() {
        tar.add(&format!("bin/{applet}"), EntryType::Symlink, 0o777, (0, 0), b"busybox");
    }
    tar.0.append_pax_extensions([("SCHILY.xattr.security.capability", &CAPABILITY[..])]).unwrap();
    tar.file("bin/busybox-capable", 0o755, &busybox);
    tar.file("sbin/init", 0o755, INIT.as_bytes());
    tar.file("bin/draws", 0o755, volt_tests::DRAWS);
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
    tar.file("large", 0o644, &large());
    for path in ["gone", "replaced", "directory/low", "gone-directory/file", "opaque/low"] {
        tar.file(path, 0o644, b"of the lower layer\n");
    }
    tar.0.into_inner().unwrap()
}

fn higher() -> Vec<u8> {
    let mut tar = Tar(Builder::new(Vec::new()));
    tar.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:100:app:/home/app:/bin/sh\n");
    tar.file("etc/group", 0o644, b"root:x:0:\nusers:x:100:\nvideo:x:44:app\n");
    [".wh.gone", ".wh.gone-directory", "opaque/.wh..wh..opq"].iter().for_each(|path| tar.file(path, 0, b""));
    for path in ["replaced", "directory/high", "opaque/high"] {
        tar.file(path, 0o644, b"of the higher layer\n");
    }
    tar.file("not-executable", 0o644, b"#!/bin/sh\n");
    tar.add("owned", EntryType::Regular, 0o640, (1234, 70_000), b"");
    tar.0.into_inner().unwrap()
}

/// Returns the parts of the image's disk. Nothing writes to them.
pub(super) fn parts() -> Vec<PathBuf> {
    store().1.clone()
}

/// Returns the directory of a store with the image, whose name is `test:1`. All tests share it.
pub(super) fn directory() -> PathBuf {
    store().0.path("images")
}

/// Returns the directory of warm snapshots of the image that all tests share.
pub(super) fn warm() -> PathBuf {
    store().0.path("warm")
}

/// An emulated host takes seconds to make the image.
fn store() -> &'static (Scratch, Vec<PathBuf>) {
    static STORE: OnceLock<(Scratch, Vec<PathBuf>)> = OnceLock::new();
    STORE.get_or_init(|| {
        let scratch = Scratch::left_behind_by_statics();
        let store = Store::open(scratch.path("images")).unwrap();
        fs::create_dir(scratch.path("warm")).unwrap();
        let id = make(&store);
        store.name(&"test:1".parse().unwrap(), &id).unwrap();
        let parts = store.image(&id).unwrap().parts;
        (scratch, parts)
    })
}

/// Stores the image.
fn make(store: &Store) -> Digest {
    let layers = [lower(), higher()].map(|stream| {
        let diff_id = digest::of(&stream);
        if let Claim::Missing(partial) = store.claim_layer(&diff_id, &AtomicBool::new(false)).unwrap() {
            partial.fill(stream.as_slice(), None, Limits::default()).unwrap();
        }
        LayerRecord { digest: diff_id.clone(), diff_id, size: stream.len() as u64 }
    });
    let diff_ids = layers.each_ref().map(|layer| &layer.diff_id);
    let rootfs = json!({"type": "layers", "diff_ids": diff_ids});
    let run = json!({
        "Env": ["PATH=/bin", "FROM=image"],
        "WorkingDir": "/directory",
        "Cmd": ["/bin/sh", "-c", "echo default"],
    });
    let config = json!({"architecture": "amd64", "os": "linux", "config": run, "rootfs": rootfs}).to_string();
    let image = NewImage { config: config.as_bytes(), manifest: None, layers: &layers };
    store.add_image(image).unwrap()
}
