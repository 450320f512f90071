//! Helpers of the API's tests: a temporary directory, and a server without a VM.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use axum::response::IntoResponse;

use super::{ApiOptions, Server, Socket};
use crate::process::vm_slot::Slot;

/// A fresh directory, removed when dropped.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("volt-api-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server whose slot is empty.
pub(crate) struct Serving {
    pub(crate) socket: PathBuf,
    server: Option<Server>,
    _dir: Dir,
}

impl Serving {
    pub(crate) fn start() -> Self {
        Self::with(ApiOptions::default())
    }

    pub(crate) fn with(options: ApiOptions) -> Self {
        let dir = Dir::new();
        let socket = dir.path("api");
        let server = Server::start(Arc::new(Slot::new()), Socket::bind(&socket).unwrap(), options);
        let server = server.unwrap();
        Self { socket, server: Some(server), _dir: dir }
    }

    /// Status and body of the answer to one request.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        say(&self.socket, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// Asserts that the request is refused with `status` and a fault message that contains `words`.
    #[track_caller]
    pub(crate) fn refuses(&self, method: &str, path: &str, body: &str, status: u16, words: &str) {
        let (found, text) = self.ask(method, path, body);
        let fault: serde_json::Value = serde_json::from_str(&text).unwrap();
        let message = fault["fault_message"].as_str().unwrap();
        assert!(found == status && message.contains(words), "{method} {path} {body}: {found} {text}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.take().unwrap().finish();
    }
}

/// Sends `text`, reads to the end of the connection.
pub(crate) fn say(socket: &Path, text: &str) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Status of the answer of a handler that waits for nothing.
pub(crate) fn answer<R: IntoResponse>(handler: impl Future<Output = R>) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(handler).into_response().status().as_u16()
}

/// Runs `act` with each of `inputs`, each in a thread, all at the same time.
pub(crate) fn at_once<I: Sync, R: Send>(inputs: &[I], act: impl Fn(&I) -> R + Sync) -> Vec<R> {
    let start = Barrier::new(inputs.len());
    let run = |input| {
        start.wait();
        act(input)
    };
    let run = &run;
    thread::scope(|scope| {
        let threads: Vec<_> = inputs.iter().map(|input| scope.spawn(move || run(input))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
