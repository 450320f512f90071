//! A stand-in for the program `volt-vmm`, and one for the agent of a guest.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use volt_agent_client::Agent;

use crate::builder::Builder;
use crate::exec::Exec;

/// A directory that goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("volt-sandbox-{}-{number}", process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// It is a file of its own: one that a test writes may be busy while other tests start processes.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/testing/volt-vmm.sh");

/// A program that writes each of its command lines to a file, and keeps one VM `web` and its children.
#[derive(Debug)]
pub(crate) struct FakeProgram {
    pub(crate) dir: Dir,
}

impl FakeProgram {
    pub(crate) fn new() -> Self {
        let dir = Dir::new();
        fs::create_dir(dir.path("web")).unwrap();
        let record = |name: &str, id: &str, more: &str| {
            let socket = dir.path(name).join("api.sock");
            format!(r#"{{"id":"{id}","name":"{name}","api_socket":{socket:?}{more}}}"#)
        };
        let main = r#","main":{"env":["A=image"],"cwd":"/srv","user":"app"}"#;
        fs::write(dir.path("web/vm.json"), record("web", "0123", main)).unwrap();
        fs::write(dir.path("web.json"), record("web", "0123", "")).unwrap();
        fs::write(dir.path("inspect.json"), record("web", "0123", r#","state":"running""#)).unwrap();
        let children = [record("web-1", "0001", ""), record("web-2", "0002", "")];
        fs::write(dir.path("children.json"), format!("[{}]", children.join(","))).unwrap();
        Self { dir }
    }

    /// A builder that uses it.
    pub(crate) fn builder(&self) -> Builder {
        self.builder_of()
    }

    pub(crate) fn builder_of<Face>(&self) -> Builder<Face> {
        Builder::new().image("i").program(PROGRAM).data_dir(&self.dir.0)
    }

    /// The command lines after the start so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path("calls")).unwrap_or_default();
        calls.lines().filter(|line| !line.starts_with("run ")).map(str::to_owned).collect()
    }
}

/// An agent that gives fixed answers, one a connection.
#[derive(Debug)]
pub(crate) struct FakeAgent {
    dir: Dir,
    /// The requests, as they came.
    pub(crate) requests: Receiver<String>,
}

/// One answer of a [`FakeAgent`].
pub(crate) enum Answer {
    /// All of it, with its head.
    Whole(Vec<u8>),
    /// The connection stays open behind it.
    Open(Vec<u8>),
    /// Nothing, for a request that ends with an empty chunk.
    Input,
    /// The rest comes once it is told to.
    #[cfg(feature = "tokio")]
    Later(Vec<u8>, Receiver<()>, Vec<u8>),
}

impl FakeAgent {
    pub(crate) fn new(answers: Vec<Answer>) -> Self {
        let dir = Dir::new();
        let listener = UnixListener::bind(dir.path("vsock")).unwrap();
        let (sender, requests) = channel();
        thread::spawn(move || {
            let mut open = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                open.extend(serve(stream, answer, &sender));
            }
        });
        Self { dir, requests }
    }

    pub(crate) fn agent(&self) -> Agent {
        Agent::new(&self.dir.path("vsock"))
    }

    pub(crate) fn exec(&self, words: &[&str]) -> Exec {
        Exec::new(self.agent(), "web", words.iter().map(ToString::to_string).collect(), Default::default())
    }
}

/// Answers one request. Returns a stream that stays open.
fn serve(stream: UnixStream, answer: Answer, requests: &Sender<String>) -> Option<UnixStream> {
    let mut reader = BufReader::new(&stream);
    let mut connect = String::new();
    reader.read_line(&mut connect).unwrap();
    assert_eq!(connect, "CONNECT 49983\n");
    (&stream).write_all(b"OK 1\n").unwrap();
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let at = head.len();
        reader.read_line(&mut head).unwrap();
        length =
            head[at..].strip_prefix("Content-Length: ").map_or(length, |text| text.trim().parse().unwrap());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let bytes = match answer {
        Answer::Input => {
            while !body.ends_with(b"\r\n0\r\n\r\n") {
                let mut byte = [0];
                reader.read_exact(&mut byte).unwrap();
                body.extend(byte);
            }
            Vec::new()
        }
        Answer::Whole(ref bytes) | Answer::Open(ref bytes) => bytes.clone(),
        #[cfg(feature = "tokio")]
        Answer::Later(ref bytes, ..) => bytes.clone(),
    };
    // The test may have seen enough.
    let _ = requests.send(head + &String::from_utf8_lossy(&body));
    let _ = (&stream).write_all(&bytes);
    #[cfg(feature = "tokio")]
    if let Answer::Later(_, go, rest) = &answer {
        go.recv().unwrap();
        (&stream).write_all(rest).unwrap();
    }
    matches!(answer, Answer::Open(_)).then_some(stream)
}

/// The head of an answer, and messages of a stream.
pub(crate) fn stream(messages: &[&str], last: Option<&str>) -> Vec<u8> {
    let mut bytes = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
    let messages = messages.iter().map(|message| (0, message)).chain(last.iter().map(|last| (2, last)));
    for (flags, message) in messages {
        bytes.push(flags);
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend(message.as_bytes());
    }
    bytes
}

/// An answer with a status and a body.
pub(crate) fn plain(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.0 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}
