//! Puts files together.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;
use hyper::body::Incoming;
use rustix::fs::{AtFlags, unlinkat};
use serde::Deserialize;

use super::open::{self, Replacement};
use super::upload::Written;
use super::{blocking, user};
use crate::filesystem::path::resolve;
use crate::filesystem::walk::{Missing, place};
use crate::query::Query;
use crate::reply::{Failure, Reply, json};
use crate::setup::Setup;
use crate::users::User;

/// Longest body.
const LONGEST: usize = 1 << 20;

/// The body.
#[derive(Deserialize)]
struct Request {
    #[serde(alias = "sourcePaths", alias = "source_paths")]
    sources: Vec<String>,
    #[serde(alias = "destinationPath", alias = "destination_path", alias = "path")]
    destination: String,
}

/// Joins the sources in their order, and removes them.
pub async fn compose(setup: &Setup, query: &Query, body: Incoming) -> Result<Reply, Failure> {
    let bad = |why: String| Failure::new(StatusCode::BAD_REQUEST, why);
    let content = Limited::new(body, LONGEST).collect().await;
    let content = content.map_err(|error| bad(format!("cannot read the body: {error}")))?.to_bytes();
    let request: Request =
        serde_json::from_slice(&content).map_err(|error| bad(format!("cannot read the body: {error}")))?;
    let user = user(setup, query)?;
    let absolute = |path: &String| resolve(&user, path).map_err(|error| bad(error.message));
    let sources = request.sources.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
    let destination = absolute(&request.destination)?;
    if sources.is_empty() || sources.contains(&destination) {
        return Err(bad("sources is empty, or contains the destination".into()));
    }
    let written = blocking(move || join(&user, &sources, &destination)).await?;
    Ok(json(StatusCode::OK, &written))
}

/// Writes the destination beside its place first: a failure leaves the sources and the old destination.
fn join(user: &User, sources: &[PathBuf], destination: &Path) -> Result<Written, Failure> {
    let mut files = Vec::new();
    for source in sources {
        let read = |error: io::Error| Failure::of_file(&format!("read {}", source.display()), &error);
        files.push(open::to_read(source).map_err(read)?);
    }
    let write = |error: io::Error| Failure::of_file(&format!("write {}", destination.display()), &error);
    let mut whole = Replacement::new(user, destination).map_err(write)?;
    for (file, source) in files.iter_mut().zip(sources) {
        if whole.replaces(&*file).map_err(write)? {
            let why = format!("the destination is the source {}", source.display());
            return Err(Failure::new(StatusCode::BAD_REQUEST, why));
        }
        io::copy(file, &mut whole.file).map_err(write)?;
    }
    whole.finish().map_err(write)?;
    for source in sources {
        let removed = place(user, source, Missing::Fail)
            .and_then(|place| Ok(unlinkat(&place.parent, &place.name, AtFlags::empty())?));
        match removed {
            // The sources may name one file twice.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed.map_err(|error| Failure::of_file(&format!("remove {}", source.display()), &error))?
            }
        }
    }
    Ok(Written::new(destination, BTreeMap::new()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::{Scratch, user};

    #[test]
    fn destination_that_is_a_source_under_another_name_is_refused_and_stays() {
        let scratch = Scratch::new();
        let me = user(rustix::process::geteuid().as_raw(), &scratch.path(""));
        for (name, text) in [("a", "1"), ("b", "2")] {
            fs::write(scratch.path(name), text).unwrap();
        }
        symlink("b", scratch.path("link")).unwrap();
        fs::hard_link(scratch.path("b"), scratch.path("hard")).unwrap();
        let sources = ["a", "b"].map(|name| scratch.path(name));
        for name in ["link", "hard"] {
            let error = join(&me, &sources, &scratch.path(name)).err().unwrap();
            assert!(error.status == StatusCode::BAD_REQUEST && error.message.contains("is the source"));
            assert_eq!(fs::read(scratch.path("b")).unwrap(), b"2");
        }
        let sources = ["a", "b", "a"].map(|name| scratch.path(name));
        join(&me, &sources, &scratch.path("new/whole")).unwrap();
        assert_eq!(fs::read(scratch.path("new/whole")).unwrap(), b"121");
        assert!(!scratch.path("a").exists() && !scratch.path("b").exists());
        assert_eq!(fs::read_dir(scratch.path("new")).unwrap().count(), 1);
    }
}
