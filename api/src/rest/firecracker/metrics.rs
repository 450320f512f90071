//! Firecracker's metrics: a line of JSON in a file or FIFO, at the VM's start, every minute, on request and
//! at the end.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::put;

use super::metric_names::{Line, Startup};
use super::names::metrics::MetricsFile;
use crate::failure::Failure;
use crate::process::lines::LineFile;
use crate::process::vm_slot::Slot;
use crate::process::{log, output_file};
use crate::rest::Api;
use crate::rest::body::Body;
use crate::rest::counts::ApiCounts;
use crate::rest::error::{Fault, StatusOnly};
use crate::threads;

/// Time between two lines.
const PERIOD: Duration = Duration::from_secs(60);
/// Firecracker's refusals.
const BEFORE_START: &str = "The requested operation is not supported before starting the microVM.";
const AFTER_START: &str = "The requested operation is not supported after starting the microVM.";
const AGAIN: &str = "Reinitialization of metrics not allowed.";

pub(crate) fn routes() -> Router<Api> {
    Router::new().route("/metrics", put(set_metrics))
}

/// The file of metrics of one process, once it is set.
#[derive(Debug, Default)]
pub(crate) struct FlushedMetrics {
    counts: Arc<ApiCounts>,
    startup: Startup,
    file: Mutex<Option<Flushed>>,
    lost: AtomicU64,
    /// Whether a thread writes a line every minute.
    is_periodic: AtomicBool,
    has_ended: Mutex<bool>,
    changed: Condvar,
}

/// The file, and the numbers of its last line.
#[derive(Debug)]
struct Flushed {
    file: LineFile,
    last: HashMap<String, u64>,
}

impl FlushedMetrics {
    /// Metrics of a process that began so, by its command line.
    pub(crate) fn started(startup: Startup) -> Self {
        Self { startup, ..Self::default() }
    }

    /// The counters of the API.
    pub(crate) fn counts(&self) -> &Arc<ApiCounts> {
        &self.counts
    }

