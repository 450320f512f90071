//! Firecracker's names: a type for each of its requests, which converts to the library's types and holds no
//! state. Fields that Firecracker lacks are volt-vmm's own.

pub(crate) mod balloon;
pub(crate) mod config_file;
pub(crate) mod cpu;
pub(crate) mod devices;
pub(crate) mod logger;
pub(crate) mod machine;
pub(crate) mod metadata;
pub(crate) mod metrics;
mod rate_limiter;
pub(crate) mod serial;
pub(crate) mod snapshot;
pub(crate) mod static_cpu;

/// Reads a field that Firecracker's clients may send as null.
fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + serde::Deserialize<'de>,
{
    Ok(<Option<T> as serde::Deserialize>::deserialize(deserializer)?.unwrap_or_default())
}

/// The library's and Firecracker's names of fields in refusals.
pub(crate) const FIELDS: &[(&str, &str)] = &[
    ("vcpus", "vcpu_count"),
    ("memory", "mem_size_mib"),
    ("balloon target_mib", "amount_mib"),
    ("vsock cid", "guest_cid"),
    ("metadata", "mmds"),
];

/// The same of a snapshot's options.
pub(crate) const SNAPSHOT_FIELDS: &[(&str, &str)] = &[
    ("kind", "snapshot_type"),
    ("packing", "compress"),
    ("max_pause", "max_pause_ms"),
    ("memory", "mem_file_path"),
];

#[cfg(test)]
mod testing {
    use std::fmt::Debug;

    use proptest::prelude::Strategy;
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use volt_vmm::FileRef;

    pub(super) fn files() -> impl Strategy<Value = Option<FileRef>> {
        proptest::option::of("/[a-z]{1,8}".prop_map(|path| FileRef::from(&path)))
    }

    /// Writes a configuration as a body and reads it again.
    pub(super) fn through_a_body<C: Clone, B>(config: &C) -> B
    where
        B: From<C> + Serialize + DeserializeOwned + PartialEq + Debug,
    {
        let body = B::from(config.clone());
        let read = serde_json::from_str(&serde_json::to_string(&body).unwrap()).unwrap();
        assert_eq!(read, body);
        read
    }
}
