//! `GET /metrics`: a VM's metrics in Prometheus' text format (version 0.0.4).
//!
//! Written by hand: the library that Prometheus offers keeps counters of its own and writes OpenMetrics
//! alone, and the format has three kinds of lines.

mod families;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use volt_vmm::{Metrics, RunState};

use families::{FAMILIES, Family};
use text::Samples;

use super::Api;
use super::calls::Queue;
use super::counts::ApiCounts;
use super::error::Fault;
use super::firecracker::metrics::FlushedMetrics;

/// The format, as Prometheus asks for it.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/metrics", get(metrics))
}

/// The sources of a scrape.
struct Picture {
    state: Option<RunState>,
    /// Absent before the VM's start.
    metrics: Option<Metrics>,
    counts: Arc<ApiCounts>,
    /// Lines of metrics that their file did not take.
    lost_lines: u64,
}

async fn metrics(State(api): State<Api>) -> Result<Response, Fault> {
    let (counts, flushed): (_, Arc<FlushedMetrics>) = (Arc::clone(&api.counts), Arc::clone(&api.metrics));
    // The VM's memory is looked up, which may take milliseconds. Snapshots do not delay it.
    let text = api.call_in(Queue::Scrapes, move |slot| {
        let vm = slot.peek();
        let (state, metrics) = (vm.as_ref().map(|vm| vm.state()), vm.as_ref().map(|vm| vm.metrics()));
        Ok(write(&Picture { state, metrics, counts, lost_lines: flushed.lost_lines() }))
    });
    Ok(([(CONTENT_TYPE, FORMAT)], text.await?).into_response())
}

/// Writes all families that have samples, each after its help and type.
fn write(picture: &Picture) -> String {
    let mut text = String::with_capacity(16 << 10);
    for Family { name, kind, help, samples } in FAMILIES {
        let before = text.len();
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
        let begun = text.len();
        samples(picture, &mut Samples::of(name, &mut text));
        if text.len() == begun {
            text.truncate(before);
        }
    }
    text
}

#[cfg(test)]
mod tests;
