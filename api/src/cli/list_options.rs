//! The options of `ls` for what is kept: images, snapshots and volumes.

use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::print::print;

/// How a list is printed
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ListArgs {
    /// Print the names only
    #[arg(short, long)]
    quiet: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    /// Prints a list: as JSON, as the names, one a line, or as the text of `table`.
    ///
    /// # Errors
    /// A write to standard output failed.
    pub(super) fn print<T: Serialize>(
        self,
        all: &Vec<T>,
        names: impl Fn(&T) -> Vec<String>,
        table: impl FnOnce(&Vec<T>) -> String,
    ) -> Result<(), Failure> {
        let lines = |all: &Vec<T>| all.iter().flat_map(names).map(|name| name + "\n").collect();
        print(all, self.json, |all| if self.quiet { lines(all) } else { table(all) })
    }
}
