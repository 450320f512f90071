//! The options of a pager that VMs share, as the command line and requests give them.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use volt_vmm::PagerOptions;
use volt_vmm::internal::paths::OWN_PROGRAM;

/// A pager process that VMs share; it runs this program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedPager {
    /// The directory of the pagers' sockets, instead of the default one.
    #[schema(value_type = Option<String>)]
    pub(crate) directory: Option<PathBuf>,
    /// Its trust group. Without a name, the VMs of this user that name none share it.
    pub(crate) group: Option<String>,
    /// Seconds to wait for the pager, instead of the default.
    pub(crate) patience: Option<u64>,
}

impl From<SharedPager> for PagerOptions {
    fn from(SharedPager { directory, group, patience }: SharedPager) -> Self {
        let mut options = Self::new(OWN_PROGRAM);
        options.group = group;
        options.directory = directory.unwrap_or(options.directory);
        options.patience = patience.map_or(options.patience, Duration::from_secs);
        options
    }
}
