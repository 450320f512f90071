//! Values that the JSON mapping of protobuf writes in its own way.

/// Bytes, which are base64. Both alphabets are read, with and without padding.
pub mod base64 {
    use base64::Engine;
    use base64::alphabet::STANDARD;
    use base64::engine::DecodePaddingMode;
    use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD as PADDED};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    const READER: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );

    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&PADDED.encode(bytes.as_deref().unwrap_or_default()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        let Some(mut text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        if text.contains(['-', '_']) {
            text = text.replace('-', "+").replace('_', "/");
        }
        READER.decode(text).map(Some).map_err(D::Error::custom)
    }
}

/// 64-bit numbers, which are strings.
pub mod int64 {
    use serde::Serializer;

    pub fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }
}

/// Declares the JSON form of an enumeration, whose values are written by name and read by name or number.
macro_rules! names {
    ($module:ident, $($number:literal => $name:literal),+ $(,)?) => {
        /// Names of an enumeration's values.
        pub mod $module {
            use serde::de::Error;
            use serde::{Deserialize, Deserializer, Serializer};

            #[derive(Deserialize)]
            #[serde(untagged)]
            enum Given {
                Number(i32),
                Name(String),
            }

            #[allow(dead_code, reason = "each enumeration goes one way")]
            pub fn serialize<S: Serializer>(number: &i32, serializer: S) -> Result<S::Ok, S::Error> {
                match number {
                    $($number => serializer.serialize_str($name),)+
                    other => serializer.serialize_i32(*other),
                }
            }

            #[allow(dead_code, reason = "each enumeration goes one way")]
            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
                match Given::deserialize(deserializer)? {
                    Given::Number(number) => Ok(number),
                    Given::Name(name) => match name.as_str() {
                        $($name => Ok($number),)+
                        other => Err(D::Error::custom(format!("unknown value {other}"))),
                    },
                }
            }
        }
    };
}

names!(signal, 0 => "SIGNAL_UNSPECIFIED", 9 => "SIGNAL_SIGKILL", 15 => "SIGNAL_SIGTERM");
names!(
    file_type,
    0 => "FILE_TYPE_UNSPECIFIED",
    1 => "FILE_TYPE_FILE",
    2 => "FILE_TYPE_DIRECTORY",
    3 => "FILE_TYPE_SYMLINK",
);
names!(
    event_type,
    0 => "EVENT_TYPE_UNSPECIFIED",
    1 => "EVENT_TYPE_CREATE",
    2 => "EVENT_TYPE_WRITE",
    3 => "EVENT_TYPE_REMOVE",
    4 => "EVENT_TYPE_RENAME",
    5 => "EVENT_TYPE_CHMOD",
);
