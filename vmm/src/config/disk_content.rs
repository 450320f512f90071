//! What a disk's image was when a snapshot was taken, as far as that can be told in microseconds. Layers name their base themselves.

use serde::{Deserialize, Serialize};

/// An image at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskContent {
    /// Its length.
    pub bytes: u64,
    /// A digest over samples of it, 16 hex digits: the CRC-64/ECMA-182 of its length, its first 4 KiB and 16 sectors spread over the rest.
    pub digest: String,
    /// When the file was written last, as seconds since 1970 and nanoseconds: `1795262400.123456789`. None for what the guest only reads
    /// and for a block device, which does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified: Option<String>,
}

impl DiskContent {
    /// What is different now, in words; `found` is the image now. A copy's time says nothing, so `is_copy` leaves it out.
    #[must_use]
    pub fn difference(&self, found: &Self, is_copy: bool) -> Option<String> {
        let Self { bytes, digest, modified } = self;
        if *bytes != found.bytes {
            return Some(format!("it has {} bytes, and had {bytes}", found.bytes));
        }
        if *digest != found.digest {
            return Some(format!("its content has the digest {}, and had {digest}", found.digest));
        }
        match (modified, &found.modified) {
            (Some(then), Some(now)) if then != now && !is_copy => {
                Some(format!("it was written at {now}, and then last at {then} (seconds since 1970)"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_what_changed_first() {
        let then = DiskContent { bytes: 512, digest: "a".into(), modified: Some("1.5".into()) };
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
        said(&changed(|now| now.bytes = 1024), "1024 bytes, and had 512");
        said(&changed(|now| now.digest = "b".into()), "digest b, and had a");
        let [same_file, copy] = changed(|now| now.modified = Some("2.5".into()));
        assert!(same_file.unwrap().contains("written at 2.5, and then last at 1.5"));
        assert_eq!(copy, None);
        assert_eq!(changed(|now| now.modified = None), [None, None]);
    }
}
