//! Cures of errors, for a face of volt-vmm to name in its own words: a field, an option, a request.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A change that would mend an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(no_recursion))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cure {
    /// Another resource than the one at hand, by this cure.
    Another(Box<Cure>),
    /// A file for this disk.
    DiskPath {
        /// The disk.
        id: String,
    },
    /// A layer over this disk of the VM itself: clones do not share it.
    DiskLayer {
        /// The disk.
        id: String,
    },
    /// A layer for this disk of a clone.
    CloneLayer {
        /// The disk.
        id: String,
    },
    /// A copy of this disk's image as it was at the time of the snapshot.
    FormerImage {
        /// The disk.
        id: String,
    },
    /// Acceptance of this disk's image, which has changed since the snapshot.
    ChangedImage {
        /// The disk.
        id: String,
    },
    /// A VM over a layer that a killed process left: its orderly end completes the layer.
    CompletedLayer {
        /// The layer.
        layer: String,
    },
    /// A tap for this network interface.
    Tap {
        /// The interface.
        id: String,
    },
    /// A passt for this network interface.
    Passt {
        /// The interface.
        id: String,
    },
    /// A network by address translation for this network interface.
    Nat {
        /// The interface.
        id: String,
    },
    /// Forwarded ports for this network interface.
    ForwardedPorts {
        /// The interface.
        id: String,
    },
    /// A socket for the vsock device.
    VsockSocket,
    /// A socket for the console.
    ConsoleSocket,
    /// Permission for the directory of a path that a snapshot names.
    AllowedDirectory,
    /// Permission to have disks and sockets that another VM has.
    AllowShared,
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
    /// Formats the cure with the place where it is made: `give disk root a path (PLACE)`.
    #[must_use]
    pub fn at(&self, place: &str) -> String {
        let (cure, a, other) = match self {
            Self::Another(cure) => (&**cure, "another", "other "),
            cure => (cure, "a", ""),
        };
        let act = match cure {
            Self::Another(cure) => return cure.at(place),
            Self::DiskPath { id } => format!("give disk {id} {a} path"),
            Self::DiskLayer { id } => format!("give disk {id} of the VM a layer, which is not shared"),
            Self::CloneLayer { id } => format!("give disk {id} {a} layer by its path"),
            Self::FormerImage { id } => {
                format!("give disk {id} a copy of the image as it was at the snapshot")
            }
            Self::ChangedImage { id } => format!("accept the image of disk {id} as it is now"),
            Self::CompletedLayer { layer } => format!("run a VM with layer {layer} and let it end cleanly"),
            Self::Tap { id } => format!("give network {id} {a} tap"),
            Self::Passt { id } => format!("give network {id} a passt"),
            Self::Nat { id } => format!("give network {id} a nat"),
            Self::ForwardedPorts { id } => format!("give network {id} {other}ports"),
            Self::VsockSocket => format!("give the vsock device {a} socket"),
            Self::ConsoleSocket => format!("give the console {a} socket"),
            Self::AllowedDirectory => "allow its directory".to_owned(),
            Self::AllowShared => "allow what is shared".to_owned(),
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
        let cure = if let Self::Another(cure) = self { cure } else { self };
        f.write_str(&self.at(match cure {
            Self::Another(_) => "Overrides",
            Self::DiskPath { .. } | Self::CloneLayer { .. } => "Overrides::disks",
            Self::FormerImage { .. } => "DiskOverride::path",
            Self::ChangedImage { .. } => "DiskOverride::changed",
            Self::DiskLayer { .. } | Self::CompletedLayer { .. } => "DiskConfig::layer",
            Self::Tap { .. } | Self::Passt { .. } | Self::Nat { .. } | Self::ForwardedPorts { .. } => {
                "Overrides::networks"
            }
            Self::VsockSocket => "Overrides::vsock",
            Self::ConsoleSocket => "Overrides::console",
            Self::AllowedDirectory => "RestoreOptions::allowed",
            Self::AllowShared => "RestoreOptions::allow_shared",
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
            "no; give disk root a path (Overrides::disks), \
             or allow its directory (RestoreOptions::allowed)"
        );
    }

    #[test]
    fn only_a_resource_of_another_vm_needs_another() {
        let tap = Cure::Tap { id: "eth0".to_owned() };
        assert_eq!(tap.to_string(), "give network eth0 a tap (Overrides::networks)");
        let another = Cure::Another(Box::new(tap));
        assert_eq!(another.to_string(), "give network eth0 another tap (Overrides::networks)");
    }
}
