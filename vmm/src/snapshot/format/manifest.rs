//! `state.json`: its versions, its checksum, its metadata.
//!
//! ```text
//! {"crc64":"0123456789abcdef","version":4,"arch":"x86_64","metadata":{…},"config":{…},"machine":{…}}
//! `------- 27 bytes --------'`------------------- what the checksum covers ------------------------'
//! ```
//!
//! A state file that names anything on the host ends with a mark of the user that wrote it,
//! `,"mark":"<64 hex digits>"}`. The mark is an HMAC-SHA-256 of the bytes between the checksum and it (see
//! [`crate::snapshot::opened::grant`]).
//!
//! The first 27 bytes are compared literally; the CRC-64/ECMA-182 of every byte after them is checked before
//! anything is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::crc::CRC;
use super::digest;
use crate::config::{DiskContent, IrqchipKind, VmConfig};
use crate::error::{Error, Result};
use crate::kvm::host;
use crate::kvm::host::HostIdentity;
use crate::machine::MachineState;
use crate::snapshot::{DIFF_FILE, MEMORY_FILE, PACK_FILE};
use crate::store::dir::random_hex;

/// The format version that this volt-vmm writes. It reads every older one too.
pub const VERSION: u32 = 4;
/// The first version that names the place of the irqchip.
const VERSION_OF_IRQCHIP: u32 = 2;
/// The first version whose guests may have a generation device.
const VERSION_OF_VMGENID: u32 = 4;
/// The only supported architecture.
pub const ARCH: &str = "x86_64";

const HEAD: &str = "{\"crc64\":\"";
const HEAD_END: &str = "\",";
const DIGITS: usize = 16;
/// The text before the digits of a mark, and their number.
const MARK: &str = ",\"mark\":\"";
const MARK_DIGITS: usize = 64;
/// Bytes before the checksummed part.
const HEAD_LEN: usize = HEAD.len() + DIGITS + HEAD_END.len();

/// A snapshot's metadata, readable without its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Metadata {
    /// 128 random bits, 32 hex digits.
    pub id: String,
    /// Time of the snapshot, RFC 3339 in UTC.
    pub created: String,
    /// Guest memory in bytes, which is the length of the memory file.
    pub memory_bytes: u64,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Version of the volt-vmm that took the snapshot.
    pub volt_vmm: String,
    /// The host of the snapshot.
    pub host: HostIdentity,
    /// Digest of the features that the host's KVM offered ([`host::feature_digest`]). Absent before format
    /// version 3, and if KVM did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_features: Option<String>,
    /// Digest of all of memory: 16 hex digits (`snapshot::digest`). Absent in a diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_digest: Option<String>,
    /// The memory file that belongs to this state. Absent before version 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_file: Option<MemoryFile>,
    /// The base, if the snapshot is a diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseSnapshot>,
    /// Digests and times of the images of disks without a layer, by disk id. Absent before version 3.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub disks: BTreeMap<String, DiskContent>,
    /// Digests of the disks' layers, by disk id: 16 hex digits over the base, the layer's id and its list of
    /// clusters. The clusters' data is not covered. Absent before version 3 and in early snapshots of version
    /// 3.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<String, String>,
    /// The note of the program that took the snapshot ([`crate::SnapshotOptions::note`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<serde_json::Value>,
}

/// The kind of a snapshot's memory file, with a digest if opening the file can check it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum MemoryFile {
    /// `memory.snap`. Opening it checks its length. [`Metadata::memory_digest`] covers its content.
    Raw,
    /// `memory.pack` with this digest: 32 hex digits.
    Pack(String),
    /// `memory.diff` with this checksum of its list of pages and of their digest: 16 hex digits.
    Diff(String),
}

impl MemoryFile {
    /// A pack, identified by its digest.
    pub(crate) fn pack(digest: u128) -> Self {
        Self::Pack(format!("{digest:032x}"))
    }

    /// A diff, identified by the checksum of its list.
    pub(crate) fn diff(checksum: u64) -> Self {
        Self::Diff(format!("{checksum:016x}"))
    }
}

impl std::fmt::Display for MemoryFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Raw => write!(f, "a {MEMORY_FILE}"),
            Self::Pack(digest) => write!(f, "a {PACK_FILE} with digest {digest}"),
            Self::Diff(checksum) => write!(f, "a {DIFF_FILE} with checksum {checksum}"),
        }
    }
}

/// The snapshot whose memory a diff is relative to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseSnapshot {
    /// The base's `memory_digest`.
    pub memory_digest: String,
    /// The base's directory when the diff was taken. If it is gone, a directory of that name beside the
    /// diff's is tried.
    pub path: PathBuf,
}

