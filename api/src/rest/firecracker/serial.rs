//! Firecracker's `/serial`, before the start or a load: the receiver of the guest's serial output.

use axum::Router;
use axum::extract::State;
use axum::routing::put;

use super::names::serial::Serial;
use crate::process::serial_output::SerialOutput;
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::StatusOnly;

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/serial", put(set_serial))
}

impl From<Serial> for SerialOutput {
    fn from(Serial { serial_out_path, rate_limiter }: Serial) -> Self {
        Self { path: serial_out_path, limit: rate_limiter }
    }
}

async fn set_serial(State(api): State<Api>, Body(serial): Body<Serial>) -> StatusOnly {
    api.change_draft("configure the serial port", |draft| {
        draft.serial = Some(serial);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::rest::testing::Serving;

    #[test]
    fn serial_output_is_described_and_bad_ones_are_refused() {
        let api = Serving::start();
        for (body, words) in [
            (r#"{"serial_out_path":7}"#, "invalid type"),
            (r#"{"path":"/s"}"#, "unknown field `path`"),
            (r#"{"rate_limiter":{"bandwidth":{"size":1,"refill_time":1}}}"#, "bandwidth"),
            (r#"{"rate_limiter":{"size":1}}"#, "missing field `refill_time`"),
        ] {
            api.refuses("PUT", "/serial", body, 400, words);
        }
        let serial = r#"{"serial_out_path":"/s","rate_limiter":{"size":1024,"refill_time":1000}}"#;
        assert_eq!(api.ask("PUT", "/serial", serial).0, 204);
        let (_, found) = api.ask("GET", "/vm/config", "");
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["serial"]["serial_out_path"], "/s");
        assert_eq!(found["serial"]["rate_limiter"]["size"], 1024);
        // A load may follow: the output is no part of a VM's configuration.
        let load = r#"{"snapshot_path":"/missing"}"#;
        api.refuses("PUT", "/snapshot/load", load, 400, "there is no such directory");
    }
}
