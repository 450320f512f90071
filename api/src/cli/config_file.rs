//! Configuration files: volt-vmm's own form, and Firecracker's.

use std::path::Path;

use serde_json::Value;
use volt_vmm::{Error, VmConfig};

use super::cpu;
use crate::failure::Failure;
use crate::rest::{self, Draft, FIRECRACKER_FIELDS};

/// The content of a configuration file.
#[derive(Debug)]
pub(crate) enum ConfigFile {
    Own(VmConfig),
    /// With the parts that a `VmConfig` lacks. It has a boot source.
    Firecracker(Draft),
}

impl ConfigFile {
    /// Reads a file, whose keys tell its form.
    ///
    /// # Errors
    /// The file cannot be read or decoded, or asks for what volt-vmm lacks.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read(path).map_err(|source| Error::File {
            act: "read config file",
            name: path.display().to_string(),
            source,
        })?;
        let invalid = |source| Failure::ConfigFile { path: path.to_owned(), source };
        // Decoded twice, because a decoded value has lost its lines and columns.
        let keys: Value = serde_json::from_slice(&text).map_err(invalid)?;
        if !rest::ConfigFile::is_recognized_by(&keys) {
            return serde_json::from_slice(&text).map(Self::Own).map_err(invalid);
        }
        let file: rest::ConfigFile = serde_json::from_slice(&text).map_err(invalid)?;
        let custom = file.cpu_config.as_deref().map(cpu::read).transpose()?;
        let draft = Draft::of_file(file, custom).map_err(|fault| Failure::FirecrackersConfigFile {
            path: path.to_owned(),
            problem: fault.renamed(FIRECRACKER_FIELDS).to_string(),
        })?;
        Ok(Self::Firecracker(draft))
    }
}
