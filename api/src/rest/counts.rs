//! Counters of the API itself: requests, and the durations of the last acts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::Api;

/// Path of requests for no known path.
const OTHER: &str = "other";

/// Methods that a path may have.
const METHODS: [Method; 5] = [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE];

/// The counters of one process.
#[derive(Debug, Default)]
pub(crate) struct ApiCounts {
    requests: Mutex<BTreeMap<(String, String), Outcomes>>,
    latencies: [[AtomicU64; 2]; TimedAct::ALL.len()],
}

/// Requests of one method and path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) done: u64,
    pub(crate) refused: u64,
}

/// An act whose last duration is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimedAct {
    FullSnapshot,
    DiffSnapshot,
    Load,
    Pause,
    Resume,
}

impl TimedAct {
    pub(crate) const ALL: [Self; 5] =
        [Self::FullSnapshot, Self::DiffSnapshot, Self::Load, Self::Pause, Self::Resume];
}

/// Last durations of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastDurations {
    /// The whole request.
    pub(crate) request: Duration,
    /// The call of the library.
    pub(crate) call: Duration,
}

impl ApiCounts {
    /// Counts a request.
    fn add(&self, method: &str, path: &str, is_done: bool) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let outcomes = requests.entry((method.to_owned(), path.to_owned())).or_default();
        match is_done {
            true => outcomes.done += 1,
            false => outcomes.refused += 1,
        }
    }

    /// The requests so far, by method and path.
    pub(crate) fn requests(&self) -> BTreeMap<(String, String), Outcomes> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the duration of a request.
    pub(super) fn requested(&self, act: TimedAct, took: Duration) {
        self.latencies[act as usize][0].store(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Keeps the duration of a call of the library.
    pub(super) fn called(&self, act: TimedAct, took: Duration) {
        self.latencies[act as usize][1].store(took.as_micros() as u64, Ordering::Relaxed);
    }

    /// Last durations of an act; zero before it.
    pub(crate) fn last(&self, act: TimedAct) -> LastDurations {
        let [request, call] =
            [0, 1].map(|at| Duration::from_micros(self.latencies[act as usize][at].load(Ordering::Relaxed)));
        LastDurations { request, call }
    }
}

/// Counts a request by its answer.
pub(super) async fn count(State(api): State<Api>, request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let mut received = Received { counts: Arc::clone(&api.counts), method, path, status: None };
    let response = next.run(request).await;
    received.status = Some(response.status());
    response
}

/// A request, which counts when it is dropped: the server drops that of a client which hangs up.
struct Received {
    counts: Arc<ApiCounts>,
    method: Method,
    path: Option<MatchedPath>,
    /// The status of its answer. Absent until there is one.
    status: Option<StatusCode>,
}

impl Drop for Received {
    fn drop(&mut self) {
        let path = self.path.as_ref().map_or(OTHER, MatchedPath::as_str);
        // A client can send any word as a method.
        let is_known = path != OTHER && self.status != Some(StatusCode::METHOD_NOT_ALLOWED);
        let is_known = is_known && METHODS.contains(&self.method);
        let method = if is_known { self.method.as_str() } else { OTHER };
        self.counts.add(method, path, self.status.is_some_and(|status| status.is_success()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::rest::testing::Serving;

    #[test]
    fn requests_count_by_method_path_and_outcome() {
        let counts = ApiCounts::default();
        for (path, is_done) in [("/drives/{id}", true), ("/drives/{id}", false), ("/drives/{id}", false)] {
            counts.add("PUT", path, is_done);
        }
        let key = ("PUT".to_owned(), "/drives/{id}".to_owned());
        assert_eq!(
            counts.requests().into_iter().collect::<Vec<_>>(),
            [(key, Outcomes { done: 1, refused: 2 })]
        );
    }

    #[test]
    fn request_of_a_client_that_hangs_up_counts_as_refused() {
        let api = Serving::start();
        let mut client = UnixStream::connect(&api.socket).unwrap();
        // The server waits for the body.
        client.write_all(b"PUT /v1/vm HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{").unwrap();
        let counted = r#"volt_vmm_api_requests_total{method="PUT",path="/v1/vm",outcome="refused"} 1"#;
        assert!(!api.ask("GET", "/metrics", "").1.contains(counted));
        drop(client);
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while !api.ask("GET", "/metrics", "").1.contains(counted) {
            assert!(std::time::Instant::now() < end, "{}", api.ask("GET", "/metrics", "").1);
        }
    }

    #[test]
    fn last_durations_of_an_act_are_kept() {
        let counts = ApiCounts::default();
        let [two, four, none] = [2, 4, 0].map(Duration::from_millis);
        counts.called(TimedAct::Pause, two);
        counts.requested(TimedAct::Pause, two);
        counts.requested(TimedAct::Pause, four);
        assert_eq!(counts.last(TimedAct::Pause), LastDurations { request: four, call: two });
        assert_eq!(counts.last(TimedAct::Resume), LastDurations { request: none, call: none });
    }
}
