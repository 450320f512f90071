//! Errors of the command line and the API, in addition to the library's [`volt_vmm::Error`].

use std::io;
use std::path::{Path, PathBuf};

use volt_vmm::Cure;

/// An error of the command line, of the API server's set-up or of the API client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An error of the library.
    #[error(transparent)]
    Vmm(#[from] volt_vmm::Error),
    /// The config file is no valid `VmConfig` in JSON. The source names field, line and column.
    #[error("config file {}", path.display())]
    ConfigFile { path: PathBuf, source: serde_json::Error },
    /// A part of a config file in Firecracker's form is invalid.
    #[error("config file {}: {problem}", path.display())]
    FirecrackersConfigFile { path: PathBuf, problem: String },
    /// A file with a CPU template is invalid.
    #[error("CPU template {}: {problem}", path.display())]
    CpuTemplate { path: PathBuf, problem: String },
    /// A system call failed.
    #[error("cannot {act}")]
    System { act: String, source: io::Error },
    /// The API socket cannot be used.
    #[error("API socket {}: {problem}", path.display())]
    Socket { path: PathBuf, problem: String },
    /// A child of a fork failed.
    #[error("child {}: {problem}", socket.display())]
    Child { socket: PathBuf, problem: String, cures: Vec<Cure> },
    /// A VM with a name cannot be used as asked.
    #[error("VM {}: {problem}", name.escape_debug())]
    Vm { name: String, problem: String },
    /// A snapshot with a name cannot be used as asked.
    #[error("snapshot {name}: {problem}")]
    Snapshot { name: String, problem: String },
    /// A volume with a name cannot be used as asked.
    #[error("volume {name}: {problem}")]
    Volume { name: String, problem: String },
    /// A run directory cannot be used.
    #[error("run directory {}: {problem}", path.display())]
    RunDirectory { path: PathBuf, problem: String },
    /// An image cannot be stored, found or removed.
    #[error(transparent)]
    Image(#[from] volt_image::Error),
    /// The error text from the server at the API socket.
    #[error("{0}")]
    Server(String),
    /// The act failed after a signal, which cancelled it if it could.
    #[error("interrupted: {problem}")]
    Interrupted { problem: String, signal: i32 },
}

impl Failure {
    /// Makes an error of a system call. `act` names act and object: `read config file /x.json`.
    pub(crate) fn system(act: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { act: act.into(), source: source.into() }
    }

    /// Makes an error of a part of the configuration, or of an option of the command line.
    pub(crate) fn config(field: &'static str, problem: impl Into<String>) -> Self {
        volt_vmm::Error::Config { field, problem: problem.into().into() }.into()
    }

    /// Makes an error of the child whose API socket is `socket`.
    pub(crate) fn child(socket: &Path, problem: impl Into<String>) -> Self {
        Self::Child { socket: socket.to_owned(), problem: problem.into(), cures: Vec::new() }
    }

    /// Makes an error of the VM of this name.
    pub(crate) fn vm(name: &str, problem: impl Into<String>) -> Self {
        Self::Vm { name: name.to_owned(), problem: problem.into() }
    }

    /// Makes an error of a run directory, or of a file in it.
    pub(crate) fn run_dir(path: &Path, problem: impl Into<String>) -> Self {
        Self::RunDirectory { path: path.to_owned(), problem: problem.into() }
    }

    /// Makes an error of the API socket at `path`.
    pub(crate) fn socket(path: &Path, problem: impl Into<String>) -> Self {
        Self::Socket { path: path.to_owned(), problem: problem.into() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Names of the variants of the enum `name`, as `code` has them.
    pub(crate) fn variants_in<'a>(code: &'a str, name: &str) -> Vec<&'a str> {
        let body = code.split(&format!("pub(crate) enum {name} {{\n")).nth(1).unwrap();
        let lines = body.lines().take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
        let variants = lines.filter(|line| line.starts_with(char::is_uppercase));
        variants.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap()).collect()
    }

    /// Cells of each row of the tables in `page`, without the heading's.
    pub(crate) fn table_rows(page: &str) -> impl Iterator<Item = Vec<&str>> {
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
        let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
        rows.skip_while(|row| !row[0].starts_with("---")).skip(1)
    }

    /// One error of each variant besides `Vmm`, with the capitals of the placeholders in the documentation.
    fn one_of_each() -> Vec<Failure> {
        let invalid = serde_json::from_str::<u8>("x").unwrap_err();
        vec![
            Failure::ConfigFile { path: "PATH".into(), source: invalid },
            Failure::FirecrackersConfigFile { path: "PATH".into(), problem: "KEY: …".into() },
            Failure::CpuTemplate { path: "PATH".into(), problem: "…".into() },
            Failure::system("ACT", io::ErrorKind::Other),
            Failure::socket(Path::new("PATH"), "…"),
            Failure::child(Path::new("PATH"), "…"),
            Failure::vm("NAME", "…"),
            Failure::Snapshot { name: "NAME".into(), problem: "…".into() },
            Failure::Volume { name: "NAME".into(), problem: "…".into() },
            Failure::run_dir(Path::new("PATH"), "…"),
            Failure::Image(volt_image::Error::Unknown("NAME".into())),
            Failure::Server("…".into()),
            Failure::Interrupted { problem: "…".into(), signal: libc::SIGINT },
        ]
    }

    #[test]
    fn troubleshooting_has_every_variant_with_its_cure() {
        let failures = one_of_each();
        let named = failures.iter().map(|failure| format!("{failure:?}"));
        let named: Vec<_> = named.map(|text| text.split([' ', '(']).next().unwrap().to_owned()).collect();
        let variants = variants_in(include_str!("failure.rs"), "Failure");
        // The headings of the page have the variants of `Vmm`; the library's tests compare them.
        let (vmm, own) = variants.split_first().unwrap();
        assert_eq!(*vmm, "Vmm");
        assert_eq!(named, own);

        let page = include_str!("../../docs/troubleshooting.md");
        let section = page.split("## Errors of the program around the library").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows: Vec<_> = table_rows(section).collect();
        let texts: Vec<_> = rows.iter().map(|row| row[0]).collect();
        let expected: Vec<_> = failures.iter().map(|failure| format!("`{}`", text_of(failure))).collect();
        assert_eq!(texts, expected);
        assert!(rows.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "{rows:?}");
    }

    /// The text of an error, `…` after it where sources or problems follow.
    fn text_of(failure: &Failure) -> String {
        match failure {
            Failure::ConfigFile { .. } | Failure::System { .. } => format!("{failure}: …"),
            _ => failure.to_string(),
        }
    }
}
