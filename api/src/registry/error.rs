//! Errors of registries.

use std::io;
use std::time::Duration;

use volt_image::digest::Digest;

/// Why a registry does not give what is asked for. Each text names the URL and the cure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegistryError {
    /// The host cannot make a client.
    #[error("cannot make a client of registries")]
    Client(#[source] reqwest::Error),
    /// The registry does not answer.
    #[error("cannot reach {url}")]
    Unreachable { url: String, source: reqwest::Error },
    /// 401 or 403.
    #[error(
        "{url} refuses access ({status}): check the name, or log in with `docker login {registry}` or \
         `podman login {registry}`"
    )]
    Refused { url: String, status: u16, registry: String },
    /// 404.
    #[error("{url} does not exist: check the image's name and tag; a private image needs a login")]
    Missing { url: String },
    /// 429, again and again.
    #[error("{url} limits the number of requests: try again {}, or log in", after(*.wait))]
    Limited { url: String, wait: Option<Duration> },
    /// Another status.
    #[error("{url} answered with status {status}{}", shown(.message))]
    Status { url: String, status: u16, message: String },
    /// The connection ended within an answer.
    #[error("{url} ended within its answer")]
    Cut { url: String, source: io::Error },
    /// The connection of a blob broke again and again.
    #[error("{url} broke off after {at} of {size} bytes, again and again")]
    BrokeOff { url: String, at: u64, size: u64, source: io::Error },
    /// A blob has fewer bytes than its descriptor says.
    #[error("{url} has {at} bytes, and {size} are expected: it is damaged or was replaced")]
    Short { url: String, at: u64, size: u64 },
    /// A document does not end in time.
    #[error("{url} is longer than {most} bytes, and no manifest is")]
    Long { url: String, most: u64 },
    /// A document is not that of its digest.
    #[error("{url} has the digest {found}, and {expected} is expected: it is damaged or was replaced")]
    Digest { url: String, expected: Digest, found: Digest },
    /// A signal cancelled the act.
    #[error("the pull was cancelled")]
    Cancelled,
    /// The registry asks for a login of an unknown kind, or its answer to one makes no sense.
    #[error("{url} asks for a login that is not supported: {problem}")]
    Login { url: String, problem: String },
    /// A file or a helper with credentials is damaged.
    #[error("cannot get the credentials of {registry}: {problem}")]
    Credentials { registry: String, problem: String },
}

fn after(wait: Option<Duration>) -> String {
    wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()))
}

fn shown(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}
