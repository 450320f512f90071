//! Examines the networks that this host can give to guests: passt, and forwarding for address translation.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;

use super::host::read;
use super::{Finding, Level};

const PASST: &str = "passt";
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

pub(super) fn findings() -> Vec<Finding> {
    vec![passt(env::var_os("PATH").as_deref()), forwarding(&read(FORWARD))]
}

/// Looks for passt in the directories of `PATH`.
fn passt(directories: Option<&OsStr>) -> Finding {
    let directories = directories.map(env::split_paths).into_iter().flatten();
    let found: Option<PathBuf> =
        directories.map(|directory| directory.join(PASST)).find(|path| path.is_file());
    match found {
        Some(path) => Finding::available(format!("passt: {} (--net user)", path.display())),
        None => Finding::new(
            Level::Warning,
            "passt is not in PATH: VMs of images need it unless --net is given",
            "install it (Debian's package is passt), or give --net none, nat or tap=NAME",
        ),
    }
}

fn forwarding(setting: &str) -> Finding {
    match setting {
        "1" => Finding::available(format!("{FORWARD}: 1, the host forwards (--net nat)")),
        setting => {
            let shown = if setting.is_empty() { "absent" } else { setting };
            Finding::new(
                Level::Note,
                format!("{FORWARD}: {shown}, the host does not forward, as --net nat needs"),
                "sysctl -w net.ipv4.ip_forward=1; nothing else needs it",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passt_is_found_in_a_directory_of_the_path_alone() {
        let directory = crate::testing::ScratchDir::new();
        let path = env::join_paths(["/no/such".as_ref(), directory.0.as_path()]).unwrap();
        assert_eq!(passt(Some(&path)).level, Level::Warning);
        assert_eq!(passt(None).level, Level::Warning);
        std::fs::write(directory.0.join(PASST), "").unwrap();
        assert_eq!(passt(Some(&path)).level, Level::Available);
    }

    #[test]
    fn forwarding_is_on_or_named() {
        assert_eq!(forwarding("1").level, Level::Available);
        for (setting, shown) in [("0", ": 0,"), ("", ": absent,")] {
            let finding = forwarding(setting);
            assert!(finding.level == Level::Note && finding.what.contains(shown), "{}", finding.what);
        }
    }
}
