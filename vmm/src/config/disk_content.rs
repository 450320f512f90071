//! Identity of a disk's image at the time of a snapshot, read within microseconds. Layers name their own
//! base.

use serde::{Deserialize, Serialize};

/// Identity of an image at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskContent {
    /// Length of the image.
    pub bytes: u64,
    /// Digest of samples, 16 hex digits: the CRC-64/ECMA-182 of the length, the first 4 KiB and 16 sectors
    /// spread over the rest.
    pub digest: String,
    /// Time of the last write, in seconds since 1970 with nanoseconds: `1795262400.123456789`. Missing for a
    /// read-only disk, and for a block device, which has no such time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
    /// The content of each part of a disk with several; `bytes` is then their sum, and `digest` the
    /// CRC-64/ECMA-182 of their digests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Self>,
}

impl DiskContent {
    /// Returns the content of each file.
    #[must_use]
    pub fn files(&self) -> &[Self] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    /// Describes how `found`, the file now, differs. The time of a copy is not compared (`is_copy`).
    #[must_use]
    pub fn difference(&self, found: &Self, is_copy: bool) -> Option<String> {
        let Self { bytes, digest, modified, parts: _ } = self;
        if *bytes != found.bytes {
            return Some(format!("it has {} bytes now, and had {bytes} at the snapshot", found.bytes));
        }
        if *digest != found.digest {
            return Some(format!(
                "the digest of its content is {} now, and was {digest} at the snapshot",
                found.digest
            ));
        }
        match (modified, &found.modified) {
            (Some(then), Some(now)) if then != now && !is_copy => Some(format!(
                "the time of its last write is {now}, and was {then} at the snapshot (seconds since 1970)"
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_what_changed_first() {
        let then =
            DiskContent { bytes: 512, digest: "a".into(), modified: Some("1.5".into()), parts: vec![] };
        let changed = |change: fn(&mut DiskContent)| {
            let mut now = then.clone();
            change(&mut now);
            [false, true].map(|is_copy| then.difference(&now, is_copy))
        };
        assert_eq!(changed(|_| ()), [None, None]);
        let said = |found: &[Option<String>; 2], words: &str| {
            assert!(
                found.iter().all(|found| found.as_ref().is_some_and(|found| found.contains(words))),
                "{found:?}"
            );
        };
        said(&changed(|now| now.bytes = 1024), "1024 bytes now, and had 512");
        said(&changed(|now| now.digest = "b".into()), "content is b now, and was a");
        let [same_file, copy] = changed(|now| now.modified = Some("2.5".into()));
        assert!(same_file.unwrap().contains("last write is 2.5, and was 1.5"));
        assert_eq!(copy, None);
        assert_eq!(changed(|now| now.modified = None), [None, None]);
    }
}
