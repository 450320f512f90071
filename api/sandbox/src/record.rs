//! Records of VMs with names, as `volt-vmm` prints and keeps them.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The socket of the VM's vsock in its run directory.
const VSOCK: &str = "vsock";
/// The record in the run directory. It has the variables of the main process, which no command prints.
const RECORD: &str = "vm.json";

/// One VM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Record {
    /// 12 hexadecimal digits, which no later VM of the name has.
    pub(crate) id: String,
    pub(crate) name: String,
    api_socket: PathBuf,
    /// The main process, if the VM runs an image.
    pub(crate) main: Option<Main>,
    /// The state, as `inspect` prints it.
    #[serde(default)]
    state: String,
}

/// The main process: further commands have its variables, working directory and user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Main {
    /// `NAME=VALUE` each.
    pub(crate) env: Vec<String>,
    pub(crate) cwd: String,
    pub(crate) user: String,
}

impl Record {
    /// The socket of the VM's vsock.
    pub(crate) fn vsock(&self) -> PathBuf {
        self.directory().join(VSOCK)
    }

    /// The record with all that is kept of the VM.
    ///
    /// # Errors
    /// The run directory has none, or the VM's API socket is elsewhere.
    pub(crate) fn whole(self) -> Result<Self, String> {
        if self.directory().file_name().is_none_or(|directory| directory != &*self.name) {
            return Err(format!("its API socket {} is not in its directory", self.api_socket.display()));
        }
        let path = self.directory().join(RECORD);
        let read = std::fs::read(&path).map_err(|error| error.to_string());
        let read = read.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
        read.map_err(|problem| format!("cannot read {}: {problem}", path.display()))
    }

    /// Whether the directory is gone, as after the end of a VM that leaves nothing.
    pub(crate) fn is_gone(&self) -> bool {
        !self.directory().exists()
    }

    /// Whether the VM has ended, by `inspect`.
    pub(crate) fn is_over(&self) -> bool {
        self.state == "ended"
    }

    fn directory(&self) -> &Path {
        self.api_socket.parent().unwrap_or(Path::new("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_record_is_understood_with_fields_that_are_new() {
        let text = r#"{"id":"0123456789ab","name":"web","created":"2026-01-01T00:00:00Z","pid":7,
            "api_socket":"/run/volt-vmm/web/api.sock","origin":{"image":"i"},"removed_at_end":false,
            "main":{"is_terminal":false,"is_interactive":false,"cwd":"/","user":"","new":1}}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!((&*record.id, &*record.name), ("0123456789ab", "web"));
        assert_eq!(record.vsock(), Path::new("/run/volt-vmm/web/vsock"));
        assert_eq!(record.main, Some(Main { cwd: "/".to_owned(), ..Main::default() }));
        let child = r#"{"id":"0","name":"web-1","api_socket":"/r/web-1/api.sock","origin":{"fork":"web"}}"#;
        let child: Record = serde_json::from_str(child).unwrap();
        assert_eq!(child.main, None);
        let error = child.whole().unwrap_err();
        assert!(error.starts_with("cannot read /r/web-1/vm.json: No such file"), "{error}");
    }
}
