//! Sends files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzEncoder;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, VARY,
};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use super::{blocking, open, user};
use crate::connect::call::header;
use crate::filesystem::path::resolve;
use crate::query::Query;
use crate::reply::{Failure, Reply, ReplyBody};
use crate::setup::Setup;

const PIECE: usize = 32 << 10;
const QUEUED: usize = 2;

/// Sends a file.
pub async fn download(setup: &Setup, query: &Query, headers: &HeaderMap) -> Result<Reply, Failure> {
    let Some(gzip) = wants_gzip(header(headers, ACCEPT_ENCODING.as_str())) else {
        let why = "Accept-Encoding permits neither identity nor gzip";
        return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, why));
    };
    let user = user(setup, query)?;
    let path = resolve(&user, query.get("path").unwrap_or_default())
        .map_err(|error| Failure::new(StatusCode::BAD_REQUEST, error.message))?;
    let (file, length) = blocking(move || opened(&path)).await?;

    let (pieces, received) = mpsc::channel(QUEUED);
    tokio::task::spawn_blocking(move || {
        // Files of procfs have a length of 0 and content.
        let limited = file.take(if length == 0 { u64::MAX } else { length });
        if gzip {
            send(GzEncoder::new(limited, Compression::fast()), &pieces)
        } else {
            send(limited, &pieces)
        }
    });
    let mut reply = Response::new(ReplyBody::Pieces(received));
    let set = reply.headers_mut();
    set.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    set.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    if gzip {
        set.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    } else if length > 0 {
        set.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(reply)
}

fn opened(path: &Path) -> Result<(File, u64), Failure> {
    let failed = |error: io::Error| Failure::of_file(&format!("read {}", path.display()), &error);
    let file = open::to_read(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    Ok((file, length))
}

fn send(mut content: impl Read, pieces: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut piece = vec![0; PIECE];
        let (piece, is_last) = match content.read(&mut piece) {
            Ok(0) => return,
            Ok(length) => {
                piece.truncate(length);
                (Ok(piece.into()), false)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => (Err(error), true),
        };
        // It fails if the client is gone.
        if pieces.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Chooses gzip if the client names no other coding that it prefers. `None` means that neither one will do.
///
/// Clients list gzip among others by habit, and compression costs more than the way to the host.
fn wants_gzip(accepted: Option<&str>) -> Option<bool> {
    let Some(accepted) = accepted.filter(|text| !text.trim().is_empty()) else { return Some(false) };
    let (mut gzip, mut identity, mut any, mut others) = (None, None, None, 0);
    for item in accepted.split(',') {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).and_then(|text| text.parse().ok());
        let quality: f32 = quality.unwrap_or(1.0);
        match name.as_str() {
            "gzip" | "x-gzip" => gzip = Some(quality),
            "identity" => identity = Some(quality),
            "*" => any = Some(quality),
            _ => others += 1,
        }
    }
    let gzip_quality = gzip.or(any).unwrap_or(0.0);
    let identity_quality = identity.or(any.filter(|&quality| quality == 0.0));
    match (gzip_quality > 0.0, identity_quality) {
        (false, Some(0.0)) => None,
        (true, Some(0.0)) => Some(true),
        (true, Some(identity)) => Some(gzip_quality > identity),
        (true, None) => Some(gzip.is_some() && others == 0),
        (false, _) => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coding_follows_the_clients_choice() {
        for (accepted, wanted) in [
            (None, Some(false)),
            (Some("gzip"), Some(true)),
            (Some("gzip, deflate, br"), Some(false)),
            (Some("*"), Some(false)),
            (Some("gzip, identity;q=0.5"), Some(true)),
            (Some("gzip;q=0"), Some(false)),
            (Some("br, identity;q=0"), None),
            (Some("br, *;q=0"), None),
            (Some("gzip, identity;q=0, br"), Some(true)),
        ] {
            assert_eq!(wants_gzip(accepted), wanted, "{accepted:?}");
        }
    }
}
