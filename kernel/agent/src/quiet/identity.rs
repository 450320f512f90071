//! Names that tell one VM from another.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";
const MACHINE_ID: &str = "/etc/machine-id";
/// The address of a host's own name, as Debian has it.
const OWN_ADDRESS: &str = "127.0.1.1";
/// Bytes that a file of names seldom has. A read of fewer has reached its end.
const SHORT: usize = 4096;

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

/// Rewrites a file, if it is there. Its place on the disk stays: another file beside it, and a rename, would
/// take the guest ten times as long.
fn replace(path: &str, change: impl FnOnce(&str) -> String) -> Result<(), String> {
    let rewrite = |file: File| {
        let old = content(&file)?;
        let new = change(&String::from_utf8_lossy(&old)).into_bytes();
        if new != old {
            file.write_all_at(&new, 0)?;
        }
        if new.len() < old.len() { file.set_len(new.len() as u64) } else { Ok(()) }
    };
    let rewritten = match open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => Ok(()),
        opened => opened.map_err(Into::into).and_then(|opened| rewrite(File::from(opened))),
    };
    rewritten.map_err(|error| format!("{path}: {error}"))
}

/// Reads a whole file: a short one by one system call.
fn content(mut file: &File) -> io::Result<Vec<u8>> {
    let mut content = vec![0; SHORT];
    let count = file.read(&mut content)?;
    content.truncate(count);
    if count == SHORT {
        file.read_to_end(&mut content)?;
    }
    Ok(content)
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
    fn file_is_rewritten_in_its_place_and_a_missing_one_is_not_made() {
        let dir = crate::scratch::Scratch::new();
        let path = dir.path("file");
        let path = path.to_str().unwrap();
        replace(path, |_| "new".to_owned()).unwrap();
        std::fs::write(path, "a long old name\n").unwrap();
        let long = "long\n".repeat(SHORT);
        for new in ["short\n", "a name that is longer\n", "same\n", "same\n", &long, &long[..SHORT], "last\n"]
        {
            let old = std::fs::read_to_string(path).unwrap();
            let change = |found: &str| {
                assert_eq!(found, old);
                new.to_owned()
            };
            replace(path, change).unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), new);
        }
    }

    #[test]
    fn machine_id_is_checked_before_it_is_written() {
        for wrong in ["", "0", &"g".repeat(32), &"0".repeat(33)] {
            assert!(set_machine_id(wrong).unwrap_err().contains("32 hexadecimal digits"), "{wrong}");
        }
    }
}
