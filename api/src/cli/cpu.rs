//! `volt-vmm cpu`: CPU templates of hosts, in the form of Firecracker's custom templates.

use std::fs;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use volt_vmm::snapshot::features_missing_here;
use volt_vmm::{CpuTemplate, Error, cpu};

use super::Outcome;
use crate::failure::Failure;
use crate::output::print::print;
use crate::process::exit::Status;
use crate::rest::CpuConfig;

/// Make CPU templates, which let a snapshot move between hosts of several models, and check them
///
/// Dump each host, intersect the dumps, and boot with the result:
///     volt-vmm cpu dump --output HOST.json
///     volt-vmm cpu intersect HOST.json OTHER.json --output fleet.json
///     volt-vmm run --kernel vmlinux --cpu-template fleet.json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Cpu {
    #[command(subcommand)]
    command: CpuCommand,
}

#[derive(Debug, Subcommand)]
enum CpuCommand {
    Dump(Dump),
    Intersect(Intersect),
    Check(Check),
}

/// Print the CPU that this host's KVM offers guests, as a template that fixes all of it
///
/// Example: volt-vmm cpu dump --output HOST.json
#[derive(Debug, Args)]
struct Dump {
    #[command(flatten)]
    output: OutputArgs,
}

/// Print the template of all that several dumps have in common
///
/// Example: volt-vmm cpu intersect HOST.json OTHER.json --output fleet.json
#[derive(Debug, Args)]
struct Intersect {
    /// Dumps of hosts, by `volt-vmm cpu dump`
    #[arg(required = true, value_name = "DUMP")]
    dumps: Vec<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// Write the template to this file, which must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Check whether this host fits a template, or the guest of a snapshot
///
/// Exit status 0 if it does, 1 otherwise. Each feature that this host lacks is named on a line.
///
/// Example: volt-vmm cpu check fleet.json
#[derive(Debug, Args)]
struct Check {
    /// Template, as for `volt-vmm run --cpu-template`
    #[arg(required_unless_present = "snapshot")]
    template: Option<PathBuf>,

    /// Check whether the guest of this snapshot finds the features here that it saw before: a directory, or a
    /// state file
    #[arg(long, value_name = "PATH")]
    snapshot: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Fit {
    fits: bool,
    /// The features that this host lacks, by name.
    missing: Vec<String>,
}

impl Cpu {
    pub(crate) fn execute(self) -> Outcome {
        match self.command {
            CpuCommand::Dump(Dump { output }) => output.write(&cpu::dump()?)?,
            CpuCommand::Intersect(command) => command.execute()?,
            CpuCommand::Check(command) => return command.execute(),
        }
        Ok(Status::Success)
    }
}

impl Intersect {
    fn execute(self) -> Result<(), Failure> {
        let dumps = self.dumps.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
        self.output.write(&cpu::intersect(&dumps)?)
    }
}

impl Check {
    fn execute(self) -> Outcome {
        let mut missing = match &self.template {
            Some(path) => cpu::misfits(&read(path)?)?,
            None => Vec::new(),
        };
        if let Some(snapshot) = &self.snapshot {
            missing.extend(features_missing_here(snapshot)?);
        }
        missing.sort();
        missing.dedup();
        let fit = Fit { fits: missing.is_empty(), missing };
        print(&fit, self.json, text)?;
        Ok(if fit.fits { Status::Success } else { Status::Error })
    }
}

fn text(fit: &Fit) -> String {
    match fit.fits {
        true => "this host fits\n".to_owned(),
        false => format!("this host lacks:\n  {}\n", fit.missing.join("\n  ")),
    }
}

impl OutputArgs {
    fn write(&self, template: &CpuTemplate) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&CpuConfig::from(template));
        let text = text.map_err(|error| Failure::system("print the template", error))? + "\n";
        match &self.output {
            None => stdout()
                .write_all(text.as_bytes())
                .map_err(|error| Failure::system("print the template", error)),
            Some(path) => {
                let failed = |source| Error::File { act: "create", name: path.display().to_string(), source };
                let mut file = fs::File::create_new(path).map_err(failed)?;
                file.write_all(text.as_bytes()).map_err(|source| {
                    let _ = fs::remove_file(path); // nothing of it is left
                    Error::File { act: "write", name: path.display().to_string(), source }.into()
                })
            }
        }
    }
}

/// Reads a template from a file.
///
/// # Errors
/// The file cannot be read or decoded, or its template is invalid.
pub(super) fn read(path: &Path) -> Result<CpuTemplate, Failure> {
    let failed = |source| Error::File { act: "read CPU template", name: path.display().to_string(), source };
    let text = fs::read(path).map_err(failed)?;
    CpuConfig::template_of(&text)
        .map_err(|fault| Failure::CpuTemplate { path: path.to_owned(), problem: fault.to_string() })
}

#[cfg(test)]
mod tests {
    use volt_vmm::report;

    use super::*;
    use crate::rest::testing::Dir;

    const TEMPLATE: &str = r#"{"cpuid_modifiers":[{"leaf":"0x7","subleaf":"0x0","flags":1,
        "modifiers":[{"register":"ebx","bitmap":"0b0xxxxxxxxxxxxxxxx"}]}]}"#;

    #[test]
    fn template_is_written_once_and_read_again() {
        let dir = Dir::new();
        let (given, written) = (dir.path("given.json"), dir.path("written.json"));
        fs::write(&given, TEMPLATE).unwrap();
        let template = read(&given).unwrap();
        let output = OutputArgs { output: Some(written.clone()) };
        output.write(&template).unwrap();
        assert_eq!(read(&written).unwrap(), template);
        let error = report(&output.write(&template).unwrap_err());
        assert!(error.starts_with("cannot create") && error.contains("exists"), "{error}");
    }

    #[test]
    fn file_that_is_no_template_is_named_with_its_fault() {
        let dir = Dir::new();
        let path = dir.path("bad.json");
        let refused = |text: &str| {
            fs::write(&path, text).unwrap();
            report(&read(&path).unwrap_err())
        };
        assert!(refused("{").contains("bad.json: EOF"));
        assert!(refused(r#"{"vcpu_features":[]}"#).contains("vcpu_features: for aarch64 only"));
        let error = report(&read(&dir.path("missing.json")).unwrap_err());
        assert!(error.starts_with("cannot read CPU template"), "{error}");
    }

    #[test]
    fn misfits_have_a_line_each() {
        let fit = Fit { fits: false, missing: vec!["avx".to_owned(), "fma".to_owned()] };
        assert_eq!(text(&fit), "this host lacks:\n  avx\n  fma\n");
    }
}
