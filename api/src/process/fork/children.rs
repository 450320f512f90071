//! The detached children of forks. This process reaps each one that ends, so that it does not stay a zombie.

use std::sync::{Mutex, PoisonError};

use volt_vmm::internal::paths::Process;

static CHILDREN: Mutex<Vec<Process>> = Mutex::new(Vec::new());

/// Detaches a child. Adds it to those to reap, unless another process is its parent.
pub(crate) fn add(child: Process) {
    let Some(child) = child.detach() else { return };
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    // Its SIGCHLD may have come before it was in the list.
    reap();
}

/// Reaps the children that have ended. The signal thread calls this at SIGCHLD.
pub(crate) fn reap() {
    let mut children = CHILDREN.lock().unwrap_or_else(PoisonError::into_inner);
    children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

#[cfg(test)]
mod tests {
    use volt_vmm::internal::paths::Program;

    use super::*;

    #[test]
    fn ended_child_is_reaped_and_removed() {
        let is_listed = |pid| CHILDREN.lock().unwrap().iter().any(|child| child.id() == pid);
        let child = Program::new("sleep").argument("1000").start().unwrap();
        let pid = child.id();
        add(child);
        assert!(is_listed(pid));
        CHILDREN.lock().unwrap().iter_mut().find(|child| child.id() == pid).unwrap().kill().unwrap();
        while is_listed(pid) {
            reap();
        }
        assert!(!std::fs::exists(format!("/proc/{pid}")).unwrap());
    }
}
