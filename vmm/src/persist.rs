//! The snapshot contract: saving an object's state, and restoring it in place.
//!
//! ```text
//!            save()                               restore(state)
//!  running ─────────> State ──> JSON ──> State ─────────────────> the same kind of object, newly made
//! ```
//!
//! `save` destructures its subject exhaustively, so a new field does not compile until its author decides
//! whether it is state.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// An object with state that a snapshot keeps.
pub trait Persist {
    /// The state alone, without configuration and host handles.
    type State: Serialize + DeserializeOwned;

    /// Returns the state. The VM is halted, so nothing changes during the call.
    ///
    /// # Errors
    /// Returns an error if the host or KVM refuses.
    fn save(&self) -> Result<Self::State>;

    /// Restores a saved state into an object newly made with the same configuration. A state is decoded once
    /// and restored any number of times.
    ///
    /// # Errors
    /// Returns an error if the host or KVM refuses. The object is partly restored then, and must be dropped.
    fn restore(&mut self, state: &Self::State) -> Result<()>;
}

/// Encoded state.
pub type Blob = Box<RawValue>;

/// [`Persist`] without its type, for collections of different devices.
pub trait PersistBlob {
    /// Saves and encodes the state ([`Persist::save`]). `part` names the object in errors.
    ///
    /// # Errors
    /// As [`Persist::save`], or if the state cannot be encoded.
    fn save_blob(&self, part: &str) -> Result<Blob>;

    /// Decodes and restores the result of [`PersistBlob::save_blob`] ([`Persist::restore`]).
    ///
    /// # Errors
    /// As [`Persist::restore`], or if the state cannot be decoded.
    fn restore_blob(&mut self, part: &str, state: &RawValue) -> Result<()>;
}

impl<T: Persist> PersistBlob for T {
    fn save_blob(&self, part: &str) -> Result<Blob> {
        serde_json::value::to_raw_value(&self.save()?).map_err(|source| Error::state(part, source))
    }

    fn restore_blob(&mut self, part: &str, state: &RawValue) -> Result<()> {
        let state = serde_json::from_str(state.get()).map_err(|source| Error::state(part, source))?;
        self.restore(&state)
    }
}

/// The state of an object without state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoState {}

/// Bytes written as base64: a layout of the CPU's or of KVM's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64Bytes(pub Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use base64::Engine;
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use base64::Engine;
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Base64Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("base64 text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Base64Bytes, E> {
                base64::engine::general_purpose::STANDARD.decode(text).map(Base64Bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_json_and_garbage_is_refused() {
        let bytes = Base64Bytes((0..=255).collect());
        let text = serde_json::to_string(&bytes).unwrap();
        assert_eq!(serde_json::from_str::<Base64Bytes>(&text).unwrap(), bytes);
        assert!(serde_json::from_str::<Base64Bytes>("\"not base64!\"").is_err());
        assert!(serde_json::from_str::<Base64Bytes>("7").is_err());
    }
}
