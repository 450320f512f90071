//! The library's cures of errors in the words of the command line and of REST.

use volt_vmm::{Cure, cure, problem};

use crate::failure::Failure;

/// Formats a cure with the option of the command line that makes it.
pub(crate) fn as_option(cure: &Cure) -> String {
    cure.at(&match cure {
        Cure::DiskPath { id } => format!("--disk id={id},path=PATH"),
        Cure::DiskLayer { id } => format!("run --disk id={id},path=PATH,layer=PATH"),
        Cure::Tap { id } => format!("--net id={id},tap=NAME"),
        Cure::Passt { id } => format!("--net id={id},passt"),
        Cure::ForwardedPorts { id } => format!("--net id={id},passt,forward=HOSTPORT:GUESTPORT"),
        Cure::VsockSocket => "--vsock socket=PATH".to_owned(),
        Cure::ConsoleSocket => "--console SOCKET".to_owned(),
        Cure::AllowedDirectory => "--allow-path DIR".to_owned(),
        Cure::BalloonStatistics => "run --balloon statistics=SECONDS".to_owned(),
        Cure::Compression => "--compress".to_owned(),
        Cure::LeaveOut { field } => format!("--{}", field.replace('_', "-")),
        _ => return cure.to_string(),
    })
}

/// Formats a cure with the field of a request that makes it.
pub(crate) fn as_field(cure: &Cure) -> String {
    cure.at(match cure {
        Cure::DiskPath { .. } => "overrides.disks.path",
        Cure::DiskLayer { .. } => "layer_path",
        Cure::Tap { .. } => "overrides.networks.backend.tap",
        Cure::Passt { .. } => "overrides.networks.backend.passt",
        Cure::ForwardedPorts { .. } => "overrides.networks.backend.passt.forward",
        Cure::VsockSocket => "overrides.vsock.socket",
        Cure::ConsoleSocket => "overrides.console.socket",
        Cure::AllowedDirectory => "allow_paths",
        Cure::BalloonStatistics => "stats_polling_interval_s",
        Cure::Compression => "compress",
        Cure::LeaveOut { field } => field,
        _ => return cure.to_string(),
    })
}

impl Failure {
    /// Returns the cures of the library's error.
    pub(crate) fn cures(&self) -> Vec<Cure> {
        match self {
            Self::Vmm(error) => error.cures(),
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
        let problem = "balloon: trimming needs statistics, which tell what the guest can spare";
        assert_eq!(
            failure.report(as_option),
            format!("{problem}; give the balloon statistics (run --balloon statistics=SECONDS)")
        );
        assert_eq!(
            failure.report(as_field),
            format!("{problem}; give the balloon statistics (stats_polling_interval_s)")
        );
    }
}
