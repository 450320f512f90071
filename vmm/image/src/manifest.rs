//! Manifests and indexes: documents that lead from a name to the layers of an image (OCI image specification,
//! manifest.md and image-index.md; docker's forms, version 2 of its schema).

use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use serde::Deserialize;

use crate::digest::{self, Digest};
use crate::error::{Error, Result};

/// Most bytes of a document. Registries take no larger manifest.
pub const MOST: u64 = 4 << 20;
/// Most indexes that lead to an image.
const MOST_INDEXES: usize = 8;

/// The media types that a client takes for a manifest.
pub const ACCEPTED: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// A system and a kind of processor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Platform {
    /// The system.
    pub os: Os,
    /// The kind of processor.
    pub architecture: Arch,
}

impl Default for Platform {
    /// Linux on this host's processors.
    fn default() -> Self {
        Self { os: Os::Linux, architecture: Arch::default() }
    }
}

impl Platform {
    /// Checks that an image's configuration is for this platform. An index names the platform of each image,
    /// but a lone manifest does not.
    ///
    /// # Errors
    /// It is for another, or malformed.
    pub fn check(&self, config: &[u8]) -> Result<()> {
        let found = configuration(config)?;
        if (found.os(), found.architecture()) == (&self.os, &self.architecture) {
            return Ok(());
        }
        let (found_os, found_architecture) = (found.os(), found.architecture());
        let Self { os, architecture } = self;
        let problem = format!("it is for {found_os}/{found_architecture}, and not for {os}/{architecture}");
        Err(Error::Document { what: format!("configuration {}", digest::of(config)), problem })
    }
}

/// Parses an image's configuration.
pub(crate) fn configuration(bytes: &[u8]) -> Result<ImageConfiguration> {
    serde_json::from_slice(bytes).map_err(|problem| Error::Document {
        what: format!("configuration {}", digest::of(bytes)),
        problem: problem.to_string(),
    })
}

/// An image's manifest, with its digest.
#[derive(Clone, Debug)]
pub struct Found {
    /// Digest of the manifest.
    pub digest: Digest,
    /// The manifest.
    pub manifest: ImageManifest,
}

/// Follows indexes from a document to the manifest for a platform. `fetch` gets the document of a descriptor.
///
/// # Errors
/// A document is malformed, has another digest, or has no image for the platform.
pub fn resolve(
    first: Vec<u8>,
    platform: &Platform,
    mut fetch: impl FnMut(&Descriptor) -> Result<Vec<u8>>,
) -> Result<Found> {
    let mut bytes = first;
    for _ in 0..=MOST_INDEXES {
        let digest = digest::of(&bytes);
        match parse(&digest, &bytes)? {
            Document::Manifest(manifest) => return Ok(Found { digest, manifest: *manifest }),
            Document::Index(index) => {
                let chosen = choose(&digest, &index, platform)?;
                bytes = checked(chosen, fetch(chosen)?)?;
            }
        }
    }
    let problem = format!("more than {MOST_INDEXES} indexes lead to the image");
    Err(Error::Document { what: "the image".to_owned(), problem })
}

/// Checks that a document is that of its descriptor.
///
/// # Errors
/// It has another digest, or the digest is not supported.
pub fn checked(descriptor: &Descriptor, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let expected = descriptor.digest();
    if !digest::is_known(expected) {
        return Err(Error::Algorithm(expected.clone()));
    }
    let found = digest::of(&bytes);
    if found == *expected {
        return Ok(bytes);
    }
    Err(Error::Digest { what: format!("document {expected}"), expected: expected.clone(), found })
}

