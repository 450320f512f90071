//! Metadata of files, in extended attributes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use hyper::StatusCode;
use hyper::header::HeaderMap;
use rustix::fs::{XattrFlags, flistxattr, flistxattr_query, fremovexattr, fsetxattr};

use crate::filesystem::entry::{METADATA, metadata_names};
use crate::reply::Failure;

const PREFIX: &str = "x-metadata-";
const LONGEST_KEY: usize = 246;
const LONGEST: usize = 4096;

/// Reads the headers `X-Metadata-KEY`.
pub fn of_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Failure> {
    let wrong = |why: String| Err(Failure::new(StatusCode::BAD_REQUEST, why));
    let mut found = BTreeMap::new();
    let mut length = 0;
    for (name, value) in headers {
        // Names of headers are in lower case already.
        let Some(key) = name.as_str().strip_prefix(PREFIX) else { continue };
        if key.is_empty() || key.len() > LONGEST_KEY {
            return wrong(format!("the header {name} needs a key of 1 to {LONGEST_KEY} bytes"));
        }
        let Some(value) = value.to_str().ok().filter(|text| !text.contains('\t')) else {
            return wrong(format!("the header {name} contains more than printable ASCII"));
        };
        length += key.len() + value.len();
        found.insert(key.to_owned(), value.to_owned());
    }
    if length > LONGEST {
        return wrong(format!("the metadata has {length} bytes, more than {LONGEST}"));
    }
    Ok(found)
}

/// Replaces the metadata of a file.
pub fn replace(file: &File, metadata: &BTreeMap<String, String>) -> io::Result<()> {
    for name in metadata_names(flistxattr_query(file), |names| flistxattr(file, names)) {
        fremovexattr(file, name.as_str())?;
    }
    for (key, value) in metadata {
        fsetxattr(file, format!("{METADATA}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<BTreeMap<String, String>, Failure> {
        let headers = pairs.iter().map(|(name, value)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        of_headers(&headers.collect())
    }

    #[test]
    fn headers_become_metadata_in_lower_case() {
        let found = read(&[("X-Metadata-Author", "me"), ("Content-Type", "x")]).unwrap();
        assert_eq!(found, BTreeMap::from([("author".to_owned(), "me".to_owned())]));
    }

    #[test]
    fn bad_metadata_is_refused() {
        let long_key = format!("X-Metadata-{}", "k".repeat(247));
        let long = "v".repeat(4096);
        for pair in [(long_key.as_str(), "v"), ("X-Metadata-a", &long), ("X-Metadata-a", "é")] {
            assert_eq!(read(&[pair]).unwrap_err().status, StatusCode::BAD_REQUEST);
        }
    }
}
