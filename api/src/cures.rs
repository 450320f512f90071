//! The library's cures of errors in the words of the command line and of REST.

use volt_vmm::{Cure, cure, problem};

use crate::failure::Failure;

/// Formats a cure with the option of the command line that makes it.
pub(crate) fn as_option(cure: &Cure) -> String {
    option(cure).map_or_else(|| cure.to_string(), |option| cure.at(&option))
}

fn option(cure: &Cure) -> Option<String> {
    Some(match cure {
        // A fork of several children takes no overrides.
        Cure::Another(cure) => format!("fork --child SOCKET {}", option(cure)?),
        Cure::DiskPath { id } => format!("--disk id={id},path=PATH"),
        Cure::DiskLayer { id } => format!("run --disk id={id},path=PATH,layer=PATH"),
        Cure::CloneLayer { id } => format!("--disk id={id},layer=PATH"),
        Cure::FormerImage { id } => format!("--disk id={id},path=PATH"),
        Cure::ChangedImage { id } => format!("--disk id={id},changed=accept"),
        Cure::CompletedLayer { layer } => format!("run --disk path=PATH,layer={layer}"),
        Cure::Tap { id } => format!("--net id={id},tap=NAME"),
        Cure::Passt { id } => format!("--net id={id},passt"),
        Cure::Nat { id } => format!("--net id={id},nat"),
        Cure::ForwardedPorts { id } => format!("--net id={id},passt,forward=HOSTPORT:GUESTPORT"),
        Cure::VsockSocket => "--vsock socket=PATH".to_owned(),
        Cure::ConsoleSocket => "--console SOCKET".to_owned(),
        Cure::AllowedDirectory => "--allow-path DIR".to_owned(),
        Cure::AllowShared => "restore --allow-shared".to_owned(),
        Cure::BalloonStatistics => "run --balloon statistics=SECONDS".to_owned(),
        Cure::Compression => "--compress".to_owned(),
        Cure::LeaveOut { field } => format!("--{}", field.replace('_', "-")),
        _ => return None,
    })
}

/// Formats a cure with the field of a request that makes it.
pub(crate) fn as_field(cure: &Cure) -> String {
    field(cure).map_or_else(|| cure.to_string(), |field| cure.at(field))
}

/// Fields of a VM that boots have two names: Firecracker's, and that of `/v1` and the configuration file.
fn field(cure: &Cure) -> Option<&str> {
    Some(match cure {
        Cure::Another(cure) => field(cure)?,
        Cure::DiskPath { .. } | Cure::FormerImage { .. } => "overrides.disks.path",
        Cure::DiskLayer { .. } | Cure::CompletedLayer { .. } => {
            "devices.disks.layer of /v1/boot, layer_path of /drives"
        }
        Cure::CloneLayer { .. } => "overrides.disks.layer",
        Cure::ChangedImage { .. } => "overrides.disks.changed",
        Cure::Tap { .. } => "overrides.networks.backend.tap",
        Cure::Passt { .. } => "overrides.networks.backend.passt",
        Cure::Nat { .. } => "overrides.networks.backend.nat",
        Cure::ForwardedPorts { .. } => "overrides.networks.backend.passt.forward",
        Cure::VsockSocket => "overrides.vsock.socket",
        Cure::ConsoleSocket => "overrides.console.socket",
        Cure::AllowedDirectory => "allow_paths",
        Cure::AllowShared => "allow_shared of /snapshot/load",
        Cure::BalloonStatistics => {
            "devices.balloon.statistics_interval of /v1/boot, stats_polling_interval_s of /balloon"
        }
        Cure::Compression => "compress",
        Cure::LeaveOut { field } => field,
        _ => return None,
    })
}

impl Failure {
    /// Returns the cures of the library's error, also of one in a child.
    pub(crate) fn cures(&self) -> Vec<Cure> {
        match self {
            Self::Vmm(error) => error.cures(),
            Self::Child { cures, .. } => cures.clone(),
            _ => Vec::new(),
        }
    }

    /// Formats the failure, its sources and its cures on one line.
    pub(crate) fn report(&self, words: impl Fn(&Cure) -> String) -> String {
        cure::with_cures(problem(self), &self.cures(), words)
    }
}

#[cfg(test)]
mod tests {
    use volt_vmm::{Error, Invalid};

    use super::*;

    #[test]
    fn each_face_has_its_own_words() {
        let failure = Failure::from(Error::Config { field: "balloon", problem: Invalid::NoStatistics });
        let problem = "balloon: trimming needs the balloon's statistics, which tell how much memory the \
                       guest can spare";
        assert_eq!(
            failure.report(as_option),
            format!("{problem}; give the balloon statistics (run --balloon statistics=SECONDS)")
        );
        assert_eq!(
            failure.report(as_field),
            format!(
                "{problem}; give the balloon statistics (devices.balloon.statistics_interval of /v1/boot, \
                 stats_polling_interval_s of /balloon)"
            )
        );
    }

    #[test]
    fn changed_image_is_replaced_or_accepted() {
        let (image, difference) = ("/image".to_owned(), "it is longer".into());
        let problem = Invalid::ChangedImage { disk: "root".to_owned(), image, difference };
        assert_eq!(
            Failure::from(Error::Config { field: "disks", problem }).report(as_option),
            "disks: root: /image has changed since the snapshot: it is longer; give disk root a copy of the \
             image as it was at the snapshot (--disk id=root,path=PATH), or accept the image of disk root \
             as it is now (--disk id=root,changed=accept)"
        );
    }

    #[test]
    fn cure_of_a_fork_is_an_option_that_fork_takes() {
        let another = Cure::Another(Box::new(Cure::Tap { id: "eth0".to_owned() }));
        assert_eq!(
            as_option(&another),
            "give network eth0 another tap (fork --child SOCKET --net id=eth0,tap=NAME)"
        );
        assert_eq!(as_field(&another), "give network eth0 another tap (overrides.networks.backend.tap)");
    }
}