impl BaseSnapshot {
    /// The snapshot at `path`, with this digest of its memory.
    pub(crate) fn new(digest: u64, path: &Path) -> Self {
        let path = crate::paths::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self { memory_digest: digest::format(digest), path }
    }

    /// The digest as a number; 0 if it is malformed, which matches only memory that was never written.
    pub(crate) fn digest(&self) -> u64 {
        digest::parse(&self.memory_digest)
    }
}

impl Metadata {
    /// Metadata of a snapshot taken now, on this host.
    pub(crate) fn of(config: &VmConfig) -> Result<Self> {
        Ok(Self {
            id: random_hex()?,
            created: rfc3339(SystemTime::now()),
            memory_bytes: config.memory_bytes(),
            vcpus: config.vcpus,
            volt_vmm: env!("CARGO_PKG_VERSION").to_owned(),
            host: HostIdentity::current(),
            host_features: host::feature_digest().ok(),
            memory_digest: None,
            memory_file: None,
            base: None,
            disks: BTreeMap::new(),
            layers: BTreeMap::new(),
            note: None,
        })
    }
}

/// The file without its checksum.
#[derive(Debug, Serialize)]
struct ManifestBody<'a> {
    version: u32,
    arch: &'static str,
    metadata: &'a Metadata,
    config: &'a VmConfig,
    machine: &'a MachineState,
}

/// The fields that tell why a file cannot be decoded as a whole.
#[derive(Debug, Deserialize)]
struct Versioned<'a> {
    version: u32,
    #[serde(borrow)]
    arch: std::borrow::Cow<'a, str>,
}

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    #[serde(rename = "crc64")]
    _crc64: String,
    pub(crate) version: u32,
    arch: String,
    pub(crate) metadata: Metadata,
    pub(crate) config: VmConfig,
    pub(crate) machine: MachineState,
    #[serde(default, rename = "mark")]
    _mark: Option<String>,
}

/// Encodes a state file. `mark` makes the mark of the bytes between checksum and mark, if the file gets one.
///
/// # Errors
/// The mark fails, or the state has no JSON.
pub(crate) fn encode(
    metadata: &Metadata,
    config: &VmConfig,
    machine: &MachineState,
    mark: impl FnOnce(&[u8]) -> Result<Option<String>>,
) -> Result<Vec<u8>> {
    let mut body =
        serde_json::to_vec(&ManifestBody { version: VERSION, arch: ARCH, metadata, config, machine })
            .map_err(|source| Error::state("the machine", source))?;
    body.remove(0); // the opening brace stands before the checksum
    let brace = body.pop();
    if let Some(mark) = mark(&body)? {
        body.extend(format!("{MARK}{mark}\"").into_bytes());
    }
    body.extend(brace);
    let mut file = format!("{HEAD}{:016x}{HEAD_END}", CRC.checksum(&body)).into_bytes();
    file.extend_from_slice(&body);
    Ok(file)
}

/// Returns the marked bytes of a state file, and the mark. The mark is last, so no byte after it is unmarked.
pub(crate) fn marked(file: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let body = file.get(HEAD_LEN..)?.strip_suffix(b"\"}")?;
    let (body, digits) = body.split_at_checked(body.len().checked_sub(MARK_DIGITS)?)?;
    let digit = |digit: &u8| char::from(*digit).to_digit(16);
    let bytes = digits.chunks(2).map(|pair| Some((digit(&pair[0])? << 4 | digit(&pair[1])?) as u8));
    Some((body.strip_suffix(MARK.as_bytes())?, bytes.collect::<Option<_>>()?))
}

/// Checks the start of a state file. Returns the digits of its checksum.
///
/// # Errors
/// The fault, in words.
pub(crate) fn has_head(file: &[u8]) -> std::result::Result<&[u8], String> {
    if file.is_empty() {
        return Err("is empty".to_owned());
    }
    let head = file.get(..HEAD_LEN).ok_or_else(|| format!("is cut off after {} bytes", file.len()))?;
    let (start, rest) = head.split_at(HEAD.len());
    let (digits, end) = rest.split_at(DIGITS);
    if start == HEAD.as_bytes() && end == HEAD_END.as_bytes() {
        return Ok(digits);
    }
    Err("does not begin like a volt-vmm state file".to_owned())
}

