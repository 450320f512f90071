//! Names of the metadata service.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};
use volt_vmm::config::metadata::MetadataConfig;

use super::null_as_default;

/// `PUT /mmds/config`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MmdsConfig {
    #[serde(default, deserialize_with = "null_as_default")]
    version: Version,
    network_interfaces: Vec<String>,
    #[serde(default)]
    ipv4_address: Option<Ipv4Addr>,
    #[serde(default, deserialize_with = "null_as_default")]
    imds_compat: bool,
}

/// Whether requests need a token (V2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Version {
    #[default]
    V1,
    V2,
}

impl From<MmdsConfig> for MetadataConfig {
    fn from(config: MmdsConfig) -> Self {
        let MmdsConfig { version, network_interfaces, ipv4_address, imds_compat } = config;
        let default = Self::new(network_interfaces);
        Self {
            address: ipv4_address.unwrap_or(default.address),
            require_token: version == Version::V2,
            plain_text: imds_compat,
            ..default
        }
    }
}

impl From<MetadataConfig> for MmdsConfig {
    fn from(config: MetadataConfig) -> Self {
        let MetadataConfig { networks, address, require_token, plain_text, store: _ } = config;
        Self {
            version: if require_token { Version::V2 } else { Version::V1 },
            network_interfaces: networks,
            ipv4_address: Some(address),
            imds_compat: plain_text,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;
    use crate::rest::firecracker::names::testing::through_a_body;

    proptest! {
        #[test]
        fn a_metadata_service_survives_firecrackers_names(
            networks in proptest::collection::vec("[a-z]{1,8}", 0..3),
            address: u32,
            require_token: bool,
            plain_text: bool,
        ) {
            let default = MetadataConfig::new(networks);
            let config = MetadataConfig { address: address.into(), require_token, plain_text, ..default };
            prop_assert_eq!(MetadataConfig::from(through_a_body::<_, MmdsConfig>(&config)), config);
        }
    }

    #[test]
    fn request_without_choices_has_firecrackers_defaults() {
        for body in [
            r#"{"network_interfaces":["e"]}"#,
            r#"{"network_interfaces":["e"],"version":null,"ipv4_address":null,"imds_compat":null}"#,
        ] {
            let config: MmdsConfig = serde_json::from_str(body).unwrap();
            assert_eq!(MetadataConfig::from(config), MetadataConfig::new(["e"]), "{body}");
        }
    }
}
