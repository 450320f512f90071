//! The mounts that this process sees.

use std::fs;

/// A line of `/proc/self/mounts` (fstab(5)), without its escapes.
#[derive(Debug, PartialEq)]
pub struct Mounted {
    /// The disk, or a word.
    pub source: Vec<u8>,
    /// The mount point.
    pub path: Vec<u8>,
    /// The type of the file system.
    pub kind: String,
}

/// Lists the mounts, the oldest first.
pub fn all() -> Vec<Mounted> {
    let text = fs::read("/proc/self/mounts").unwrap_or_default();
    String::from_utf8_lossy(&text).lines().filter_map(of_line).collect()
}

fn of_line(line: &str) -> Option<Mounted> {
    let mut fields = line.split(' ');
    let (source, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Mounted { source: unescaped(source), path: unescaped(path), kind: kind.to_owned() })
}

/// Undoes the kernel's escapes of spaces, tabs, line ends and backslashes: three octal digits.
fn unescaped(path: &str) -> Vec<u8> {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match digits {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend_from_slice(part.as_bytes());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::{Mounted, of_line, unescaped};

    #[test]
    fn line_has_disk_mount_point_and_type() {
        let found = of_line(r"/dev/vdb /a\040b ext4 rw,relatime 0 0").unwrap();
        let (source, path) = (b"/dev/vdb".to_vec(), b"/a b".to_vec());
        assert_eq!(found, Mounted { source, path, kind: "ext4".to_owned() });
        assert_eq!(of_line("nothing here"), None);
    }

    #[test]
    fn escapes_of_mount_points_are_undone() {
        for (text, path) in [
            ("/plain", "/plain"),
            (r"/a\040b\011c", "/a b\tc"),
            (r"/\134040", r"/\040"),
            (r"/end\04", r"/end\04"),
        ] {
            assert_eq!(unescaped(text), path.as_bytes(), "{text}");
        }
    }
}
