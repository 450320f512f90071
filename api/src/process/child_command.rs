//! The command line of a fork's child.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use volt_vmm::internal::paths::OWN_PROGRAM;
use volt_vmm::sandbox::ProgramPattern;
use volt_vmm::{Error, Result};

use crate::process::confinement_choice::ConfinementChoice;

/// The name of a child's program for itself.
pub(crate) const CHILD_NAME: &str = "volt-vmm";
/// The command of a fork's child.
pub(crate) const FORKED: &str = "forked";

/// Returns the arguments of a child of this process. Their order is fixed, so that the child recognizes them
/// without clap, whose set-up takes longer than exec.
pub(crate) fn child_arguments(api_socket: &Path, id: &str, confinement: &str) -> [OsString; 7] {
    let socket = api_socket.as_os_str();
    let [command, api, name, option] = [FORKED, "--api-socket", "--id", "--confinement"].map(AsRef::as_ref);
    [command, api, socket, name, id.as_ref(), option, confinement.as_ref()].map(OsStr::to_owned)
}

/// Returns the pattern of all children of a process with this confinement. The starter, which the guest does
/// not reach, checks it: the guest of a process that was taken over cannot get a child with less confinement.
///
/// # Errors
/// As [`confinement_of_child`].
pub(crate) fn child_pattern(own: &ConfinementChoice) -> Result<ProgramPattern> {
    let arguments = child_arguments("".as_ref(), "", &confinement_of_child(own)?);
    let arguments = arguments.iter().map(|argument| (!argument.is_empty()).then_some(argument.as_os_str()));
    Ok(ProgramPattern::new(OWN_PROGRAM, arguments).named(CHILD_NAME))
}

/// Returns the confinement of a child as an argument.
///
/// # Errors
/// [`Error::Config`] if a path in it is not UTF-8.
pub(crate) fn confinement_of_child(own: &ConfinementChoice) -> Result<String> {
    let text = serde_json::to_string(&own.of_child());
    text.map_err(|error| Error::Config { field: "confine", problem: error.to_string().into() })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn child_of_a_strict_process_has_its_bounds_from_the_start() {
        let text = confinement_of_child(&ConfinementChoice {
            strict: Some(Default::default()),
            ..ConfinementChoice::default()
        })
        .unwrap();
        let read: ConfinementChoice = serde_json::from_str(&text).unwrap();
        assert!(read.is_on && read.is_child && read.strict.unwrap().bounds.from_start, "{text}");
    }

    #[test]
    fn path_that_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt;

        let mut choice = ConfinementChoice { strict: Some(Default::default()), ..Default::default() };
        choice.add_socket(&PathBuf::from(OsString::from_vec(vec![b'/', 0xff])));
        let error = confinement_of_child(&choice).unwrap_err().to_string();
        assert!(error.contains("UTF-8"), "{error}");
    }
}
