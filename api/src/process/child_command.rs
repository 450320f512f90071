//! The command line of a fork's child.

use std::ffi::OsString;
use std::path::Path;

use volt_vmm::internal::paths::OWN_PROGRAM;
use volt_vmm::sandbox::ProgramPattern;

use crate::process::confinement_choice::ConfinementChoice;

/// The command of a fork's child.
pub(crate) const FORKED: &str = "forked";

/// Returns the arguments of a child of this process. Their order is fixed, so that the child recognizes them
/// without clap, whose set-up takes longer than exec.
pub(crate) fn child_arguments(api_socket: &Path, id: &str, confinement: &str) -> [OsString; 7] {
    let text = OsString::from;
    let confinement = [text("--confinement"), text(confinement)];
    let [option, value] = confinement;
    [text(FORKED), text("--api-socket"), api_socket.into(), text("--id"), text(id), option, value]
}

/// Returns the pattern of all children of a process with this confinement. The starter, which the guest does
/// not reach, checks it: the guest of a process that was taken over cannot get a child with less confinement.
pub(crate) fn child_pattern(own: &ConfinementChoice) -> ProgramPattern {
    let arguments = child_arguments("".as_ref(), "", &confinement_of_child(own));
    let any = |argument: &OsString| argument.is_empty();
    ProgramPattern::new(
        OWN_PROGRAM,
        arguments.iter().map(|argument| (!any(argument)).then_some(argument.as_os_str())),
    )
}

/// Returns the confinement of a child as an argument.
pub(crate) fn confinement_of_child(own: &ConfinementChoice) -> String {
    serde_json::to_string(&own.of_child()).expect("it is a tree of texts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_of_a_strict_process_has_its_bounds_from_the_start() {
        let text = confinement_of_child(&ConfinementChoice {
            strict: Some(Default::default()),
            ..ConfinementChoice::default()
        });
        let read: ConfinementChoice = serde_json::from_str(&text).unwrap();
        assert!(read.is_on && read.strict.unwrap().bounds.from_start, "{text}");
    }
}
