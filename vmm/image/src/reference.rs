//! Names of images as docker writes them (grammar of distribution's `reference` package):
//! `[DOMAIN[:PORT]/]PATH[:TAG][@DIGEST]`.
//!
//! The parser of oci-spec brings regular expressions, whose tables of characters cost each start of a VM 28
//! page faults: the program's loader relocates them.

use std::fmt;
use std::str::FromStr;

use crate::digest::{Digest, is_known};
use crate::error::Error;

/// The registry of names without one, and the beginning of its repositories that have one name.
const DOCKER: &str = "docker.io";
const LIBRARY: &str = "library/";
/// The domain by which older versions of docker call it.
const OLD_DOCKER: &str = "index.docker.io";
/// The tag of names without one.
const LATEST: &str = "latest";
/// Most bytes of registry and repository, and of a tag.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;

/// A name of an image, written out: registry, repository, and tag or digest.
///
/// It is parsed as docker does: `python` is `docker.io/library/python:latest`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Name {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Name {
    /// The registry: host and port.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in its registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of the manifest, which comes before the tag.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// Returns the name without a digest, if it has a tag.
    #[must_use]
    pub fn tagged(&self) -> Option<Self> {
        self.tag.is_some().then(|| Self { digest: None, ..self.clone() })
    }

    /// Returns the name as short as docker takes it.
    #[must_use]
    pub fn short(&self) -> String {
        let whole = self.to_string();
        match whole.strip_prefix(DOCKER).and_then(|rest| rest.strip_prefix('/')) {
            Some(rest) => rest.strip_prefix(LIBRARY).unwrap_or(rest).to_owned(),
            None => whole,
        }
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|problem| Error::Name { name: text.to_owned(), problem: problem.to_owned() })
    }
}

fn parse(text: &str) -> Result<Name, &'static str> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(parse_digest(digest).ok_or("its digest is not sha256:HEX")?)),
        None => (text, None),
    };
    let (name, tag) = match rest.rsplit_once(':') {
        // A colon before a slash is that of a port.
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("its tag has other than letters, digits and _.-, or is too long");
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, path)) if is_registry(first) => (first, path),
        _ => (DOCKER, name),
    };
    if !is_domain(registry) {
        return Err("its registry is no host with an optional port");
    }
    if !path.split('/').all(is_component) {
        return Err("its repository has other than small letters, digits and separators between them");
    }
    let registry = if registry == OLD_DOCKER { DOCKER } else { registry };
    let library = if registry == DOCKER && !path.contains('/') { LIBRARY } else { "" };
    let repository = format!("{library}{path}");
    if registry.len() + repository.len() >= LONGEST_NAME {
        return Err("it is longer than 255 characters");
    }
    let tag = tag.or(if digest.is_none() { Some(LATEST) } else { None });
    Ok(Name { registry: registry.to_owned(), repository, tag: tag.map(str::to_owned), digest })
}

fn parse_digest(text: &str) -> Option<Digest> {
    text.parse().ok().filter(is_known)
}

/// Tells whether the first part of a name is a registry: it looks like a host.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(""))),
            None => return false,
        },
        None => domain.split_once(':').map_or((domain, None), |(host, port)| (host, Some(port))),
    };
    let is_port = port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_ip6 = domain.starts_with('[')
        && !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    let is_label = |label: &str| {
        let inner = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        !label.is_empty() && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    is_port && (is_ip6 || host.split('.').all(is_label))
}

/// Tells whether a part of a repository is one: small letters and digits, with `.`, `_`, `__` or hyphens
/// between them.
fn is_component(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let has_ends =
        text.bytes().next().is_some_and(is_alphanumeric) && text.bytes().last().is_some_and(is_alphanumeric);
    let mut separators =
        text.split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit());
    let is_separator = |separator: &str| {
        matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
    };
    has_ends && separators.all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
        && tag.len() <= LONGEST_TAG
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(formatter, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(formatter, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use oci_spec::distribution::Reference;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_names_are_those_of_docker() {
        for (text, whole, short) in [
            ("python", "docker.io/library/python:latest", "python:latest"),
            ("me/app:1", "docker.io/me/app:1", "me/app:1"),
            ("index.docker.io/python", "docker.io/library/python:latest", "python:latest"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000/a:latest"),
            ("ghcr.io/x/y_z:A-1.b", "ghcr.io/x/y_z:A-1.b", "ghcr.io/x/y_z:A-1.b"),
        ] {
            let name: Name = text.parse().unwrap();
            assert_eq!((name.to_string().as_str(), name.short().as_str()), (whole, short));
            assert_eq!(short.parse::<Name>().unwrap(), name);
        }
        let digest = format!("a@sha256:{}", "0".repeat(64));
        assert_eq!(digest.parse::<Name>().unwrap().tag(), None);
        for text in ["", "A", "a b", "a:", "a@sha256:1", "/a", "a//b", "a/-b", "a___b", "-x.y/a", "a.b:/c"] {
            assert!(matches!(text.parse::<Name>(), Err(Error::Name { .. })), "{text}");
        }
    }

    proptest! {
        /// oci-spec has the grammar of distribution. But it takes a registry with capitals for a part of the
        /// repository, which none can have.
        #[test]
        fn names_are_parsed_as_by_oci_spec(
            domain in "([a-z0-9.\\-_]{1,6}(:[0-9]{1,3})?/)?",
            rest in "[a-c0-9._\\-/]{1,12}(:[a-zA-B0-9_.\\-]{0,5})?",
        ) {
            let text = format!("{domain}{rest}");
            let (ours, theirs) = (text.parse::<Name>(), Reference::try_from(text.as_str()));
            // It looks for the registry after it has checked the characters of a repository.
            let is_host = theirs.as_ref().is_ok_and(|theirs| is_domain(theirs.registry()));
            prop_assert_eq!(ours.is_ok(), is_host, "{:?} {:?}", ours, theirs);
            if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
                prop_assert_eq!(ours.to_string(), theirs.whole());
            }
        }
    }
}
