//! Firecracker's request to load a snapshot, in volt-vmm's own terms.

use volt_vmm::{ChangedImages, HugePages};

use super::names::snapshot::{GivenMemory, LoadSnapshot, merge_overrides};
use crate::process::jail;
use crate::rest::error::Fault;
use crate::rest::snapshots::SnapshotToRestore;

impl TryFrom<LoadSnapshot> for SnapshotToRestore {
    type Error = Fault;

    /// # Errors
    /// The memory is named twice, or a file is to be waited for.
    fn try_from(request: LoadSnapshot) -> Result<Self, Fault> {
        let GivenMemory { file, handler, patience } = request.memory()?;
        // Firecracker's clients move a snapshot from jail to jail. Nothing is in a jail that its owner has
        // not put there, and nothing leads out of it.
        let grants_jail = jail::is_around() && (file.is_some() || handler.is_some());
        Ok(Self {
            memory_path: file,
            memory_handler: handler,
            handler_patience: patience,
            grants_jail,
            refuses_huge_pages_of_a_file: true,
            clock: request.clock_mode(),
            rewindable: request.tracks_dirty_pages(),
            path: request.snapshot_path,
            paused: !request.resume_vm,
            require_agent: false,
            overrides: merge_overrides(request.overrides, request.network_overrides, request.vsock_override),
            allow_paths: request.allow_paths,
            allow_shared: request.allow_shared,
            unpack: request.unpack,
            pager: request.pager,
            isolate_base: request.isolate_base,
            huge_pages: request.huge_pages.map(HugePages::from),
            record: request.record,
            prefetch: request.prefetch,
            // Firecracker checks no disk, and its clients expect no refusal.
            changed_images: ChangedImages::Warn,
        })
    }
}

#[cfg(test)]
mod tests {
    use volt_vmm::ClockMode;

    use super::*;

    fn read(fields: &str) -> SnapshotToRestore {
        let text = format!(r#"{{"snapshot_path":"/s"{fields}}}"#);
        serde_json::from_str::<LoadSnapshot>(&text).unwrap().try_into().unwrap()
    }

    #[test]
    fn each_of_two_names_of_a_choice_counts() {
        let plain = read("");
        assert!(!plain.rewindable && plain.paused && plain.clock == ClockMode::default());
        for name in ["track_dirty_pages", "enable_diff_snapshots"] {
            assert!(read(&format!(r#","{name}":true"#)).rewindable, "{name}");
            assert!(!read(&format!(r#","{name}":false"#)).rewindable, "{name}");
        }
        for field in [r#""clock_realtime":true"#, r#""clock":"realtime""#] {
            assert_eq!(read(&format!(",{field}")).clock, ClockMode::Realtime);
        }
    }

    #[test]
    fn huge_pages_by_firecrackers_names_replace_the_snapshots() {
        let kinds = [HugePages::None, HugePages::Transparent, HugePages::Hugetlb];
        for (name, kind) in ["None", "Transparent", "2M"].into_iter().zip(kinds) {
            assert_eq!(read(&format!(r#","huge_pages":"{name}""#)).huge_pages, Some(kind));
        }
        assert_eq!([read("").huge_pages, read(r#","huge_pages":null"#).huge_pages], [None; 2]);
        let unknown = r#"{"snapshot_path":"/s","huge_pages":"1G"}"#;
        let error = serde_json::from_str::<LoadSnapshot>(unknown).unwrap_err().to_string();
        assert!(error.contains("unknown variant `1G`"), "{error}");
    }
}
