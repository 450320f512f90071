//! Data of the metadata service: values that the host stores for a guest, and tokens for reading them.
//!
//! ```text
//!   host ──put, change──> MetadataStore ──find──> a network device's answer to its guest
//! ```
//!
//! A store belongs to one process. Snapshots have neither data nor tokens, so a clone learns no secret of the
//! VM that it was made from.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, Invalid, Result};
use crate::sync::lock;

mod merge;
mod tokens;

use tokens::Tokens;

/// The stored metadata of a VM. Cloning shares it, and it may change at any time.
#[derive(Clone)]
pub struct MetadataStore(Arc<Shared>);

struct Shared {
    /// Most bytes of the content as JSON.
    limit: usize,
    /// Nothing before the first put.
    content: Mutex<Option<Value>>,
    /// Made at the first use.
    tokens: OnceLock<Tokens>,
}

impl MetadataStore {
    /// Most bytes of the content of a store by default.
    pub const DEFAULT_LIMIT: usize = 51_200;

    /// Makes an empty store for at most `limit` bytes of JSON.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Shared { limit, content: Mutex::default(), tokens: OnceLock::new() }))
    }

    /// Most bytes of the content as JSON.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Replaces the whole content.
    ///
    /// # Errors
    /// [`Error::MetadataTooLarge`]. The store is as it was.
    pub fn put(&self, content: Value) -> Result<()> {
        self.check_size(&content)?;
        *lock(&self.0.content) = Some(content);
        Ok(())
    }

    /// Changes the content by a JSON merge patch (RFC 7396).
    ///
    /// # Errors
    /// [`Error::MetadataTooLarge`], or [`Error::Config`] if nothing was put yet. The store is as it was.
    pub fn change(&self, patch: Value) -> Result<()> {
        let mut content = lock(&self.0.content);
        let mut changed = content.clone().ok_or_else(|| Error::config("metadata", Invalid::NoMetadata))?;
        merge::merge(&mut changed, patch);
        self.check_size(&changed)?;
        *content = Some(changed);
        Ok(())
    }

    /// The content, if any was put.
    #[must_use]
    pub fn content(&self) -> Option<Value> {
        lock(&self.0.content).clone()
    }

    /// Calls `act` with the value at a JSON pointer (RFC 6901), or returns `None` if there is no such value.
    pub(crate) fn find<T>(&self, pointer: &str, act: impl FnOnce(&Value) -> T) -> Option<T> {
        lock(&self.0.content).as_ref()?.pointer(pointer).map(act)
    }

    /// Issues a token that is valid for some time, or returns `None` if the host has no randomness.
    pub(crate) fn issue_token(&self, valid: Duration, now: Instant) -> Option<String> {
        Some(self.tokens()?.issue(valid, now))
    }

    /// Whether this store issued the token, and it is still valid.
    pub(crate) fn accepts_token(&self, token: &str, now: Instant) -> bool {
        self.0.tokens.get().is_some_and(|tokens| tokens.accept(token, now))
    }

    fn tokens(&self) -> Option<&Tokens> {
        if self.0.tokens.get().is_none() {
            // Two interfaces may do so at once. The first one wins.
            let _ = self.0.tokens.set(Tokens::new()?);
        }
        self.0.tokens.get()
    }

    fn check_size(&self, content: &Value) -> Result<()> {
        let (bytes, limit) = (content.to_string().len(), self.0.limit);
        if bytes > limit { Err(Error::MetadataTooLarge { bytes, limit }) } else { Ok(()) }
    }
}

impl Default for MetadataStore {
    fn default() -> Self {
        Self::new(Self::DEFAULT_LIMIT)
    }
}

/// All stores are equal: a store is no part of a configuration.
impl PartialEq for MetadataStore {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for MetadataStore {}

/// Leaves the content out, which may be secret.
impl fmt::Debug for MetadataStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataStore").field("limit", &self.0.limit).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn content_is_put_changed_and_found() {
        let store = MetadataStore::default();
        assert_eq!(store.content(), None);
        assert_eq!(store.find("", Value::clone), None);
        store.put(json!({"a": {"b": "c"}, "d": 1})).unwrap();
        store.change(json!({"d": null, "a": {"e": "f"}})).unwrap();
        assert_eq!(store.content(), Some(json!({"a": {"b": "c", "e": "f"}})));
        assert_eq!(store.find("/a/e", Value::clone), Some(json!("f")));
        assert_eq!(store.find("/d", Value::clone), None);
    }

    #[test]
    fn change_before_any_content_is_refused() {
        let store = MetadataStore::default();
        let error = store.change(json!({"a": 1})).unwrap_err().to_string();
        assert_eq!(error, "metadata: nothing to change yet; put the whole content first");
        assert_eq!(store.content(), None);
        store.put(Value::Null).unwrap();
        store.change(json!({"a": 1})).unwrap();
    }

    #[test]
    fn content_beyond_the_limit_is_refused_and_the_old_one_stays() {
        let store = MetadataStore::new(10);
        store.put(json!({"a": "12"})).unwrap();
        for refused in [store.put(json!({"a": "123"})), store.change(json!({"b": "1"}))] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("exceeds the limit of 10"), "{error}");
        }
        assert_eq!(store.content(), Some(json!({"a": "12"})));
        store.change(json!({"a": "21"})).unwrap();
    }

    #[test]
    fn debug_format_keeps_the_content_secret() {
        let store = MetadataStore::default();
        store.put(json!({"password": "hunter2"})).unwrap();
        assert!(!format!("{store:?}").contains("hunter2"));
    }

    #[test]
    fn token_of_one_store_is_invalid_in_another() {
        let (one, other, now) = (MetadataStore::default(), MetadataStore::default(), Instant::now());
        let token = one.issue_token(Duration::from_secs(60), now).unwrap();
        other.issue_token(Duration::from_secs(60), now).unwrap();
        assert!(one.accepts_token(&token, now) && !other.accepts_token(&token, now));
        assert!(!MetadataStore::default().accepts_token(&token, now), "no token was issued there");
    }
}
