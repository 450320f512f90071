//! A registry of images on loopback, which a test makes answer as it likes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use volt_image::digest;

use crate::patience::output;

/// A request: path and headers, with names in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    /// The path, with its query.
    pub path: String,
    /// Headers by name.
    pub headers: HashMap<String, String>,
}

/// An answer other than the file at the path.
#[derive(Debug)]
pub enum Reply {
    /// A status, headers and a body.
    Status(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// The file, but the connection ends after so many bytes of it.
    Cut(usize),
    /// The file from its start, although a part was asked for.
    Whole,
    /// A document that does not end.
    Endless,
}

type Conduct = dyn Fn(&Request, usize) -> Option<Reply> + Send + Sync;

/// A registry. It serves until the test's process ends.
pub struct Registry {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    files: Mutex<HashMap<String, (String, Vec<u8>)>>,
    requests: Mutex<Vec<Request>>,
    conduct: Box<Conduct>,
}

/// An image that a registry serves.
#[derive(Clone, Debug)]
pub struct Served {
    /// Digest of its manifest.
    pub manifest: String,
    /// Digests of its compressed layers.
    pub layers: Vec<String>,
}

impl Registry {
    /// Starts a registry. `conduct` may answer a request, whose place among those of its path it is told,
    /// from 0 on.
    ///
    /// # Panics
    /// The host has no free port.
    #[must_use]
    pub fn start(conduct: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let address = listener.local_addr().expect("an address").to_string();
        let shared =
            Shared { files: Mutex::default(), requests: Mutex::default(), conduct: Box::new(conduct) };
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                // A client that goes away is none of the registry's business.
                thread::spawn(move || drop(shared.serve(&stream)));
            }
        });
        Self { address, shared }
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The paths that were asked for and contain a word.
    #[must_use]
    pub fn asked(&self, word: &str) -> Vec<Request> {
        let requests = self.shared.requests.lock().unwrap();
        requests.iter().filter(|request| request.path.contains(word)).cloned().collect()
    }

    /// The files that it serves: path, media type and content.
    ///
    /// # Panics
    /// A thread of the registry panicked.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String, Vec<u8>)> {
        let files = self.shared.files.lock().unwrap();
        files.iter().map(|(path, (kind, content))| (path.clone(), kind.clone(), content.clone())).collect()
    }

    /// Serves a file at a path.
    pub fn put(&self, path: String, kind: &str, content: Vec<u8>) {
        self.shared.files.lock().unwrap().insert(path, (kind.to_owned(), content));
    }

    fn put_blob(&self, repository: &str, kind: &str, content: Vec<u8>) -> Value {
        let digest = digest::of(&content);
        let descriptor = json!({"mediaType": kind, "digest": digest, "size": content.len()});
        self.put(format!("/v2/{repository}/blobs/{digest}"), "application/octet-stream", content);
        descriptor
    }

    /// Serves an image whose layers are the trees in directories, the lowest first.
    ///
    /// # Panics
    /// A layer cannot be packed.
    pub fn serve_image(&self, repository: &str, tag: &str, layers: &[&Path]) -> Served {
        let plain: Vec<_> = layers.iter().map(|layer| packed(layer)).collect();
        let diff_ids: Vec<_> = plain.iter().map(|layer| digest::of(layer)).collect();
        let config = json!({
            "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let config = self.put_blob(repository, "application/vnd.oci.image.config.v1+json", config);
        let layer_of = |plain: &Vec<u8>| {
            self.put_blob(repository, "application/vnd.oci.image.layer.v1.tar+gzip", gzip(plain))
        };
        let layers: Vec<_> = plain.iter().map(layer_of).collect();
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers});
        let manifest = manifest.to_string().into_bytes();
        let digest = digest::of(&manifest).to_string();
        for version in [tag, &digest] {
            self.put(format!("/v2/{repository}/manifests/{version}"), kind, manifest.clone());
        }
        let text = |layer: &Value| layer["digest"].as_str().unwrap().to_owned();
        Served { manifest: digest, layers: layers.iter().map(text).collect() }
    }
}

/// A tar of the tree in a directory: the same bytes for the same tree, whenever it was made.
fn packed(directory: &Path) -> Vec<u8> {
    let mut tar = Command::new("tar");
    tar.args(["--format=gnu", "--sort=name", "--mtime=@1", "--owner=0", "--group=0", "-cf", "-", "-C"]);
    let done = output(tar.arg(directory).arg("."));
    assert!(done.status.success(), "{done:?}");
    done.stdout
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut command = Command::new("gzip");
    let mut child = command.arg("-1n").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip");
    let mut input = child.stdin.take().expect("piped");
    thread::scope(|scope| {
        scope.spawn(move || input.write_all(content).expect("gzip reads"));
        child.wait_with_output().expect("gzip ends").stdout
    })
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        if let Some(length) = headers.get("content-length").and_then(|length| length.parse().ok()) {
            reader.take(length).read_to_end(&mut Vec::new())?;
        }
        let request = Request { path, headers };
        let number = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request.clone());
            requests.iter().filter(|earlier| earlier.path == request.path).count() - 1
        };
        let reply = (self.conduct)(&request, number);
        self.answer(&request, reply, stream)
    }

    fn answer(&self, request: &Request, reply: Option<Reply>, mut to: &TcpStream) -> std::io::Result<()> {
        let file = self.files.lock().unwrap().get(&request.path).cloned();
        let range = request
            .headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let (status, kind, body, end) = match (reply, file) {
            (Some(Reply::Status(status, headers, body)), _) => {
                return to.write_all(&[head(status, &headers, body.len()).as_bytes(), &body].concat());
            }
            (Some(Reply::Endless), _) => {
                to.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"x\":\"")?;
                loop {
                    to.write_all(&[b'x'; 64 << 10])?;
                }
            }
            (_, None) => return to.write_all(head(404, &[], 0).as_bytes()),
            (Some(Reply::Whole), Some((kind, body))) => (200, kind, body, None),
            (reply, Some((kind, body))) => {
                let body = body[range.unwrap_or(0).min(body.len())..].to_vec();
                let end = if let Some(Reply::Cut(end)) = reply { Some(end) } else { None };
                (if range.is_some() { 206 } else { 200 }, kind, body, end)
            }
        };
        to.write_all(head(status, &[("Content-Type", kind)], body.len()).as_bytes())?;
        to.write_all(&body[..end.unwrap_or(body.len()).min(body.len())])
    }
}

fn head(status: u16, headers: &[(&str, String)], length: usize) -> String {
    let mut head = format!("HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head + "\r\n"
}
