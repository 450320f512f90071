//! Configuration of the metadata service, which answers a guest's HTTP requests in its network devices.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Invalid, Result};
use crate::metadata::MetadataStore;

/// The metadata service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "internal"), non_exhaustive)]
pub struct MetadataConfig {
    /// Ids of the network interfaces whose guests reach the service.
    pub networks: Vec<String>,
    /// Its address, a link-local one.
    #[serde(default = "default_address")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: Ipv4Addr,
    /// Answers only requests with a token.
    #[serde(default)]
    pub require_token: bool,
    /// Answers in plain text, whatever the request accepts.
    #[serde(default)]
    pub plain_text: bool,
    /// The data. No file and no snapshot has it.
    #[serde(skip)]
    pub store: MetadataStore,
}

/// The address that guests of most clouds use.
fn default_address() -> Ipv4Addr {
    Ipv4Addr::new(169, 254, 169, 254)
}

impl MetadataConfig {
    /// A service with these interfaces, at 169.254.169.254, that requires no token.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            networks: networks.into_iter().map(Into::into).collect(),
            address: default_address(),
            require_token: false,
            plain_text: false,
            store: MetadataStore::default(),
        }
    }

    /// Its address.
    #[must_use]
    pub fn address(mut self, address: Ipv4Addr) -> Self {
        self.address = address;
        self
    }

    /// Answers only requests with a token.
    #[must_use]
    pub fn require_token(mut self) -> Self {
        self.require_token = true;
        self
    }

    /// Answers in plain text, whatever the request accepts.
    #[must_use]
    pub fn plain_text(mut self) -> Self {
        self.plain_text = true;
        self
    }

    /// The data.
    #[must_use]
    pub fn store(mut self, store: MetadataStore) -> Self {
        self.store = store;
        self
    }

    /// Checks the fields. `has_network` tells whether the VM has the interface of an id.
    ///
    /// # Errors
    /// [`Error::Config`] if the service has no interface or one that does not exist, or its address is not
    /// link-local.
    pub fn validate(&self, has_network: impl Fn(&str) -> bool) -> Result<()> {
        let refused = |problem| Err(Error::config("metadata", problem));
        if self.networks.is_empty() {
            return refused(Invalid::MetadataWithoutNetwork);
        }
        if let Some(id) = self.networks.iter().find(|id| !has_network(id)) {
            return refused(Invalid::MetadataNetwork { id: id.clone() });
        }
        // RFC 3927, section 2.1, reserves the first and the last 256 addresses.
        let [_, _, third, _] = self.address.octets();
        if !self.address.is_link_local() || [0, 255].contains(&third) {
            return refused(Invalid::MetadataAddress { address: self.address });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Devices;

    fn validated(metadata: &str) -> String {
        let devices =
            format!(r#"{{"networks":[{{"id":"e","backend":{{"tap":"tap0"}}}}],"metadata":{metadata}}}"#);
        let devices: Devices = serde_json::from_str(&devices).unwrap();
        devices.validate().err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn file_without_choices_has_the_defaults() {
        let config: MetadataConfig = serde_json::from_str(r#"{"networks":["e"]}"#).unwrap();
        assert_eq!(config, MetadataConfig::new(["e"]));
        assert_eq!(config.address, Ipv4Addr::new(169, 254, 169, 254));
        assert_eq!(validated(r#"{"networks":["e"]}"#), "");
    }

    #[test]
    fn invalid_service_is_refused_by_its_field() {
        for (metadata, words) in [
            (r#"{"networks":[]}"#, "metadata: no network interface; name one or more"),
            (r#"{"networks":["e","f"]}"#, "metadata: network interface \"f\" does not exist"),
            (r#"{"networks":["e"],"address":"10.0.0.1"}"#, "metadata: address 10.0.0.1 is not link-local"),
            (r#"{"networks":["e"],"address":"169.254.0.1"}"#, "metadata: address 169.254.0.1"),
            (r#"{"networks":["e"],"address":"169.254.255.1"}"#, "metadata: address 169.254.255.1"),
        ] {
            assert!(validated(metadata).starts_with(words), "{metadata}: {}", validated(metadata));
        }
        for (metadata, words) in [
            (r#"{"networks":["e"],"address":"nowhere"}"#, "invalid IPv4 address"),
            (r#"{"networks":"e"}"#, "invalid type"),
            (r#"{"networks":["e"],"store":{}}"#, "unknown field `store`"),
            (r"{}", "missing field `networks`"),
        ] {
            let error = serde_json::from_str::<MetadataConfig>(metadata).unwrap_err().to_string();
            assert!(error.contains(words), "{metadata}: {error}");
        }
    }

    #[test]
    fn content_is_in_no_file() {
        let config = MetadataConfig::new(["e"]);
        config.store.put("secret".into()).unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let read: MetadataConfig = serde_json::from_str(&text).unwrap();
        assert_eq!(read.store.content(), None);
    }
}
