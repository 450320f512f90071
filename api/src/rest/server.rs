//! The API server: a thread of its own with a current-thread runtime, started once the guest runs.
//!
//! Clients affect the guest by requests alone: the number of connections is limited, and a client that sends
//! its request too slowly, or does not read its answer, is disconnected.

use std::convert::Infallible;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, pin::pin};

use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use super::calls::Calls;
use super::faces::Faces;
use super::{Api, ApiOptions, Socket};

use crate::failure::Failure;
use crate::process::vm_slot::Slot;
use crate::threads;

/// Most connections at once; others wait in the socket's backlog.
const CONNECTIONS: u32 = 512;
/// Longest time for the head of a request, and for an idle connection.
const HEAD: Duration = Duration::from_secs(10);
/// Longest time in which a client reads no part of its answers.
const UNREAD: Duration = Duration::from_secs(10);
/// Longest head of a request.
const HEAD_SIZE: usize = 64 << 10;
/// Longest time to deliver the last answers.
const GOODBYE: Duration = Duration::from_secs(1);

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    closing: watch::Sender<bool>,
    thread: JoinHandle<()>,
    calls: Calls,
}

impl Server {
    /// Starts serving `slot` at `socket`.
    ///
    /// # Errors
    /// The host refuses the thread, or a resource of the runtime.
    pub(crate) fn start(slot: Arc<Slot>, socket: Socket, options: ApiOptions) -> Result<Self, Failure> {
        let refused = |source: io::Error| Failure::system("start the API server", source);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let (closing, closed) = watch::channel(false);
        let api = Api::new(slot, options);
        let calls = api.calls.clone();
        let body = move || serve(&runtime, api, socket, closed);
        let thread = threads::spawn("api", "to serve the API", body)?;
        Ok(Self { closing, thread, calls })
    }

    /// Prepares for a call of the library that a client will make soon.
    pub(crate) fn expect_call(&self) {
        self.calls.expect_one();
    }

    /// Refuses further requests, and waits for ongoing calls and their answers.
    pub(crate) fn finish(self) {
        let _ = self.closing.send(true);
        let _ = self.thread.join();
    }
}

fn serve(runtime: &Runtime, api: Api, socket: Socket, mut closed: watch::Receiver<bool>) {
    let calls = api.calls.clone();
    let room = Arc::new(Semaphore::new(CONNECTIONS as usize));
    runtime.block_on(async {
        let faces = Faces::new(api);
        let watched = closed.clone();
        tokio::select! {
            _ = accept(socket, &faces, &room, &watched) => {}
            _ = closed.wait_for(|closed| *closed) => {}
        }
        loop {
            let delivered = timeout(GOODBYE, room.acquire_many(CONNECTIONS)).await.is_ok();
            if calls.are_done() {
                break;
            }
            if delivered {
                // The client has disconnected, but its call continues.
                sleep(Duration::from_millis(10)).await;
            }
        }
    });
}

async fn accept(
    socket: Socket,
    faces: &Faces,
    room: &Arc<Semaphore>,
    closed: &watch::Receiver<bool>,
) -> io::Result<Infallible> {
    let listener = UnixListener::from_std(socket.listener)?;
    loop {
        let Ok(permit) = Arc::clone(room).acquire_owned().await else { continue };
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(converse(stream, faces.clone(), permit, closed.clone()));
            }
            // Probably out of descriptors: others may be closed soon.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves one connection to its end.
async fn converse(
    stream: UnixStream,
    faces: Faces,
    permit: OwnedSemaphorePermit,
    mut closed: watch::Receiver<bool>,
) {
    let _permit = permit;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(UNREAD));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_SIZE)
        .serve_connection(TokioIo::new(Box::pin(stream)), service_fn(|request| answer(&faces, request)));
    let mut connection = pin!(connection);
    // A broken connection concerns only its client.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = closed.wait_for(|closed| *closed) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

fn answer(
    faces: &Faces,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + use<> {
    let router = faces.of(request.uri().path()).clone();
    TowerToHyperService::new(router).call(request)
}
