//! Connections whose clients hear of the main process's end before the VM ends.

use std::cell::Cell;
use std::rc::Rc;

use tokio::sync::{Notify, watch};

/// An extension of replies whose clients hear of the end.
#[derive(Clone, Copy, Debug)]
pub struct TellsEnd;

/// All such connections.
#[derive(Debug, Default)]
pub struct Farewell {
    open: Cell<usize>,
    closed: Notify,
    over: watch::Sender<bool>,
}

impl Farewell {
    /// Asks all connections to end after their last reply, and waits until those that tell the end have.
    pub async fn say(&self) {
        self.over.send_replace(true);
        loop {
            let closed = self.closed.notified();
            if self.open.get() == 0 {
                return;
            }
            closed.await;
        }
    }

    /// Waits until connections shall end.
    pub async fn said(&self) {
        // The sender lives as long as `self`.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }
}

/// A connection.
#[derive(Debug)]
pub struct Line {
    farewell: Rc<Farewell>,
    tells: Cell<bool>,
}

impl Line {
    /// A connection that tells nothing yet.
    pub fn new(farewell: &Rc<Farewell>) -> Self {
        Self { farewell: Rc::clone(farewell), tells: Cell::default() }
    }

    /// Notes that its client hears of the end.
    pub fn set_tells(&self) {
        if !self.tells.replace(true) {
            self.farewell.open.set(self.farewell.open.get() + 1);
        }
    }

    /// Whether its client hears of the end.
    pub fn tells(&self) -> bool {
        self.tells.get()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.tells.get() {
            self.farewell.open.set(self.farewell.open.get() - 1);
            self.farewell.closed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn farewell_waits_for_the_lines_that_tell() {
        let farewell = Rc::new(Farewell::default());
        let (telling, _other) = (Line::new(&farewell), Line::new(&farewell));
        telling.set_tells();
        telling.set_tells();
        let (said, waited) = (Cell::new(false), Cell::new(false));
        tokio::join!(
            async {
                farewell.say().await;
                said.set(true);
            },
            async {
                farewell.said().await;
                waited.set(true);
            },
            async {
                yield_now().await;
                assert!(waited.get() && !said.get());
                drop(telling);
            },
        );
        assert!(said.get());
    }
}
