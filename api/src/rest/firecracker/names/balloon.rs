//! Names of the balloon, its statistics and its hints.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use volt_vmm::BalloonStatus;
use volt_vmm::config::devices::BalloonConfig;

/// The balloon: `PUT /balloon`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Balloon {
    amount_mib: u64,
    deflate_on_oom: bool,
    #[serde(default)]
    stats_polling_interval_s: u16,
    #[serde(default)]
    free_page_hinting: bool,
    #[serde(default)]
    free_page_reporting: bool,
}

impl From<Balloon> for BalloonConfig {
    fn from(balloon: Balloon) -> Self {
        Self {
            target_mib: balloon.amount_mib,
            deflate_on_oom: balloon.deflate_on_oom,
            statistics_interval: balloon.stats_polling_interval_s,
            reporting: balloon.free_page_reporting,
            hinting: balloon.free_page_hinting,
        }
    }
}

impl From<BalloonConfig> for Balloon {
    fn from(balloon: BalloonConfig) -> Self {
        let BalloonConfig { target_mib, deflate_on_oom, statistics_interval, reporting, hinting } = balloon;
        Self {
            amount_mib: target_mib,
            deflate_on_oom,
            stats_polling_interval_s: statistics_interval,
            free_page_hinting: hinting,
            free_page_reporting: reporting,
        }
    }
}

/// Statistics of the balloon: `GET /balloon/statistics`. Those that the guest did not send are left out.
#[derive(Debug, Serialize)]
pub(crate) struct BalloonStatistics {
    target_pages: u64,
    actual_pages: u64,
    target_mib: u64,
    actual_mib: u64,
    /// volt-vmm's own, as is the next one.
    returned_pages: u64,
    ignored_pages: u64,
    #[serde(flatten)]
    of_guest: BTreeMap<&'static str, u64>,
}

impl From<BalloonStatus> for BalloonStatistics {
    fn from(status: BalloonStatus) -> Self {
        let BalloonStatus { target_mib, actual_mib, returned_pages, ignored_pages, statistics, .. } = status;
        let found = statistics.unwrap_or_default();
        let of_guest = [
            ("swap_in", found.swap_in),
            ("swap_out", found.swap_out),
            ("major_faults", found.major_faults),
            ("minor_faults", found.minor_faults),
            ("free_memory", found.free_memory),
            ("total_memory", found.total_memory),
            ("available_memory", found.available_memory),
            ("disk_caches", found.disk_caches),
            ("hugetlb_allocations", found.hugetlb_allocations),
            ("hugetlb_failures", found.hugetlb_failures),
            ("oom_kill", found.oom_kills),
            ("alloc_stall", found.allocation_stalls),
            ("async_scan", found.async_scans),
            ("direct_scan", found.direct_scans),
            ("async_reclaim", found.async_reclaims),
            ("direct_reclaim", found.direct_reclaims),
        ];
        let of_guest = of_guest.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let pages = |mib| mib * (1 << 20) / 4096;
        Self {
            target_pages: pages(target_mib),
            actual_pages: pages(actual_mib),
            target_mib,
            actual_mib,
            returned_pages,
            ignored_pages,
            of_guest,
        }
    }
}

/// A change of the balloon: `PATCH /balloon`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BalloonChange {
    pub(crate) amount_mib: u64,
}

/// A change of the balloon's statistics: `PATCH /balloon/statistics`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatisticsChange {
    pub(crate) stats_polling_interval_s: u16,
}

/// A start of free page hinting: `PATCH /balloon/hinting/start`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HintingStart {
    /// Whether the guest may reuse its pages as soon as it has no more of them.
    pub(crate) acknowledge_on_stop: bool,
}

impl Default for HintingStart {
    fn default() -> Self {
        Self { acknowledge_on_stop: true }
    }
}
