//! Size of the pages under guest memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Invalid};

/// MiB of a huge page.
pub(super) const HUGE_MIB: u64 = 2;

/// Size of the pages under guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Pages of 4 KiB. The fresh memory of a boot gets transparent huge pages if the host's policy for shared
    /// memory is `advise` or `always`.
    #[default]
    None,
    /// As `None`, and memory that a restored VM maps from a complete file may get transparent huge pages,
    /// too. Memory is a multiple of 2 MiB.
    Transparent,
    /// Pages of 2 MiB from the host's pool (hugetlbfs), for a boot and for memory that a memory handler
    /// fills. Other restores, and a fork's children, get pages of 4 KiB. Memory is a multiple of 2 MiB.
    #[serde(rename = "2M")]
    Hugetlb,
}

impl HugePages {
    const ALL: [Self; 3] = [Self::None, Self::Transparent, Self::Hugetlb];

    /// Whether it is the default, which files and requests leave out.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Returns the kind of a restored VM with `memory_mib` MiB, whose snapshot has this kind. `asked`
    /// overrides it. Memory that is mapped from a file has the file's pages, which are small.
    ///
    /// # Errors
    /// [`Error::Config`]: the memory cannot have what is asked for.
    pub(crate) fn restored(
        self,
        asked: Option<Self>,
        memory_mib: u64,
        is_mapped: bool,
    ) -> crate::error::Result<Self> {
        match asked {
            Some(Self::Hugetlb) if is_mapped => Err(Error::config("huge_pages", Invalid::HugePagesOfFile)),
            Some(Self::Transparent | Self::Hugetlb) if !memory_mib.is_multiple_of(HUGE_MIB) => {
                Err(Error::config("huge_pages", Invalid::HugePagesOfOddMemory { mib: memory_mib }))
            }
            Some(kind) => Ok(kind),
            None if is_mapped && self == Self::Hugetlb => Ok(Self::None),
            None => Ok(self),
        }
    }
}

impl FromStr for HugePages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("it is one of {}", Self::ALL.map(|kind| kind.to_string()).join(", ")))
    }
}

/// Writes the name that serde uses.
impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_have_one_spelling_everywhere() {
        for (kind, name) in HugePages::ALL.into_iter().zip(["none", "transparent", "2M"]) {
            assert_eq!(kind.to_string(), name);
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{name}\""));
        }
        assert!("2m".parse::<HugePages>().unwrap_err().contains("none, transparent, 2M"));
    }

    #[test]
    fn restore_keeps_the_snapshots_kind_unless_another_fits() {
        let [small, transparent, huge] = HugePages::ALL;
        for kind in HugePages::ALL {
            assert_eq!(kind.restored(None, 64, false).unwrap(), kind);
            for asked in HugePages::ALL {
                assert_eq!(kind.restored(Some(asked), 64, false).unwrap(), asked);
            }
            for asked in [small, transparent] {
                assert_eq!(kind.restored(Some(asked), 64, true).unwrap(), asked);
            }
            let error = kind.restored(Some(huge), 64, true).unwrap_err().to_string();
            assert!(error.starts_with("huge_pages: ") && error.contains("name a handler"), "{error}");
            for asked in [transparent, huge] {
                let error = kind.restored(Some(asked), 63, false).unwrap_err().to_string();
                assert!(error.starts_with("huge_pages: the guest has 63 MiB"), "{error}");
            }
            assert_eq!(kind.restored(Some(small), 63, false).unwrap(), small);
        }
        let mapped = HugePages::ALL.map(|kind| kind.restored(None, 64, true).unwrap());
        assert_eq!(mapped, [small, transparent, small]);
    }
}
