//! Cures of errors, for a face of volt-vmm to name in its own words: a field, an option, a request.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A change that would mend an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cure {
    /// Another file for this disk.
    DiskPath {
        /// The disk.
        id: String,
    },
    /// A layer over this disk of the VM itself: clones do not share it.
    DiskLayer {
        /// The disk.
        id: String,
    },
    /// Another tap for this network interface.
    Tap {
        /// The interface.
        id: String,
    },
    /// A passt for this network interface.
    Passt {
        /// The interface.
        id: String,
    },
    /// Other forwarded ports for this network interface.
    ForwardedPorts {
        /// The interface.
        id: String,
    },
    /// Another socket for the vsock device.
    VsockSocket,
    /// Another socket for the console.
    ConsoleSocket,
    /// Permission for the directory of a path that a snapshot names.
    AllowedDirectory,
    /// Statistics of the balloon.
    BalloonStatistics,
    /// A compression for packed memory.
    Compression,
    /// A request without this field.
    LeaveOut {
        /// The field.
        field: String,
    },
}

impl Cure {
    /// Formats the cure with the place where it is made: `give disk root another path (PLACE)`.
    #[must_use]
    pub fn at(&self, place: &str) -> String {
        let act = match self {
            Self::DiskPath { id } => format!("give disk {id} another path"),
            Self::DiskLayer { id } => format!("give disk {id} of the VM a layer, which is not shared"),
            Self::Tap { id } => format!("give network {id} another tap"),
            Self::Passt { id } => format!("give network {id} a passt"),
            Self::ForwardedPorts { id } => format!("give network {id} other ports"),
            Self::VsockSocket => "give the vsock device another socket".to_owned(),
            Self::ConsoleSocket => "give the console another socket".to_owned(),
            Self::AllowedDirectory => "allow its directory".to_owned(),
            Self::BalloonStatistics => "give the balloon statistics".to_owned(),
            Self::Compression => "choose a compression".to_owned(),
            Self::LeaveOut { .. } => "leave it out".to_owned(),
        };
        format!("{act} ({place})")
    }
}

/// Formats the cure with the library's field.
impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at(match self {
            Self::DiskPath { .. } => "Overrides::disks",
            Self::DiskLayer { .. } => "DiskConfig::layer",
            Self::Tap { .. } | Self::Passt { .. } | Self::ForwardedPorts { .. } => "Overrides::networks",
            Self::VsockSocket => "Overrides::vsock",
            Self::ConsoleSocket => "Overrides::console",
            Self::AllowedDirectory => "RestoreOptions::allowed",
            Self::BalloonStatistics => "BalloonConfig::statistics_interval",
            Self::Compression => "Packing::compression",
            Self::LeaveOut { field } => field,
        }))
    }
}

/// Appends `cures` in `words` to the text of an error.
#[must_use]
pub fn with_cures(problem: String, cures: &[Cure], words: impl Fn(&Cure) -> String) -> String {
    match cures.iter().map(words).reduce(|cures, cure| format!("{cures}, or {cure}")) {
        Some(cures) => format!("{problem}; {cures}"),
        None => problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cures_follow_the_problem() {
        let cures = [Cure::DiskPath { id: "root".to_owned() }, Cure::AllowedDirectory];
        assert_eq!(with_cures("no".to_owned(), &[], Cure::to_string), "no");
        assert_eq!(
            with_cures("no".to_owned(), &cures, Cure::to_string),
            "no; give disk root another path (Overrides::disks), \
             or allow its directory (RestoreOptions::allowed)"
        );
    }
}
