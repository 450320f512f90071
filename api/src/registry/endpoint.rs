//! Where a registry answers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The registry of names without one, and where it answers.
const DOCKER: &str = "docker.io";
const DOCKERS_HOST: &str = "registry-1.docker.io";
/// The name by which docker keeps its credentials.
const DOCKERS_KEY: &str = "https://index.docker.io/v1/";

/// A registry or a mirror of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Endpoint {
    /// The registry's name in names of images.
    pub(crate) registry: String,
    /// The beginning of its URLs, such as `https://ghcr.io`.
    pub(crate) base: String,
}

impl Endpoint {
    /// The registry of this name. One on this host itself has no TLS, as docker takes it.
    pub(crate) fn of(registry: &str, plain_http: bool) -> Self {
        let host = if registry == DOCKER { DOCKERS_HOST } else { registry };
        let scheme = if plain_http || is_local(host) { "http" } else { "https" };
        Self { registry: registry.to_owned(), base: format!("{scheme}://{host}") }
    }

    /// The name by which credentials of this registry are kept.
    pub(crate) fn key(&self) -> &str {
        if self.registry == DOCKER { DOCKERS_KEY } else { &self.registry }
    }
}

/// Tells whether a host, with or without a port, is this one.
fn is_local(host: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let bare = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(bare, _)| bare);
    // An address of IPv6 without a port ends with a bracket.
    let bare = if host.ends_with(']') { host } else { bare };
    let address = bare.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    bare == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.base)
    }
}

/// A mirror of a registry: `REGISTRY=URL`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Mirror {
    /// The registry that it mirrors.
    pub(crate) registry: String,
    pub(crate) endpoint: Endpoint,
}

impl FromStr for Mirror {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write REGISTRY=URL, such as docker.io=https://mirror.example";
        let (registry, url) = text.split_once('=').ok_or(FORM)?;
        let base = url.trim_end_matches('/');
        let host = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://")).ok_or(FORM)?;
        if registry.is_empty() || host.is_empty() {
            return Err(FORM.to_owned());
        }
        let host = host.split('/').next().unwrap_or(host);
        let endpoint = Endpoint { registry: host.to_owned(), base: base.to_owned() };
        Ok(Self { registry: registry.to_owned(), endpoint })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_have_tls_unless_they_are_on_this_host() {
        for (registry, base, key) in [
            ("docker.io", "https://registry-1.docker.io", DOCKERS_KEY),
            ("ghcr.io", "https://ghcr.io", "ghcr.io"),
            ("localhost:5000", "http://localhost:5000", "localhost:5000"),
            ("127.0.0.1:80", "http://127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "http://[::1]:80", "[::1]:80"),
            ("[::1]", "http://[::1]", "[::1]"),
            ("127.0.0.1.example", "https://127.0.0.1.example", "127.0.0.1.example"),
            ("127.example:80", "https://127.example:80", "127.example:80"),
        ] {
            let endpoint = Endpoint::of(registry, false);
            assert_eq!((endpoint.base.as_str(), endpoint.key()), (base, key));
        }
        assert_eq!(Endpoint::of("registry.lan", true).base, "http://registry.lan");
    }

    #[test]
    fn mirror_names_its_registry() {
        let mirror: Mirror = "docker.io=http://cache:5000/".parse().unwrap();
        assert_eq!(
            (mirror.registry.as_str(), mirror.endpoint.base.as_str()),
            ("docker.io", "http://cache:5000")
        );
        for text in ["", "docker.io", "docker.io=cache", "=https://cache", "docker.io=https://"] {
            assert!(text.parse::<Mirror>().unwrap_err().contains("REGISTRY=URL"), "{text}");
        }
    }
}
