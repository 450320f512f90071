//! The paths of both faces. The first answer of a process waits until its router is made, and most processes
//! serve one face alone: the router of our own paths is made at the first request for one of them.

use std::sync::{Arc, OnceLock};

use axum::http::{Method, Uri};
use axum::{Router, middleware};

use super::error::Fault;
use super::{Api, counts, exposition, firecracker, v1};

/// Starts of our own paths. `/metrics` belongs to both faces, by its methods.
const OWN: [&str; 3] = ["/v1/", "/openapi.json", "/docs"];

/// The routers of both faces. Cloning shares them.
#[derive(Clone)]
pub(super) struct Faces {
    firecrackers: Router,
    own: Arc<OnceLock<Router>>,
    api: Api,
}

impl Faces {
    pub(super) fn new(api: Api) -> Self {
        let firecrackers = finished(firecracker::routes().merge(exposition::routes()), &api);
        Self { firecrackers, own: Arc::default(), api }
    }

    /// The router for a path.
    pub(super) fn of(&self, path: &str) -> &Router {
        match OWN.iter().any(|start| path.starts_with(start)) {
            true => self.own.get_or_init(|| finished(v1::routes(), &self.api)),
            false => &self.firecrackers,
        }
    }
}

/// Refuses other paths and methods, and counts all requests.
fn finished(routes: Router<Api>, api: &Api) -> Router {
    routes
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Fault::method(&method, uri.path()))
        .fallback(async |method: Method, uri: Uri| Fault::path(&method, uri.path()))
        .layer(middleware::from_fn_with_state(api.clone(), counts::count))
        .with_state(api.clone())
}