    /// Lines that the file did not take.
    pub(crate) fn lost_lines(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sets the file. Returns false if one is set.
    pub(crate) fn set(&self, file: LineFile) -> bool {
        let mut kept = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = kept.is_none();
        if is_free {
            *kept = Some(Flushed { file, last: HashMap::new() });
        }
        is_free
    }

    fn is_set(&self) -> bool {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Starts the thread that writes a line at the VM's start and every minute, if there is a file.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(crate) fn start(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<(), Failure> {
        if !self.is_set() || self.is_periodic.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let (metrics, slot) = (Arc::clone(self), Arc::clone(slot));
        threads::spawn("metrics", "to write metrics", move || metrics.write_each(PERIOD, &slot)).map(drop)
    }

    /// Writes a line once there is a VM, and then each period, until the end.
    fn write_each(&self, period: Duration, slot: &Slot) {
        if slot.wait().is_none() {
            return;
        }
        loop {
            self.flush(slot);
            let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.changed.wait_timeout_while(has_ended, period, |has_ended| !*has_ended);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
        }
    }

    /// Writes the last line, after the VM's end.
    pub(crate) fn finish(&self, slot: &Slot) {
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
        self.flush(slot);
    }

    /// Writes a line with the work since the last one, if there is a file and a VM. A line for which a FIFO
    /// has no room is counted as lost, and the next one has its numbers.
    fn flush(&self, slot: &Slot) {
        let mut kept = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(Flushed { file, last }), Some(vm)) = (kept.as_mut(), slot.peek()) else { return };
        let (metrics, lost_lines) = (vm.metrics(), self.lost_lines());
        let Self { counts, startup, .. } = self;
        let line =
            Line { metrics: &metrics, counts, startup: *startup, lost_lines, lost_log: log::lost_lines() };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (text, numbers) = line.since(last, now);
        match file.write(text.as_bytes()) {
            Ok(()) => *last = numbers,
            Err(_) => drop(self.lost.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// Opens a file or FIFO for lines of metrics. It is created if it is missing.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn open_file(path: &Path) -> volt_vmm::Result<LineFile> {
    output_file::open("open metrics", path).map(LineFile::new)
}

async fn set_metrics(State(api): State<Api>, Body(config): Body<MetricsFile>) -> StatusOnly {
    if api.slot.peek().is_some() {
        return Err(Fault::refused(AFTER_START));
    }
    fn bad(why: &str) -> Fault {
        Fault::refused(format!("Cannot initialize the metrics system due to bad user input: {why}"))
    }
    let (metrics, slot) = (Arc::clone(&api.metrics), Arc::clone(&api.slot));
    let (kept, path) = (Arc::clone(&api.metrics), config.metrics_path.clone());
    api.change_draft_with(
        "configure metrics",
        move || match kept.is_set() {
            true => Err(bad(AGAIN)),
            false => open_file(&path).map_err(|error| bad(&Fault::from(error).to_string())),
        },
        move |draft, file| {
            if !metrics.set(file) {
                return Err(bad(AGAIN));
            }
            metrics.start(&slot)?;
            draft.metrics = Some(config);
            Ok(())
        },
    )
    .await
}

/// `FlushMetrics`
pub(super) async fn flush(api: &Api) -> StatusOnly {
    if api.slot.peek().is_none() {
        return Err(Fault::refused(BEFORE_START));
    }
    let metrics = Arc::clone(&api.metrics);
    api.call(move |slot| {
        metrics.flush(slot);
        Ok(())
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use volt_vmm::Vm;

    use super::*;
    use crate::rest::ApiOptions;
    use crate::rest::testing::{Dir, Serving, answer};

    #[test]
    fn request_during_a_start_is_refused_without_effect() {
        let (slot, dir) = (Arc::new(Slot::new()), Dir::new());
        let api = Api::new(Arc::clone(&slot), ApiOptions::default());
        let path = dir.path("metrics");
        let set = || {
            let config = MetricsFile { metrics_path: path.clone() };
            answer(set_metrics(State(api.clone()), Body(config)))
        };
        let started = slot.start("test", || -> volt_vmm::Result<Vm> {
            assert_eq!(set(), 400);
            Err(volt_vmm::Error::Crashed("made to fail".to_owned()))
        });
        assert!(started.is_err() && !path.exists() && api.draft().metrics.is_none());
        assert_eq!(set(), 204);
        assert!(path.exists() && api.draft().metrics.is_some());
        slot.close();
    }

    #[test]
    fn file_is_set_once_and_bad_requests_are_refused_in_firecrackers_words() {
        let (api, dir) = (Serving::start(), Dir::new());
        let path = dir.path("metrics");
        for (body, words) in [
            (
                json!({"metrics_path": "/missing/m"}),
                "bad user input: cannot open metrics /missing/m: No such",
            ),
            (json!({"metrics_path": dir.path("")}), "cannot open metrics"),
            (json!({}), "missing field `metrics_path`"),
            (json!({"metrics_path": path, "x": 1}), "unknown field `x`"),
            (json!({"metrics_path": 5}), "invalid type"),
        ] {
            api.refuses("PUT", "/metrics", &body.to_string(), 400, words);
        }
        let flush = json!({"action_type": "FlushMetrics"}).to_string();
        api.refuses("PUT", "/actions", &flush, 400, "not supported before starting the microVM");
        let body = json!({"metrics_path": path}).to_string();
        assert_eq!(api.ask("PUT", "/metrics", &body).0, 204);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "", "it is created");
        api.refuses("PUT", "/metrics", &body, 400, "Reinitialization of metrics not allowed.");
        let (_, config) = api.ask("GET", "/vm/config", "");
        assert!(config.contains(r#""metrics_path""#), "{config}");
    }
}
