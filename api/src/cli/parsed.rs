//! Parses command lines.

use std::ffi::OsString;
use std::io::Write;

use clap::{CommandFactory, Parser};

use crate::messages::harmless;

/// Most columns of help.
pub(super) const WIDTH: usize = 110;

/// Parses a command line. After an error, help or a version, prints it and ends the process.
pub(super) fn parsed<T: Parser>(arguments: Vec<OsString>) -> T {
    T::try_parse_from(&arguments).unwrap_or_else(|answer| {
        let answer = whole::<T>().try_get_matches_from(arguments).err().unwrap_or(answer);
        let text = harmless(&answer.render().to_string());
        // The process ends, whoever does not read.
        let _ = match answer.use_stderr() {
            true => std::io::stderr().write_all(text.as_bytes()),
            false => std::io::stdout().write_all(text.as_bytes()),
        };
        std::process::exit(answer.exit_code())
    })
}

/// The definition of a command line with the options of all commands. The derived one defers those of a
/// command until it is named, so that texts about the others, such as the list of commands, lack words.
pub(super) fn whole<T: CommandFactory>() -> clap::Command {
    T::command().mut_subcommands(|command| {
        // A command that is built before its parent takes no width from it.
        let mut command = command.max_term_width(WIDTH);
        command.build();
        command
    })
}
