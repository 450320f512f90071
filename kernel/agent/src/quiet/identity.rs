//! Names that tell one VM from another.

use std::fs;
use std::io::ErrorKind;

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const MACHINE_ID: &str = "/etc/machine-id";
/// The address of a host's own name, as Debian has it.
const OWN_ADDRESS: &str = "127.0.1.1";

/// Sets the host name, also in the files that had the last one.
pub(super) fn set_hostname(name: &str) -> Result<(), String> {
    rustix::system::sethostname(name.as_bytes()).map_err(|error| error.to_string())?;
    replace(HOSTNAME, |_| format!("{name}\n"))?;
    replace(HOSTS, |hosts| with_name(hosts, name))
}

/// Sets the machine id of an image that has one (machine-id(5)).
pub(super) fn set_machine_id(id: &str) -> Result<(), String> {
    if id.len() != 32 || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!("{id:?} is no machine id; give 32 hexadecimal digits"));
    }
    replace(MACHINE_ID, |_| format!("{id}\n"))
}

/// Rewrites a file, if it is there.
fn replace(path: &str, change: impl FnOnce(&str) -> String) -> Result<(), String> {
    let changed = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.and_then(|old| {
            // A full disk leaves the old file.
            let new = format!("{path}.volt-new");
            fs::write(&new, change(&String::from_utf8_lossy(&old)))?;
            fs::set_permissions(&new, fs::metadata(path)?.permissions())?;
            fs::rename(&new, path)
        }),
    };
    changed.map_err(|error| format!("{path}: {error}"))
}

/// The lines of `hosts` with another name of the host itself.
fn with_name(hosts: &str, name: &str) -> String {
    let line = |line: &str| match line.split_whitespace().next() {
        Some(OWN_ADDRESS) => format!("{OWN_ADDRESS}\t{name}\n"),
        _ => format!("{line}\n"),
    };
    hosts.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_of_the_host_itself_changes() {
        let hosts = "127.0.0.1\tlocalhost\n127.0.1.1\told\n10.0.0.2 old\n";
        assert_eq!(with_name(hosts, "new"), "127.0.0.1\tlocalhost\n127.0.1.1\tnew\n10.0.0.2 old\n");
        assert_eq!(with_name("", "new"), "");
    }

    #[test]
    fn machine_id_is_checked_before_it_is_written() {
        for wrong in ["", "0", &"g".repeat(32), &"0".repeat(33)] {
            assert!(set_machine_id(wrong).unwrap_err().contains("32 hexadecimal digits"), "{wrong}");
        }
    }
}
