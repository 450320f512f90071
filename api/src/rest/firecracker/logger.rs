//! Firecracker's `/logger`, before the start.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::routing::put;
use log::LevelFilter;

use super::names::logger::{LogLevel, Logger};
use crate::process::log::{Layout, LogChange, LogTo};
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
        // Firecracker's layout and default level, for what was asked for by its names.
        let usual_level = log_path.as_ref().map(|_| LevelFilter::Info);
        let has_layout = log_path.is_some() || show_level.is_some() || show_log_origin.is_some();
        Self {
            to: log_path.map(LogTo::File),
            layout: has_layout.then_some(Layout::Firecracker),
            level,
            usual_level,
            shows_level: show_level,
            shows_origin: show_log_origin,
            module,
        }
    }
}

async fn set_logger(State(api): State<Api>, Body(logger): Body<Logger>) -> StatusOnly {
    let slot = Arc::clone(&api.slot);
    let change = LogChange::from(logger.clone());
    api.change_draft_with(
        "configure the logger",
        move || Ok(change.open()?),
        move |draft, opened| {
            opened.apply(slot.id());
            draft.logger = Some(draft.logger.take().unwrap_or_default().with(logger));
            Ok(())
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use volt_vmm::Vm;

    use super::*;
    use crate::process::vm_slot::Slot;
    use crate::rest::ApiOptions;
    use crate::rest::testing::{Dir, Serving, answer};

    #[test]
    fn request_during_a_start_is_refused_without_effect() {
        let (slot, dir) = (Arc::new(Slot::new()), Dir::new());
        let api = Api::new(Arc::clone(&slot), ApiOptions::default());
        let path = dir.path("log");
        let set = || {
            let logger = Logger { log_path: Some(path.clone()), ..Logger::default() };
            answer(set_logger(State(api.clone()), Body(logger)))
        };
        let started = slot.start("test", || -> volt_vmm::Result<Vm> {
            assert_eq!(set(), 400);
            Err(volt_vmm::Error::Crashed("made to fail".to_owned()))
        });
        assert!(started.is_err() && !path.exists() && api.draft().logger.is_none());
        assert_eq!(set(), 204);
        assert!(path.exists() && api.draft().logger.is_some());
    }

    #[test]
    fn firecrackers_layout_comes_with_each_of_its_settings() {
        let change = |text: &str| LogChange::from(serde_json::from_str::<Logger>(text).unwrap());
        for text in [r#"{"log_path":"/l"}"#, r#"{"show_level":true}"#, r#"{"show_log_origin":false}"#] {
            assert_eq!(change(text).layout, Some(Layout::Firecracker), "{text}");
        }
        let level = change(r#"{"level":"Debug"}"#);
        assert_eq!((level.layout, level.level, level.usual_level), (None, Some(LevelFilter::Debug), None));
        let path = change(r#"{"log_path":"/l"}"#);
        assert_eq!((path.level, path.usual_level), (None, Some(LevelFilter::Info)));
    }

    #[test]
    fn later_requests_keep_earlier_settings() {
        let (api, dir) = (Serving::start(), Dir::new());
        let path = dir.path("log");
        for logger in [json!({"level": "Debug"}), json!({"log_path": path}), json!({"show_level": true})] {
            assert_eq!(api.ask("PUT", "/logger", &logger.to_string()).0, 204);
        }
        let (_, found) = api.ask("GET", "/vm/config", "");
        let found: serde_json::Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["logger"], json!({"level": "Debug", "log_path": path, "show_level": true}));
    }

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
