//! Size of the pages under guest memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
}
