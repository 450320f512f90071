//! journald's native protocol: a record is a datagram of fields, written to a socket of the host
//! (systemd, "Journal Native Protocol"). The socket is connected once, so that a confined thread only writes.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use log::{Level, Record};
use volt_vmm::Error;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Connects to the journal. No write waits for it.
///
/// # Errors
/// No journal listens.
pub(super) fn connect() -> volt_vmm::Result<File> {
    let connected = || -> io::Result<File> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        socket.set_nonblocking(true)?;
        Ok(File::from(OwnedFd::from(socket)))
    };
    let name = SOCKET.to_owned();
    connected().map_err(|source| Error::File { act: "connect to the journal at", name, source })
}

/// Returns the datagram of a record of the VM `id`.
pub(super) fn datagram(id: &str, record: &Record<'_>) -> Vec<u8> {
    let priority = match record.level() {
        Level::Error => "3",
        Level::Warn => "4",
        Level::Info => "6",
        Level::Debug | Level::Trace => "7",
    };
    let mut datagram = Vec::new();
    for (field, value) in [
        ("MESSAGE", record.args().to_string().as_str()),
        ("PRIORITY", priority),
        ("SYSLOG_IDENTIFIER", "volt-vmm"),
        ("VOLT_VM", id),
        ("TARGET", record.target()),
    ] {
        add(&mut datagram, field, value);
    }
    datagram
}

/// Adds a field. A value of several lines has its length before it.
fn add(datagram: &mut Vec<u8>, field: &str, value: &str) {
    datagram.extend(field.as_bytes());
    if value.contains('\n') {
        datagram.push(b'\n');
        datagram.extend((value.len() as u64).to_le_bytes());
    } else {
        datagram.push(b'=');
    }
    datagram.extend(value.as_bytes());
    datagram.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_a_datagram_of_fields() {
        let of = |message: &str| {
            let args = format_args!("{message}");
            datagram("web", &Record::builder().level(Level::Warn).target("volt_vmm::vm").args(args).build())
        };
        let rest = "PRIORITY=4\nSYSLOG_IDENTIFIER=volt-vmm\nVOLT_VM=web\nTARGET=volt_vmm::vm\n";
        assert_eq!(of("a message"), format!("MESSAGE=a message\n{rest}").as_bytes());
        let long = [b"MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n", rest.as_bytes()].concat();
        assert_eq!(of("a\nb"), long, "a guest cannot add a field");
    }
}
