//! Images in directories and archives, for tests.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::digest;
use crate::testing::stream;

/// A directory that is removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("volt-image-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A configuration of an image with these layers.
pub(crate) fn config(layers: &[&[&str]], word: &str) -> Value {
    let diff_ids: Vec<_> = layers.iter().map(|layer| digest::of(&stream(layer))).collect();
    json!({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": [word]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// Writes an OCI layout of one image, whose layers are compressed by gzip. Returns its index.
pub(crate) fn layout(directory: &Path, layers: &[&[&str]], name: &str) -> Value {
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |kind: &str, bytes: &[u8]| {
        let digest = digest::of(bytes);
        fs::write(blobs.join(digest.digest()), bytes).unwrap();
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    };
    let config = config(layers, name).to_string();
    let config = blob("application/vnd.oci.image.config.v1+json", config.as_bytes());
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| blob("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&stream(layer))))
        .collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let mut descriptor = blob("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
    fs::write(directory.join("index.json"), index.to_string()).unwrap();
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#).unwrap();
    index
}

/// Makes a tar archive of the files in a directory, with symbolic links.
pub(crate) fn archive(directory: &Path, to: &Path) {
    let mut builder = tar::Builder::new(File::create(to).unwrap());
    builder.follow_symlinks(false);
    builder.append_dir_all(".", directory).unwrap();
    builder.finish().unwrap();
}
