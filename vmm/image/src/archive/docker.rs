//! An archive of `docker save`: `manifest.json` lists images, with the files of each.

use serde::Deserialize;

use super::files::Files;
use super::{Loaded, loaded};
use crate::error::{Error, Result};
use crate::store::{LayerRecord, Options, Store, Wanted, diff_ids};

/// An image of the list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn load(store: &Store, files: &Files, options: Options<'_>) -> Result<Vec<Loaded>> {
    let list = files.read("manifest.json")?;
    let list: Vec<Listed> = serde_json::from_slice(&list).map_err(|problem| Error::Document {
        what: files.path().join("manifest.json").display().to_string(),
        problem: problem.to_string(),
    })?;
    list.iter().map(|listed| load_one(store, files, listed, options)).collect()
}

fn load_one(store: &Store, files: &Files, listed: &Listed, options: Options<'_>) -> Result<Loaded> {
    let config = files.read(&listed.config)?;
    let diff_ids = diff_ids(&config, listed.layers.len())?;
    let wanted = listed
        .layers
        .iter()
        .zip(diff_ids)
        .map(|(path, diff_id)| {
            let size = files.find(path).map_err(Error::host("open", &files.path().join(path)))?.0;
            Ok(Wanted {
                // The list does not tell digests of compressed streams, and docker does not compress them.
                record: LayerRecord { digest: diff_id.clone(), diff_id, size },
                is_packed: false,
                open: Box::new(move || Ok(files.find(path)?.1)),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let id = store.add(&config, None, &wanted, options)?;
    loaded(store, id, listed.repo_tags.as_deref().unwrap_or_default())
}
