//! The children that this process has let go, so that none stays a zombie when it ends before its parent. They are nobody's business
//! otherwise.

use std::process::Child;
use std::sync::{Mutex, PoisonError};

static CHILDREN: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Takes a child that is on its own from now on.
pub(crate) fn let_go(child: Child) {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    // It may have ended before it was known here.
    reap();
}

/// Forgets those that have ended. Called at SIGCHLD.
pub(crate) fn reap() {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_has_ended_is_forgotten() {
        let known = |pid| CHILDREN.lock().unwrap().iter().any(|child| child.id() == pid);
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        let_go(child);
        assert!(known(pid));
        CHILDREN.lock().unwrap().iter_mut().find(|child| child.id() == pid).unwrap().kill().unwrap();
        while known(pid) {
            reap();
        }
        assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap());
    }
}
