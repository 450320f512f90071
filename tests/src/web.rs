//! A server of static files for names of its own, over HTTP and HTTPS. It notes each request.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::scope;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::streams::each_stream;

/// Bytes of the longest head of a request.
const LONGEST_HEAD: usize = 16 << 10;
/// The path that leads elsewhere.
const AWAY: &str = "/away";

/// See the module.
#[derive(Debug)]
pub struct Web {
    files: PathBuf,
    elsewhere: String,
    authority: String,
    config: Arc<ServerConfig>,
    requests: Mutex<Vec<String>>,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/1.1 without encryption.
    Http,
    /// The same over TLS 1.2 and 1.3.
    Https,
}

impl Web {
    /// Makes a server of `files`, whose certificate is for these names. `/away` leads to `elsewhere`, a URL.
    ///
    /// # Panics
    /// A name is none.
    #[must_use]
    pub fn new(files: &Path, names: &[&str], elsewhere: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // OpenSSL takes a certificate for self-signed if its subject has the name of its issuer.
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("a certificate of an authority");
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("names of servers");
        let certificate = params.signed_by(&key, &authority).expect("a certificate of a server");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .expect("a certificate and its key");
        Self {
            files: files.to_owned(),
            elsewhere: elsewhere.to_owned(),
            authority: authority.pem(),
            config: Arc::new(config),
            requests: Mutex::default(),
        }
    }

    /// The certificate of the authority that clients have to trust.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The requests so far: scheme, host and path of each.
    ///
    /// # Panics
    /// A thread of the server has panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no thread panicked").clone()
    }

    /// Answers connections until the flag is set.
    pub fn serve(&self, listener: &TcpListener, scheme: Scheme, has_ended: &AtomicBool) {
        scope(|scope| {
            each_stream(listener, has_ended, |stream| {
                // A client that goes away is no error of the server.
                scope.spawn(move || drop(self.serve_one(stream, scheme)));
            });
        });
    }

    fn serve_one(&self, stream: TcpStream, scheme: Scheme) -> io::Result<()> {
        if scheme == Scheme::Http {
            return self.answer("http", &stream);
        }
        let connection = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        let name = stream.conn.server_name().unwrap_or("no-name").to_owned();
        self.answer(&format!("https for {name}"), &mut stream)?;
        stream.conn.send_close_notify();
        stream.flush()
    }

    /// Answers one request.
    fn answer(&self, scheme: &str, mut stream: impl Read + Write) -> io::Result<()> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST_HEAD {
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head);
        let mut words = head.split_whitespace();
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default().split('?').next().unwrap_or_default();
        let host = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("host").then(|| value.trim())
        });
        let host = host.unwrap_or("no-host");
        self.requests.lock().expect("no thread panicked").push(format!("{scheme}: {host} {path}"));
        let (status, location, body) = self.found(path);
        let len = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\n{location}Content-Length: {len}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        if method != "HEAD" {
            stream.write_all(&body)?;
        }
        stream.flush()
    }

    /// The status of an answer, a line of its head, and its content.
    fn found(&self, path: &str) -> (&'static str, String, Vec<u8>) {
        if path == AWAY {
            return ("302 Found", format!("Location: {}\r\n", self.elsewhere), Vec::new());
        }
        let mut file = self.files.join(path.trim_start_matches('/'));
        if file.is_dir() {
            file.push("index.html");
        }
        match fs::read(file) {
            Ok(content) if !path.contains("..") => {
                let kind = if path.ends_with('/') { "Content-Type: text/html\r\n" } else { "" };
                ("200 OK", kind.to_owned(), content)
            }
            _ => ("404 Not Found", String::new(), Vec::new()),
        }
    }
}
