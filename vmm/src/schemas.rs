//! Schemas of types that JSON has as text, for OpenAPI documents. Other types derive theirs.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::config::cpu::{Mask32, Mask64, Number};
use crate::config::{FileRef, SocketPath};
use crate::snapshot::{Compression, RecordUntil};

macro_rules! text {
    ($type:ty, $description:literal, $example:literal) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(Type::String);
                let text = text.description(Some($description)).examples([$example]);
                text.build().into()
            }
        }

        impl ToSchema for $type {}
    };
}

text!(FileRef, "Path of a file on the host.", "/var/lib/vms/vmlinux");
text!(SocketPath, "Path of a unix socket on the host.", "/run/vms/web.vsock");
text!(Compression, "`lz4`, or `zstd:LEVEL` with a level from 1 to 22.", "zstd:9");
text!(RecordUntil, "`console`, `vsock`, `api`, or milliseconds such as `500ms`.", "console");
text!(Number, "A number of 32 bits: hexadecimal, binary after `0b`, or decimal.", "0x7");
text!(Mask32, "A bit as `0`, `1` or `x` (kept), the highest first; at most 32.", "0b0xx1");
text!(Mask64, "A bit as `0`, `1` or `x` (kept), the highest first; at most 64.", "0b0xx1");