enum Document {
    Manifest(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

/// The fields by which documents differ.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    schema_version: Option<u64>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

fn parse(digest: &Digest, bytes: &[u8]) -> Result<Document> {
    let refused = |problem: String| Error::Document { what: format!("document {digest}"), problem };
    let malformed = |problem: serde_json::Error| refused(problem.to_string());
    if bytes.len() as u64 > MOST {
        return Err(refused(format!("it has {} bytes, and may have {MOST}", bytes.len())));
    }
    let form: Form = serde_json::from_slice(bytes).map_err(malformed)?;
    match form {
        Form { schema_version: Some(1), .. } => {
            Err(refused("it has version 1 of docker's schema, which no registry makes any more".to_owned()))
        }
        Form { layers: Some(_), .. } => {
            let manifest: ImageManifest = serde_json::from_slice(bytes).map_err(malformed)?;
            check(&manifest).map_err(refused)?;
            Ok(Document::Manifest(Box::new(manifest)))
        }
        Form { manifests: Some(_), .. } => {
            let index: ImageIndex = serde_json::from_slice(bytes).map_err(malformed)?;
            Ok(Document::Index(Box::new(index)))
        }
        _ => Err(refused("it is neither a manifest nor an index".to_owned())),
    }
}

/// Refuses what is no image of files: an artifact, or encrypted layers.
fn check(manifest: &ImageManifest) -> std::result::Result<(), String> {
    const CONFIG_OF_DOCKER: &str = "application/vnd.docker.container.image.v1+json";
    let config = manifest.config().media_type();
    if *config != MediaType::ImageConfig && *config != MediaType::Other(CONFIG_OF_DOCKER.to_owned()) {
        return Err(format!("it is no image of files: its configuration is of type {config}"));
    }
    for layer in manifest.layers() {
        let kind = layer.media_type().to_string();
        let is_layer = [
            "application/vnd.oci.image.layer.v1.tar",
            "application/vnd.oci.image.layer.nondistributable.v1.tar",
            "application/vnd.docker.image.rootfs.diff.tar",
            "application/vnd.docker.image.rootfs.foreign.diff.tar",
        ]
        .iter()
        .filter_map(|beginning| kind.strip_prefix(beginning))
        .any(|compression| matches!(compression, "" | "+gzip" | ".gzip" | "+zstd" | ".zstd"));
        if !is_layer {
            return Err(format!("it has a layer of type {kind}, which is not supported"));
        }
    }
    Ok(())
}

/// Chooses a document of an index.
fn choose<'a>(digest: &Digest, index: &'a ImageIndex, platform: &Platform) -> Result<&'a Descriptor> {
    let fits = |descriptor: &&Descriptor| {
        let Some(found) = descriptor.platform() else { return false };
        (found.os(), found.architecture()) == (&platform.os, &platform.architecture)
    };
    let manifests = index.manifests();
    let only = || match manifests.as_slice() {
        [only] if only.platform().is_none() => Some(only),
        _ => None,
    };
    manifests.iter().find(fits).or_else(only).ok_or_else(|| {
        let platforms: Vec<String> = manifests
            .iter()
            .filter_map(|descriptor| descriptor.platform().as_ref())
            .map(|found| format!("{}/{}", found.os(), found.architecture()))
            .filter(|platform| platform != "unknown/unknown")
            .collect();
        let Platform { os, architecture } = platform;
        Error::Document {
            what: format!("index {digest}"),
            problem: format!("it has no image for {os}/{architecture}, but for: {}", platforms.join(", ")),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::*;

    fn descriptor(document: &Value, platform: Option<(&str, &str)>) -> Value {
        let bytes = document.to_string();
        let mut descriptor = json!({
            "mediaType": ACCEPTED[1], "digest": digest::of(bytes.as_bytes()), "size": bytes.len(),
        });
        if let Some((os, architecture)) = platform {
            descriptor["platform"] = json!({"os": os, "architecture": architecture});
        }
        descriptor
    }

    fn manifest(layer: &str) -> Value {
        let blob = |kind: &str| json!({"mediaType": kind, "digest": digest::of(b"x"), "size": 1});
        let config = blob("application/vnd.oci.image.config.v1+json");
        json!({"schemaVersion": 2, "config": config, "layers": [blob(layer)]})
    }

    fn index(documents: &[Value]) -> Value {
        json!({"schemaVersion": 2, "manifests": documents})
    }

    fn resolved(first: &Value, others: &[&Value]) -> Result<Found> {
        let others: HashMap<_, _> = others
            .iter()
            .map(|document| document.to_string().into_bytes())
            .map(|bytes| (digest::of(&bytes), bytes))
            .collect();
        let platform = Platform { os: Os::Linux, architecture: Arch::Amd64 };
        resolve(first.to_string().into_bytes(), &platform, |descriptor| {
            Ok(others.get(descriptor.digest()).cloned().unwrap_or_default())
        })
    }

    const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

    #[test]
    fn indexes_lead_to_the_image_of_the_platform() {
        let wanted = manifest(LAYER);
        let inner = index(&[descriptor(&wanted, Some(("linux", "amd64")))]);
        let outer = index(&[
            descriptor(&manifest("x"), Some(("linux", "arm64"))),
            descriptor(&manifest("x"), Some(("unknown", "unknown"))),
            descriptor(&inner, Some(("linux", "amd64"))),
        ]);
        for first in [&wanted, &inner, &outer, &index(&[descriptor(&wanted, None)])] {
            let found = resolved(first, &[&wanted, &inner]).unwrap();
            assert_eq!(found.digest, digest::of(wanted.to_string().as_bytes()));
        }
    }

    #[test]
    fn documents_without_an_image_are_refused_with_the_reason() {
        let mut nested = manifest(LAYER);
        let mut documents = vec![nested.clone()];
        for _ in 0..MOST_INDEXES + 1 {
            nested = index(&[descriptor(&nested, None)]);
            documents.push(nested.clone());
        }
        let mut artifact = manifest(LAYER);
        artifact["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
        let others: Vec<&Value> = documents.iter().collect();
        let arm = index(&[descriptor(&manifest(LAYER), Some(("linux", "arm64")))]);
        let replaced = index(&[descriptor(&arm, None)]);
        for (first, problem) in [
            (&nested, "more than 8 indexes"),
            (&artifact, "no image of files"),
            (&manifest("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "not supported"),
            (&arm, "no image for linux/amd64, but for: linux/arm64"),
            (&replaced, "is expected"),
            (&json!({"schemaVersion": 1, "fsLayers": []}), "version 1"),
            (&json!({"schemaVersion": 2}), "neither"),
            (&json!([]), "invalid"),
            (&json!({"layers": [], "pad": "x".repeat(5 << 20)}), "may have 4194304"),
        ] {
            let error = resolved(first, &others).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
