//! Receives files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap};
use serde::Serialize;

use super::body::receive;
use super::metadata;
use super::multipart::{Parts, boundary};
use super::open;
use super::{blocking, user};
use crate::connect::call::header;
use crate::filesystem::path::resolve;
use crate::query::Query;
use crate::reply::{Failure, Reply, json};
use crate::setup::Setup;
use crate::users::User;

/// A file that was written.
#[derive(Serialize)]
pub struct Written {
    path: String,
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
}

impl Written {
    /// Tells of a file.
    pub fn new(path: &Path, metadata: BTreeMap<String, String>) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { path: path.to_string_lossy().into_owned(), name, r#type: "file", metadata }
    }
}

/// The form of a body.
enum Form {
    Multipart(String),
    Content,
}

/// Writes the files of a body.
pub async fn upload(
    setup: &Setup,
    query: &Query,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Reply, Failure> {
    let bad = |why: &str| Failure::new(StatusCode::BAD_REQUEST, why);
    let user = user(setup, query)?;
    let path = query.get("path").map(|path| place(&user, path)).transpose()?;
    let content_type = header(headers, CONTENT_TYPE.as_str()).unwrap_or_default();
    let form = match boundary(content_type) {
        Some(boundary) => Form::Multipart(boundary),
        None if content_type.split(';').next().unwrap_or_default().trim() == "application/octet-stream" => {
            Form::Content
        }
        None => return Err(bad("Content-Type is neither application/octet-stream nor multipart/form-data")),
    };
    let gzip = match header(headers, CONTENT_ENCODING.as_str()) {
        None | Some("identity") => false,
        Some("gzip") => true,
        Some(_) => return Err(bad("Content-Encoding is neither gzip nor identity")),
    };
    let metadata = metadata::of_headers(headers)?;
    let (received, forwarded) = receive(body);
    let writing = blocking(move || {
        let content: Box<dyn Read> =
            if gzip { Box::new(MultiGzDecoder::new(received)) } else { Box::new(received) };
        match (form, path) {
            (Form::Multipart(boundary), path) => {
                write_parts(&user, path, Parts::new(content, &boundary), &metadata)
            }
            (Form::Content, Some(path)) => {
                let mut content = content;
                let written =
                    write(&user, &path, &metadata, |file| io::copy(&mut content, file).map(|_| ()))?;
                Ok(vec![written])
            }
            (Form::Content, None) => Err(bad("the query lacks path")),
        }
    });
    let (written, ()) = tokio::join!(writing, forwarded);
    Ok(json(StatusCode::OK, &written?))
}

fn place(user: &User, path: &str) -> Result<PathBuf, Failure> {
    resolve(user, path).map_err(|error| Failure::new(StatusCode::BAD_REQUEST, error.message))
}

fn write_parts(
    user: &User,
    mut path: Option<PathBuf>,
    mut parts: Parts<impl Read>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<Written>, Failure> {
    let has_path = path.is_some();
    let mut all = Vec::new();
    let failed = |error: io::Error| Failure::of_file("read the body", &error);
    while let Some(part) = parts.next().map_err(failed)? {
        if part.name != "file" {
            continue;
        }
        let path = match (path.take(), part.file_name) {
            (Some(path), _) => path,
            (None, Some(name)) if !has_path => place(user, &name)?,
            (None, _) if has_path => {
                let why = "the query has one path for several files: give each part a filename instead";
                return Err(Failure::new(StatusCode::BAD_REQUEST, why));
            }
            _ => return Err(Failure::new(StatusCode::BAD_REQUEST, "a part lacks filename")),
        };
        all.push(write(user, &path, metadata, |file| parts.copy(file))?);
    }
    Ok(all)
}

/// Writes one file, whose content `fill` writes.
fn write(
    user: &User,
    path: &Path,
    metadata: &BTreeMap<String, String>,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<Written, Failure> {
    let failed = |error: io::Error| Failure::of_file(&format!("write {}", path.display()), &error);
    let mut file = open::to_write(user, path).map_err(failed)?;
    fill(&mut file).map_err(failed)?;
    metadata::replace(&file, metadata).map_err(failed)?;
    Ok(Written::new(path, metadata.clone()))
}
