//! The servers of a host, and their file.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The file (resolv.conf(5)).
pub(super) const FILE: &str = "/etc/resolv.conf";
/// The port of servers.
pub(super) const PORT: u16 = 53;
/// Most servers, as in the C library (`MAXNS`).
const MOST: usize = 3;
/// Time for a server, unless the file says another one: guests give up sooner than the host's programs.
const PATIENCE: Duration = Duration::from_secs(3);

/// The servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    /// Their addresses, in the order in which they are asked.
    pub addresses: Vec<SocketAddr>,
    /// Time for each.
    pub patience: Duration,
}

/// The servers as the file has them now.
#[derive(Debug)]
pub(super) struct ServersFile {
    path: PathBuf,
    port: u16,
    read: Option<(FileId, Servers)>,
}

/// Tells a file from the one that takes its place: its device, inode, length and time of change.
type FileId = (u64, u64, u64, Option<SystemTime>);

impl ServersFile {
    /// The file at a path, whose servers listen at a port.
    pub fn at(path: impl Into<PathBuf>, port: u16) -> Self {
        Self { path: path.into(), port, read: None }
    }

    /// The servers. Without a file, one on this host (resolv.conf(5)).
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn now(&mut self) -> io::Result<Servers> {
        let id = fs::metadata(&self.path).ok().map(|found| {
            use std::os::unix::fs::MetadataExt;
            (found.dev(), found.ino(), found.len(), found.modified().ok())
        });
        if let (Some(id), Some((known, servers))) = (id, &self.read)
            && id == *known
        {
            return Ok(servers.clone());
        }
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let servers = parse(&text, self.port);
        self.read = id.map(|id| (id, servers.clone()));
        Ok(servers)
    }
}

/// Reads the lines about servers and time. Other ones, such as searched domains, concern the guest's
/// resolver.
fn parse(text: &str, port: u16) -> Servers {
    let lines = text.lines().map(|line| line.split(['#', ';']).next().unwrap_or_default());
    let (mut addresses, mut patience) = (Vec::new(), PATIENCE);
    for line in lines {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") if addresses.len() < MOST => {
                addresses.extend(words.next().and_then(|text| address(text, port)));
            }
            Some("options") => {
                let seconds = words.find_map(|word| word.strip_prefix("timeout:")?.parse().ok());
                patience = seconds.map_or(patience, |seconds: u64| Duration::from_secs(seconds.clamp(1, 5)));
            }
            _ => {}
        }
    }
    if addresses.is_empty() {
        addresses.push((Ipv4Addr::LOCALHOST, port).into());
    }
    Servers { addresses, patience }
}

/// An address, perhaps with the interface of a link-local one.
fn address(text: &str, port: u16) -> Option<SocketAddr> {
    match text.split_once('%') {
        None => text.parse::<IpAddr>().ok().map(|address| (address, port).into()),
        Some((address, interface)) => {
            let scope = rustix::net::netdevice::name_to_index(&socket()?, interface).ok()?;
            let v6 = std::net::SocketAddrV6::new(address.parse().ok()?, port, 0, scope);
            Some(v6.into())
        }
    }
}

fn socket() -> Option<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_time_are_read() {
        let text = "# made by a tool\nsearch example.org\nnameserver 192.0.2.1 # first\n \
                    nameserver 2001:db8::1\nnameserver nonsense\nnameserver fe80::1%lo\n\
                    options edns0 timeout:2 rotate\nnameserver 192.0.2.4\nnameserver 192.0.2.5\n\
                    ;nameserver 192.0.2.6\n";
        let servers = parse(text, PORT);
        let found: Vec<_> = servers.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%1]:53"]);
        assert_eq!(servers.patience, Duration::from_secs(2));
        assert_eq!(parse("options timeout:600", PORT).patience, Duration::from_secs(5));
    }

    #[test]
    fn host_without_a_file_has_a_server_of_its_own() {
        let servers = parse("", PORT);
        assert_eq!(servers.addresses, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(servers.patience, PATIENCE);
    }
}
