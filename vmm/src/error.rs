//! The library's error. Every variant names the act and the object. Its source tells the cause, which its own
//! text never repeats: [`report`] prints the whole chain.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub mod cure;
pub mod invalid;

pub use cure::Cure;
pub use invalid::Invalid;

/// Result with volt-vmm's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field of a configuration or request has an invalid value.
    #[error("{field}: {problem}")]
    Config {
        /// The field, as the user writes it.
        field: &'static str,
        /// The fault, and the values that the field may have.
        problem: Invalid,
    },
    /// A file could not be opened, read, written or renamed.
    #[error("cannot {act} {name}")]
    File {
        /// The act, such as `open kernel`.
        act: &'static str,
        /// The file as the user named it.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The kernel image, initrd or command line cannot be loaded.
    #[error(transparent)]
    Payload(#[from] volt_kernel::Error),
    /// `/dev/kvm` is missing, closed to this user, or too old.
    #[error("cannot use /dev/kvm: {advice}")]
    NoKvm {
        /// The cure.
        advice: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// KVM refused a call.
    #[error("KVM refused {call}")]
    Kvm {
        /// The ioctl, as the KVM API names it, and its object.
        call: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The host refused something other than KVM: memory, a thread, an event.
    #[error("cannot {act}")]
    Host {
        /// The act and its object.
        act: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A snapshot is missing, damaged or of a newer version.
    #[error("snapshot {path}: {problem}")]
    Snapshot {
        /// The snapshot's directory, or the file in it.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// A snapshot names a resource of the host that the caller does not grant.
    #[error("snapshot {path}: asks for {resource}, which is not granted, because {reason}")]
    NotGranted {
        /// The snapshot's directory.
        path: PathBuf,
        /// The resource, such as `disk root: /dev/vg/root`.
        resource: String,
        /// Why the snapshot's author is not known to be this user.
        reason: String,
        /// How to grant or replace it.
        cures: Vec<Cure>,
    },
    /// A snapshot is intact, but its state does not fit into a VM of this host.
    #[error("cannot restore snapshot {path}")]
    Restore {
        /// The snapshot's state file.
        path: PathBuf,
        /// The refusal, which names the part.
        source: Box<Error>,
    },
    /// A snapshot needs CPU features that this host's KVM does not offer.
    #[error("snapshot {path}: taken on a CPU with features that this host lacks: {missing}")]
    HostCpu {
        /// The snapshot's directory.
        path: PathBuf,
        /// The features, by name.
        missing: String,
    },
    /// A part of the machine's state could not be decoded.
    #[error("cannot decode the state of {part}")]
    State {
        /// The device or vCPU.
        part: String,
        /// The cause, from serde.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The VM is not in a state that allows the act.
    #[error("cannot {act}: the VM {state}")]
    NotNow {
        /// The act.
        act: &'static str,
        /// The state of the VM, such as `has ended`.
        state: &'static str,
    },
    /// The guest would have been paused for too long. It runs on, and nothing is left of the act.
    #[error(
        "cannot {act} within a pause of {limit:?}: {problem}; allow a longer pause, or wait until the \
         guest does less"
    )]
    PauseTooLong {
        /// The act.
        act: &'static str,
        /// The longest pause that was allowed.
        limit: Duration,
        /// The measured times.
        problem: String,
    },
    /// The metadata is larger than its store allows. The store is as it was.
    #[error("metadata of {bytes} bytes exceeds the limit of {limit} bytes; store less, or raise the limit")]
    MetadataTooLarge {
        /// Bytes of the content as JSON.
        bytes: usize,
        /// The most bytes.
        limit: usize,
    },
    /// The act was cancelled ([`crate::Progress::cancel`]). Nothing is left of what it made.
    #[error("cancelled")]
    Cancelled,
    /// The guest ended, and neither powered off nor rebooted.
    #[error("the guest crashed: {0}")]
    Crashed(String),
}

impl Error {
    pub(crate) fn config(field: &'static str, problem: impl Into<Invalid>) -> Self {
        Self::Config { field, problem: problem.into() }
    }

    pub(crate) fn file(act: &'static str, name: impl ToString, source: impl Into<io::Error>) -> Self {
        Self::File { act, name: name.to_string(), source: source.into() }
    }

    pub(crate) fn host(act: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Host { act: act.into(), source: source.into() }
    }

    pub(crate) fn state(part: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::State { part: part.into(), source: Box::new(source) }
    }

    pub(crate) fn snapshot(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Snapshot { path: path.into(), problem: problem.into() }
    }
}

impl Error {
    /// Returns changes that would mend the error, apart from another value for the field that it names.
    #[must_use]
    pub fn cures(&self) -> Vec<Cure> {
        match self {
            Self::Config { problem, .. } => problem.cures(),
            Self::NotGranted { cures, .. } => cures.clone(),
            Self::Restore { source, .. } => source.cures(),
            _ => Vec::new(),
        }
    }
}

/// Formats an error, its sources and its cures on one line, outermost first: `cannot open kernel /k: No such
/// file or directory`.
#[must_use]
pub fn report(error: &(dyn StdError + 'static)) -> String {
    let mut chain = std::iter::successors(Some(error), |&error| error.source());
    let cures = chain.find_map(|error| error.downcast_ref()).map(Error::cures).unwrap_or_default();
    cure::with_cures(problem(error), &cures, Cure::to_string)
}

/// Formats an error and its sources without cures.
#[must_use]
pub fn problem(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Error, Invalid, StdError, report};

    #[test]
    fn report_has_the_cures_of_a_source() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot take the nightly snapshot")]
        struct Nightly(#[source] Error);
        let text = report(&Nightly(Error::config("balloon", Invalid::NoStatistics)) as &dyn StdError);
        assert!(text.starts_with("cannot take the nightly snapshot: balloon: trimming needs"), "{text}");
        assert!(text.ends_with("give the balloon statistics (BalloonConfig::statistics_interval)"), "{text}");
    }

    /// Names of the variants of [`super::Error`], as this file has them.
    fn variants() -> Vec<&'static str> {
        let code = include_str!("error.rs").split("pub enum Error {").nth(1).unwrap();
        let lines = code.lines().take_while(|line| *line != "}");
        let variants = lines
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(char::is_uppercase));
        variants.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap()).collect()
    }

    #[test]
    fn troubleshooting_has_every_variant_and_no_other() {
        let page = include_str!("../../docs/troubleshooting.md");
        let sections = page.split("\n### ").skip(1).map(|section| section.split_once('\n').unwrap());
        let (headings, texts): (Vec<_>, Vec<_>) = sections.unzip();
        let expected: Vec<_> = variants().iter().map(|name| format!("`{name}`")).collect();
        assert!(expected.len() > 10, "{expected:?}");
        assert_eq!(
            headings, expected,
            "docs/troubleshooting.md has a section for each variant, in this order"
        );
        let without_cure: Vec<_> =
            headings.iter().zip(&texts).filter(|(_, text)| !text.contains("**Cure")).collect();
        assert!(without_cure.is_empty(), "sections without a cure: {without_cure:?}");
    }
}
