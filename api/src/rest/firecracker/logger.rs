//! Firecracker's `/logger`, before the start.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::put;
use log::LevelFilter;
use volt_vmm::Error;

use super::names::logger::{LogLevel, Logger};
use crate::process::log::{self as process_log, Layout, LogChange, LogTo};
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::error::StatusOnly;

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/logger", put(set_logger))
}

impl From<Logger> for LogChange {
    fn from(Logger { log_path, level, show_level, show_log_origin, module }: Logger) -> Self {
        let level = level.map(|level| match level {
            LogLevel::Off => LevelFilter::Off,
            LogLevel::Error => LevelFilter::Error,
            LogLevel::Warning => LevelFilter::Warn,
            LogLevel::Info => LevelFilter::Info,
            LogLevel::Debug => LevelFilter::Debug,
            LogLevel::Trace => LevelFilter::Trace,
        });
        // Firecracker's default level, for a file that was asked for.
        let level = level.or(log_path.as_ref().map(|_| LevelFilter::Info));
        let (layout, to) = log_path.map(|path| (Layout::Firecracker, LogTo::File(path))).unzip();
        Self { to, layout, level, shows_level: show_level, shows_origin: show_log_origin, module }
    }
}

async fn set_logger(State(api): State<Api>, Body(logger): Body<Logger>) -> StatusOnly {
    let chosen = logger.clone();
    api.call(move |slot| {
        if slot.peek().is_some() {
            return Err(Error::NotNow { act: "configure the logger", state: "was started already" });
        }
        process_log::change(slot.id(), logger.into())
    })
    .await?;
    api.change_draft("configure the logger", |draft| {
        draft.logger = Some(chosen);
        Ok(())
    })
    .map(|_| StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use crate::rest::testing::{Dir, Serving};

    #[test]
    fn log_goes_to_the_file_and_bad_loggers_are_refused() {
        let (api, dir) = (Serving::start(), Dir::new());
        let path = dir.path("log");
        let logger = json!({"log_path": path, "level": "Debug", "show_level": true});
        for (body, words) in [
            (json!({"log_path": "/missing/log"}), "cannot open log /missing/log: No such file"),
            (json!({"log_path": dir.path("")}), "cannot open log"),
            (json!({"level": "loud"}), "no level \"loud\""),
            (json!({"logs": 1}), "unknown field `logs`"),
        ] {
            api.refuses("PUT", "/logger", &body.to_string(), 400, words);
        }
        assert_eq!(api.ask("PUT", "/logger", &logger.to_string()).0, 204);
        assert_eq!(fs::read_to_string(&path).unwrap(), "", "it is created");
        let (_, found) = api.ask("GET", "/vm/config", "");
        assert!(found.contains(r#""level":"Debug""#) && found.contains("/log"), "{found}");
        // A load may follow: the log is no part of a VM's configuration.
        let load = r#"{"snapshot_path":"/missing"}"#;
        api.refuses("PUT", "/snapshot/load", load, 400, "there is no such directory");
    }
}
