//! `volt-vmm help devices`: explains the keys of the options for devices, one a line.

use std::io::{Write as _, stdout};

use clap::Args;

use super::Outcome;
use super::devices::{BALLOON, DISK, NET, VSOCK};
use super::key_values::{OptionKey, explain};
use crate::failure::Failure;
use crate::process::exit::Status;

/// Explain the keys of --disk, --net, --vsock and --balloon
#[derive(Debug, Args)]
#[command(long_about = text())]
pub(crate) struct Devices;

impl Devices {
    pub(crate) fn execute(self) -> Outcome {
        stdout().write_all(text().as_bytes()).map_err(|error| Failure::system("print the help", error))?;
        Ok(Status::Success)
    }
}

/// An option, an example of it, and its keys.
const OPTIONS: [(&str, &str, &[OptionKey]); 4] = [
    ("--disk", "rootfs.img,ro or path=data.img,layer=mine.layer", DISK),
    ("--net", "user,forward=8080:80, nat, tap=tap0 or none", NET),
    ("--vsock", "cid=3", VSOCK),
    ("--balloon", "statistics=1,reporting", BALLOON),
];

fn text() -> String {
    let section = |(option, example, keys): &(&str, &str, &[OptionKey])| {
        format!("{option} takes keys with commas between them, such as {example}\n{}\n", explain(keys))
    };
    let sections: String = OPTIONS.iter().map(section).collect();
    format!(
        "{sections}LIMIT is AMOUNT[/MILLISECONDS][+BURST]: 10M is 10 MiB a second, 500/100+2000 is 500 in\n\
         100 ms and 2000 more once. A value in [brackets] is the default.\n\n\
         Example: volt-vmm run --kernel vmlinux --disk rootfs.img,ro --net user,forward=8080:80\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_a_line_and_old_spellings_have_none() {
        let text = text();
        for (option, _, keys) in OPTIONS {
            assert!(text.contains(&format!("{option} takes keys")), "{text}");
            for key in keys.iter().filter(|key| key.to_string() != "passt") {
                let is_of_key = |line: &&str| line.starts_with(&format!("  {key} "));
                assert!(text.lines().any(|line| is_of_key(&line)), "{key}: {text}");
            }
        }
        assert!(!text.contains("  passt "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
