//! The second port, for the VM's own process: it quiets the guest, and wakes it.
//!
//! ```text
//! POST /volt/quiesce, /volt/thaw, /volt/wake, /volt/mount   see volt_job::quiet
//! POST /freeze[?maxWaitMs=N], /unfreeze        E2B's: freeze and thaw the workload, without hooks
//! POST /fsfreeze, /fsthaw                      E2B's: freeze and thaw the file systems on disks
//! POST /collapse                               E2B's: the agent's memory into huge pages
//! GET  /health
//! ```
//!
//! A thread of its own serves one call after another. The agent's other thread may wait for a frozen process,
//! such as a command that it starts, and only a thaw ends that.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::runtime;
use tokio::task::LocalSet;
use volt_job::job::Mount;
use volt_job::quiet::{FREEZE_MS, LONGEST, MOUNT, QUIESCE, THAW, WAKE, Wake};

use super::listener::Listener;
use super::{accept_all, body};
use crate::descriptor;
use crate::options::Listen;
use crate::query::Query;
use crate::quiet::{self, file_systems};
use crate::reply::{Failure, Reply, empty, json};
use crate::volumes;

/// Starts to serve the inherited socket of this number. `upper` is the number of a directory of the file
/// system with the root's changes.
pub fn start(number: RawFd, upper: Option<RawFd>) -> io::Result<()> {
    let upper = upper.map(descriptor::inherited).transpose()?.map(Arc::new);
    let serve = move || {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        LocalSet::new().block_on(&runtime, async move {
            let listener = Listener::bind(&Listen::Inherited(number))?;
            accept_all(&listener, |stream| {
                let upper = upper.clone();
                async move {
                    let service = service_fn(|request: Request<Incoming>| async {
                        let answer = answer(request, upper.as_deref()).await;
                        Ok::<_, Infallible>(answer.unwrap_or_else(|failure| failure.reply()))
                    });
                    // It fails when the client breaks the connection, which is the client's matter.
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                }
            })
            .await;
            Ok(())
        })
    };
    let serve = move || {
        if let Err(error) = serve() as io::Result<()> {
            eprintln!("volt-agent: cannot serve the VM's process: {error}");
        }
    };
    std::thread::Builder::new().name("control".to_owned()).spawn(serve).map(drop)
}

async fn answer(request: Request<Incoming>, upper: Option<&OwnedFd>) -> Result<Reply, Failure> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match (&method, path.as_str()) {
        (&Method::GET, "/health") => Ok(empty(StatusCode::NO_CONTENT)),
        (&Method::POST, QUIESCE) => {
            let query = Query::parse(request.uri().query().unwrap_or_default());
            let frozen = quiet::quiesce(query.get("hooks") != Some("no")).map_err(conflict)?;
            Ok(json(StatusCode::OK, &frozen))
        }
        (&Method::POST, THAW | "/unfreeze") => {
            let query = Query::parse(request.uri().query().unwrap_or_default());
            if let Some(late) = query.get("late").and_then(|late| late.parse().ok()) {
                quiet::advance_clock(late).map_err(conflict)?;
            }
            quiet::thaw().map_err(conflict)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, WAKE) => {
            let wake: Wake = body::json(request.into_body(), LONGEST).await?;
            Ok(json(StatusCode::OK, &quiet::wake(&wake, upper.map(AsFd::as_fd))))
        }
        (&Method::POST, MOUNT) => {
            let mounts: Vec<Mount> = body::json(request.into_body(), LONGEST).await?;
            volumes::mount(&mounts).map_err(conflict)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, "/freeze") => freeze(&Query::parse(request.uri().query().unwrap_or_default())),
        (&Method::POST, "/fsfreeze") => {
            file_systems::freeze(upper.map(AsFd::as_fd)).map_err(conflict)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, "/fsthaw") => {
            file_systems::thaw(upper.map(AsFd::as_fd)).map_err(conflict)?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        (&Method::POST, "/collapse") => {
            quiet::collapse();
            Ok(empty(StatusCode::NO_CONTENT))
        }
        _ => Err(Failure::new(StatusCode::NOT_FOUND, format!("no call {method} {path} on this port"))),
    }
}

/// Freezes the workload. With `maxWaitMs`, tells what stands still by then.
fn freeze(query: &Query) -> Result<Reply, Failure> {
    let Some(text) = query.get("maxWaitMs") else {
        quiet::freeze(Duration::from_millis(FREEZE_MS)).map_err(conflict)?;
        return Ok(empty(StatusCode::NO_CONTENT));
    };
    let wait = text.parse().ok().filter(|wait| *wait <= 60_000);
    let wait = wait.ok_or_else(|| {
        let why = format!("maxWaitMs is {text}; give a number of milliseconds up to 60000");
        Failure::new(StatusCode::BAD_REQUEST, why)
    })?;
    let frozen = quiet::see_frozen(Duration::from_millis(wait)).map_err(conflict)?;
    Ok(json(StatusCode::OK, &frozen))
}

fn conflict(problem: String) -> Failure {
    Failure::new(StatusCode::CONFLICT, problem)
}
