//! The calls for trees, whose format `volt_job` has.

use std::io::{self, Write};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;
use volt_job::tree::{Options, Owner, Source, Unpacked, unpack};

use super::blocking;
use super::body::receive;
use crate::filesystem::path::resolve;
use crate::query::Query;
use crate::reply::{Failure, Reply, ReplyBody, json};
use crate::setup::Setup;
use crate::users::{User, find_spec};

const PIECE: usize = 64 << 10;
const QUEUED: usize = 2;
/// Most warnings of an answer.
const WARNINGS: usize = 100;

/// Sends the tree at `path`. A symlink is the tree itself, unless a slash follows it.
pub async fn send(setup: &Setup, query: &Query, headers: &HeaderMap) -> Result<Reply, Failure> {
    let user = caller(setup, headers)?;
    let asked = required(query, "path")?;
    let follow = asked.ends_with('/');
    let path = resolve(&user, asked).map_err(|error| bad(error.message))?;
    let source = blocking(move || Source::open(&path, follow).map_err(|error| failed(&error))).await?;
    let (sender, pieces) = mpsc::channel(QUEUED);
    tokio::task::spawn_blocking(move || {
        let mut output = Pieces { sender, piece: Vec::new() };
        // The stream itself tells of a failure, or lacks its end.
        let _ = source.pack(&mut output);
    });
    let mut reply = Response::new(ReplyBody::Pieces(pieces));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(reply)
}

/// Unpacks a tree into the directory at `path`.
///
/// The first entry takes the name `name`; `.` makes it the directory itself. The owner of new entries is
/// `owner`: `USER[:GROUP]`, or `keep` for that of the stream. Without it, the call's user is the owner.
pub async fn receive_tree(
    setup: &Setup,
    query: &Query,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Failure> {
    let user = caller(setup, headers)?;
    let path = resolve(&user, required(query, "path")?).map_err(|error| bad(error.message))?;
    let owner = owner(&user, query.get("owner"))?;
    let name = query.get("name").map(str::to_owned);
    let (mut received, forwarded) = receive(body);
    let unpacking = blocking(move || {
        let mut told = Unpacked::default();
        let options = Options { name: name.as_deref().map(str::as_ref), owner };
        let mut warn = |warning: &str| match told.warnings.len() < WARNINGS {
            true => told.warnings.push(warning.to_owned()),
            false => told.more_warnings += 1,
        };
        unpack(&mut received, &path, &options, &mut warn).map_err(|error| failed(&error))?;
        Ok(told)
    });
    let (unpacked, ()) = tokio::join!(unpacking, forwarded);
    Ok(json(StatusCode::OK, &unpacked?))
}

fn caller(setup: &Setup, headers: &HeaderMap) -> Result<User, Failure> {
    setup.caller(headers).map_err(|error| Failure::new(error.code.status(), error.message))
}

fn owner(user: &User, asked: Option<&str>) -> Result<Owner, Failure> {
    match asked {
        None => Ok(Owner::Given { user: user.uid, group: user.gid }),
        Some("keep") => Ok(Owner::Kept),
        Some(spec) => {
            let found = find_spec(spec).map_err(bad)?;
            Ok(Owner::Given { user: found.uid, group: found.gid })
        }
    }
}

fn required<'a>(query: &'a Query, name: &str) -> Result<&'a str, Failure> {
    query.get(name).ok_or_else(|| bad(format!("the query lacks {name}")))
}

fn bad(why: String) -> Failure {
    Failure::new(StatusCode::BAD_REQUEST, why)
}

/// A failure whose error names the act and the path already.
fn failed(error: &io::Error) -> Failure {
    Failure { message: error.to_string(), ..Failure::of_file("", error) }
}

/// Gathers output into pieces for the connection.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let length = bytes.len().min(PIECE - self.piece.len());
        self.piece.extend_from_slice(&bytes[..length]);
        if self.piece.len() == PIECE {
            self.flush()?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.piece).into();
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::scratch::{Scratch, user};

    #[test]
    fn owner_is_the_user_unless_the_call_names_another() {
        let me = user(1234, "/".as_ref());
        let given = |user, group| Owner::Given { user, group };
        for (asked, wanted) in [
            (None, given(1234, 1234)),
            (Some("keep"), Owner::Kept),
            (Some("54321:12"), given(54_321, 12)),
            (Some("root"), given(0, 0)),
        ] {
            assert_eq!(owner(&me, asked).unwrap(), wanted, "{asked:?}");
        }
        assert_eq!(owner(&me, Some("no-such-user")).unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn pieces_carry_a_tree_and_stop_without_a_reader() {
        let scratch = Scratch::new();
        let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        fs::create_dir_all(scratch.path("tree/dir")).unwrap();
        fs::write(scratch.path("tree/dir/file"), &content).unwrap();
        fs::create_dir(scratch.path("to")).unwrap();
        let open = || Source::open(&scratch.path("tree"), false).unwrap();

        let (sender, mut pieces) = mpsc::channel(QUEUED);
        let mut stream = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| open().pack(&mut Pieces { sender, piece: Vec::new() }).unwrap());
            while let Some(piece) = pieces.blocking_recv() {
                stream.extend_from_slice(&piece.unwrap());
            }
        });
        let options = Options { name: Some("copy".as_ref()), owner: Owner::Process };
        unpack(&mut &stream[..], &scratch.path("to"), &options, &mut |_| {}).unwrap();
        assert_eq!(fs::read(scratch.path("to/copy/dir/file")).unwrap(), content);

        let (sender, _) = mpsc::channel(QUEUED);
        let error = open().pack(&mut Pieces { sender, piece: Vec::new() }).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