/// Decodes a state file.
///
/// # Errors
/// The fault, in words.
pub(crate) fn decode(file: &[u8]) -> std::result::Result<Manifest, String> {
    let digits = has_head(file)?;
    let computed = format!("{:016x}", CRC.checksum(&file[HEAD_LEN..]));
    if digits != computed.as_bytes() {
        return Err(format!(
            "is damaged or cut off: its checksum is {computed}, and the file says {}",
            String::from_utf8_lossy(digits).escape_default()
        ));
    }
    let text =
        std::str::from_utf8(file).map_err(|_| "has a valid checksum but is not UTF-8 text".to_owned())?;
    let not_json = |error: serde_json::Error| format!("has a valid checksum but cannot be decoded: {error}");
    // An intact file takes one pass. Another version may have any form, except for its number.
    let mut manifest = serde_json::from_str::<Manifest>(text);
    let versioned = match &manifest {
        Ok(Manifest { version, arch, .. }) => Versioned { version: *version, arch: arch.as_str().into() },
        Err(_) => serde_json::from_str(text).map_err(not_json)?,
    };
    if versioned.version > VERSION {
        return Err(format!(
            "has format version {}; this volt-vmm {} reads versions up to {VERSION}: restore it with a newer \
             volt-vmm",
            versioned.version,
            env!("CARGO_PKG_VERSION")
        ));
    }
    if versioned.arch != ARCH {
        return Err(format!("is of architecture {}; this volt-vmm runs {ARCH} guests", versioned.arch));
    }
    if let Ok(Manifest { version, config, .. }) = &mut manifest {
        if *version < VERSION_OF_IRQCHIP {
            config.irqchip = IrqchipKind::Kernel;
        }
        if *version < VERSION_OF_VMGENID {
            config.vmgenid = false;
        }
    }
    manifest.map_err(not_json)
}

/// Formats seconds since 1970 as `2026-11-21T12:00:00Z`, by the arithmetic of the proleptic Gregorian
/// calendar in eras of 400 years.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of year 0, so that the leap day comes last in its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The error for a diff whose base is missing.
pub(crate) fn base_is_missing(snapshot: &Path, base: &Path) -> Error {
    Error::snapshot(snapshot, format!("is a diff, and its base {} is not there", base.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn checksum_is_crc_64_ecma_182() {
        assert_eq!(CRC.checksum(b"123456789"), 0x6c40_df5f_0b49_7347);
    }

    #[test]
    fn times_are_rfc_3339() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_262_400, "2026-11-21T12:00:00Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    fn sealed(body: &str) -> Vec<u8> {
        format!("{HEAD}{:016x}{HEAD_END}{body}", CRC.checksum(body.as_bytes())).into_bytes()
    }

    #[test]
    fn flipped_bit_or_truncation_is_noticed() {
        let good = sealed(r#""version":1,"arch":"x86_64","rest":"of it"}"#);
        for byte in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                let problem = decode(&bad).unwrap_err();
                assert!(
                    problem.contains("checksum is") || problem.contains("does not begin"),
                    "{byte}.{bit}: {problem}"
                );
            }
            let problem = decode(&good[..byte]).unwrap_err();
            assert!(problem.contains("cut off") || problem.contains("empty"), "{byte}: {problem}");
        }
    }

    #[test]
    fn mark_is_found_only_at_the_end() {
        let digits = "0a".repeat(32);
        let file = sealed(&format!(r#""version":3,"x":[]{MARK}{digits}"}}"#));
        assert_eq!(marked(&file), Some((&br#""version":3,"x":[]"#[..], vec![10; 32])));
        for body in [
            r#""version":3}"#.to_owned(),
            format!(r#""version":3{MARK}{digits}","more":1}}"#),
            format!(r#""version":3{MARK}{digits}" }}"#),
            format!(r#""version":3{MARK}{}"}}"#, &digits[2..]),
            format!(r#""version":3{MARK}{}"}}"#, "zz".repeat(32)),
            format!(r#""mark":"{digits}"}}"#),
        ] {
            assert_eq!(marked(&sealed(&body)), None, "{body}");
        }
        assert_eq!(marked(b""), None);
    }

    #[test]
    fn another_version_or_architecture_is_refused_by_name() {
        let problem = decode(&sealed(r#""version":99,"arch":"x86_64","new":{}}"#)).unwrap_err();
        assert!(problem.contains("format version 99") && problem.contains("newer volt-vmm"), "{problem}");
        let problem = decode(&sealed(r#""version":1,"arch":"aarch64"}"#)).unwrap_err();
        assert!(problem.contains("aarch64"), "{problem}");
        let problem = decode(&sealed(r#""version":1,"arch":"x86_64","metadata":7}"#)).unwrap_err();
        assert!(problem.contains("metadata") || problem.contains("struct Metadata"), "{problem}");
    }
}
