//! Watchers that clients poll.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use super::watch::Watcher;
use crate::connect::{Code, RpcError};
use crate::messages::filesystem::FilesystemEvent;
use crate::setup::Setup;

/// Most watchers at a time.
const MOST: usize = 256;

/// All watchers, by name.
pub struct Watchers {
    /// Settings of the agent.
    pub setup: Rc<Setup>,
    watchers: RefCell<HashMap<String, Watcher>>,
    last: Cell<u64>,
}

impl Watchers {
    /// No watchers.
    pub fn new(setup: Rc<Setup>) -> Self {
        Self { setup, watchers: RefCell::default(), last: Cell::default() }
    }

    /// Adds a watcher, and names it.
    pub fn add(&self, watcher: Watcher) -> Result<String, RpcError> {
        let mut watchers = self.watchers.borrow_mut();
        if watchers.len() >= MOST {
            let message = format!("there are {MOST} watchers: remove some");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        self.last.set(self.last.get() + 1);
        let name = format!("w{}", self.last.get());
        watchers.insert(name.clone(), watcher);
        Ok(name)
    }

    /// Takes a watcher's next changes.
    pub fn take(&self, name: &str) -> Result<Vec<FilesystemEvent>, RpcError> {
        self.watchers.borrow().get(name).ok_or_else(|| unknown(name))?.take()
    }

    /// Removes a watcher.
    pub fn remove(&self, name: &str) -> Result<(), RpcError> {
        self.watchers.borrow_mut().remove(name).map(drop).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> RpcError {
    RpcError::new(Code::NotFound, format!("no watcher {name}"))
}
