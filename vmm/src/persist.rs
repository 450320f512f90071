//! The whole snapshot contract: what can be saved, and how it is put back in place.
//!
//! ```text
//!            save()                               restore(state)
//!  running ─────────> State ──> JSON ──> State ─────────────────> the same kind of object, newly made
//! ```
//!
//! `save` destructures its subject exhaustively, so that a new field does not compile until someone has decided whether
//! it is state.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, Result};

/// Something whose state outlives it.
pub trait Persist {
    /// The state, and nothing but the state: neither configuration nor handles to the host.
    type State: Serialize + DeserializeOwned;

    /// Reads the state out. The owner has been stopped: nothing changes during the call.
    ///
    /// # Errors
    /// What the host or KVM refused.
    fn save(&self) -> Result<Self::State>;

    /// Puts a saved state into an object that was newly made with the same configuration. The state is only borrowed:
    /// it is decoded once and restored any number of times.
    ///
    /// # Errors
    /// What the host or KVM refused. The object is then half restored and must be dropped.
    fn restore(&mut self, state: &Self::State) -> Result<()>;
}

/// State that is encoded and not looked into.
pub type Blob = Box<RawValue>;

/// [`Persist`] without its type, for collections of different devices.
pub trait PersistBlob {
    /// [`Persist::save`], encoded. `part` names the object in errors.
    ///
    /// # Errors
    /// As [`Persist::save`], and when the state cannot be encoded.
    fn save_blob(&self, part: &str) -> Result<Blob>;

    /// [`Persist::restore`] from what [`PersistBlob::save_blob`] gave.
    ///
    /// # Errors
    /// As [`Persist::restore`], and when the state cannot be decoded.
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

/// The state of something that has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoState {}

/// Bytes that are written as base64: blobs with a layout of the CPU's or KVM's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        use base64::Engine;
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use base64::Engine;
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("base64 text")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Bytes, E> {
                base64::engine::general_purpose::STANDARD.decode(text).map(Bytes).map_err(E::custom)
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
        let bytes = Bytes((0..=255).collect());
        let text = serde_json::to_string(&bytes).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), bytes);
        assert!(serde_json::from_str::<Bytes>("\"not base64!\"").is_err());
        assert!(serde_json::from_str::<Bytes>("7").is_err());
    }
}
