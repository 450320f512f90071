//! Firecracker's metadata service: `/mmds/config` before the start, `/mmds` at any time.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use volt_vmm::MetadataStore;

use super::names::metadata::MmdsConfig;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::StatusOnly;

pub(crate) fn routes() -> Router<Api> {
    Router::new()
        .route("/mmds", get(content).put(put_content).patch(change_content))
        .route("/mmds/config", put(configure))
}

impl Api {
    /// The metadata of the VM, or what the next VM will have.
    fn metadata(&self) -> MetadataStore {
        let of_vm = self.slot.peek().and_then(|vm| vm.config().devices.metadata);
        of_vm.map_or_else(|| self.metadata.clone(), |service| service.store)
    }
}

async fn configure(State(api): State<Api>, Body(config): Body<MmdsConfig>) -> StatusOnly {
    api.change_draft("configure the metadata service", |draft| draft.devices.put_metadata(config))
}

// Nothing is as Firecracker tells it.
async fn content(State(api): State<Api>) -> Json<Value> {
    Json(api.metadata().content().filter(|content| !content.is_null()).unwrap_or_else(|| json!({})))
}

async fn put_content(State(api): State<Api>, Body(content): Body<Value>) -> StatusOnly {
    api.metadata().put(content)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn change_content(State(api): State<Api>, Body(patch): Body<Value>) -> StatusOnly {
    api.metadata().change(patch)?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use volt_vmm::MetadataStore;

    use crate::rest::ApiOptions;
    use crate::rest::testing::Serving;

    const INTERFACE: &str = r#"{"iface_id":"eth0","host_dev_name":"tap0"}"#;

    #[test]
    fn service_is_configured_for_interfaces_that_exist() {
        let api = Serving::start();
        let config = r#"{"network_interfaces":["eth0"],"version":"V2","imds_compat":true}"#;
        api.refuses("PUT", "/mmds/config", config, 400, "network interface \"eth0\" does not exist");
        let described = |api: &Serving| {
            let found: Value = serde_json::from_str(&api.ask("GET", "/vm/config", "").1).unwrap();
            found["mmds-config"].clone()
        };
        assert_eq!(described(&api), Value::Null);
        assert_eq!(api.ask("PUT", "/network-interfaces/eth0", INTERFACE).0, 204);
        assert_eq!(api.ask("PUT", "/mmds/config", config).0, 204);
        let expected = serde_json::json!({
            "network_interfaces": ["eth0"], "version": "V2", "imds_compat": true,
            "ipv4_address": "169.254.169.254",
        });
        assert_eq!(described(&api), expected);
    }

    #[test]
    fn invalid_service_is_refused_by_its_field() {
        let api = Serving::start();
        assert_eq!(api.ask("PUT", "/network-interfaces/eth0", INTERFACE).0, 204);
        for (body, words) in [
            (r#"{"network_interfaces":[]}"#, "mmds: no network interface"),
            (r#"{"network_interfaces":["eth1"]}"#, "\"eth1\" does not exist"),
            (r#"{"network_interfaces":["eth0"],"ipv4_address":"10.0.0.1"}"#, "not link-local"),
            (r#"{"network_interfaces":["eth0"],"ipv4_address":"x"}"#, "IPv4"),
            (r#"{"network_interfaces":["eth0"],"version":"V3"}"#, "unknown variant `V3`"),
            (r#"{"network_interfaces":["eth0"],"x":1}"#, "unknown field `x`"),
            (r#"{"network_interfaces":"eth0"}"#, "invalid type"),
            (r#"{"version":"V2"}"#, "missing field `network_interfaces`"),
            ("", "empty"),
        ] {
            api.refuses("PUT", "/mmds/config", body, 400, words);
        }
        api.refuses("GET", "/mmds/config", "", 400, "Invalid request method");
        api.refuses("PUT", "/mmds/other", "{}", 400, "Invalid request method");
        api.refuses("DELETE", "/mmds", "", 400, "Invalid request method");
    }

    #[test]
    fn metadata_is_put_patched_and_told() {
        let api = Serving::start();
        assert_eq!(api.ask("GET", "/mmds", ""), (200, "{}".to_owned()));
        api.refuses("PATCH", "/mmds", r#"{"a":1}"#, 400, "nothing to change yet");
        assert_eq!(api.ask("PUT", "/mmds", r#"{"a":{"b":"c"},"d":[1]}"#).0, 204);
        assert_eq!(api.ask("PATCH", "/mmds", r#"{"d":null,"a":{"e":"f"}}"#).0, 204);
        assert_eq!(api.ask("GET", "/mmds", "").1, r#"{"a":{"b":"c","e":"f"}}"#);
        assert_eq!(api.ask("PUT", "/mmds", r#""text""#).0, 204, "any JSON is metadata");
        assert_eq!(api.ask("GET", "/mmds", "").1, r#""text""#);
        for body in ["", "{", "text", r#"{"a":1}}"#] {
            assert_eq!(api.ask("PUT", "/mmds", body).0, 400, "{body}");
            assert_eq!(api.ask("PATCH", "/mmds", body).0, 400, "{body}");
        }
        assert_eq!(api.ask("GET", "/mmds", "").1, r#""text""#);
    }

    #[test]
    fn metadata_beyond_its_limit_or_that_of_bodies_is_too_large() {
        let metadata = MetadataStore::new(30);
        let api = Serving::with(ApiOptions { metadata, longest_body: 100, ..ApiOptions::default() });
        assert_eq!(api.ask("PUT", "/mmds", r#"{"a":"0123456789"}"#).0, 204);
        let longer = r#"{"b":"0123456789"}"#;
        api.refuses("PATCH", "/mmds", longer, 413, "metadata of 35 bytes exceeds the limit of 30 bytes");
        let long = format!(r#"{{"a":"{}"}}"#, "a".repeat(40));
        api.refuses("PUT", "/mmds", &long, 413, "exceeds the limit of 30 bytes");
        let body = format!(r#"{{"a":"{}"}}"#, "a".repeat(100));
        api.refuses("PUT", "/mmds", &body, 413, "longer than 100 bytes");
        assert_eq!(api.ask("GET", "/mmds", "").1, r#"{"a":"0123456789"}"#);
    }
}
