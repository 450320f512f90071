//! Ports of the host that lead to ports of a VM.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::name::VmName;

/// An address of the host that leads to a TCP port of a VM: `[ADDRESS:]HOST:GUEST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Forward {
    /// Port 0 is one that the host chooses.
    pub(crate) address: SocketAddr,
    /// The port of the VM.
    pub(crate) port: u16,
}

impl Forward {
    /// The forward for a person.
    pub(crate) fn line(&self, vm: &VmName) -> String {
        format!("{} -> {vm}:{}", self.address, self.port)
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || "give [ADDRESS:]HOST:GUEST, such as 8080:80 or 0.0.0.0:8080:80".to_owned();
        let port = |text: &str| {
            // A number alone: u16 also takes a plus sign.
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            let port = text.parse::<u16>().ok().filter(|_| is_number);
            port.ok_or_else(|| format!("{text:?} is no port (0 to {}); {}", u16::MAX, form()))
        };
        let (rest, guest) = text.rsplit_once(':').ok_or_else(form)?;
        let (ip, host) = match rest.rsplit_once(':') {
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), rest),
            Some((address, host)) => (ip(address)?, host),
        };
        let (host, guest) = (port(host)?, port(guest)?);
        if guest == 0 {
            return Err("the VM's port is not 0; the host's may be, for a free one".to_owned());
        }
        Ok(Self { address: SocketAddr::new(ip, host), port: guest })
    }
}

fn ip(text: &str) -> Result<IpAddr, String> {
    let in_brackets = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let ip = match in_brackets {
        Some(text) => text.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    };
    ip.ok_or_else(|| format!("{text:?} is no address; give one of this host, such as 127.0.0.1 or [::1]"))
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.address, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forward_is_of_this_host_unless_it_names_an_address() {
        for (text, whole) in [
            ("8080:80", "127.0.0.1:8080:80"),
            ("0:65535", "127.0.0.1:0:65535"),
            ("0.0.0.0:8080:80", "0.0.0.0:8080:80"),
            ("[::1]:8080:80", "[::1]:8080:80"),
        ] {
            let forward: Forward = text.parse().unwrap();
            assert_eq!(forward.to_string(), whole, "{text}");
            assert_eq!(whole.parse(), Ok(forward), "{text}");
        }
        let forward: Forward = "8080:80".parse().unwrap();
        assert_eq!(forward.line(&"web".parse().unwrap()), "127.0.0.1:8080 -> web:80");
    }

    #[test]
    fn part_that_is_no_port_or_address_is_named() {
        for (text, part) in [
            ("", "[ADDRESS:]HOST:GUEST"),
            ("80", "[ADDRESS:]HOST:GUEST"),
            ("8080:", "\"\" is no port"),
            (":80", "\"\" is no port"),
            ("8080:+80", "\"+80\" is no port"),
            ("8080:80/tcp", "\"80/tcp\" is no port"),
            ("65536:80", "\"65536\" is no port"),
            ("8080:0", "the VM's port is not 0"),
            ("localhost:8080:80", "\"localhost\" is no address"),
            ("::1:8080:80", "\"::1\" is no address"),
            ("[127.0.0.1]:8080:80", "\"[127.0.0.1]\" is no address"),
        ] {
            let error = text.parse::<Forward>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
