//! Forwards: ports of this host that lead to TCP ports of a guest.
//!
//! ```text
//!   client ── TCP ──> thread "accept" of the forward ──> thread "forward" of the connection
//!                                                           └── vsock ── agent ── TCP ──> program
//! ```

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};

use super::Agent;
use super::pass::pass;
use super::places::{Place, Places};
use crate::failure::Failure;
use crate::messages::say;
use crate::run_dir::forward::Forward;
use crate::run_dir::vm_dir::VmDir;
use crate::threads;

/// Most connections of one process. More wait in the kernel's queues.
const MOST: usize = 256;
/// Time between two attempts to accept after one that failed: without free descriptors, the next fails too.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a port that another process holds: that of a VM which has just ended lets go of it soon.
const TO_OPEN: Duration = Duration::from_millis(500);
/// Time between two attempts to open a port.
const STEP: Duration = Duration::from_millis(10);
/// Time in which clients take the last bytes of a VM that has ended.
const TO_FINISH: Duration = Duration::from_secs(2);

/// A forward whose port of the host is open.
#[derive(Debug)]
pub(crate) struct Listening {
    /// With the port that the host chose, if it was left to it.
    pub(crate) forward: Forward,
    listener: TcpListener,
}

/// The connections of one VM.
#[derive(Debug)]
pub(crate) struct Forwarding {
    listeners: Vec<Arc<TcpListener>>,
    places: Arc<Places>,
}

/// One forward in service.
#[derive(Debug)]
struct Served {
    line: String,
    port: u16,
    agent: Agent,
    vm: Arc<VmDir>,
    /// Whether the agent has answered: a VM that starts keeps its clients waiting.
    ready: Arc<Once>,
    /// The last failure, which is told once.
    told: Mutex<Option<String>>,
}

impl Listening {
    /// Opens the port of the host. `field` is the option that names it.
    ///
    /// # Errors
    /// The host refuses the address, as one in use.
    pub(crate) fn open(forward: &Forward, field: &'static str) -> Result<Self, Failure> {
        let open = || {
            let listener = bind(forward.address)?;
            let forward = Forward { address: listener.local_addr()?, ..*forward };
            Ok(Self { forward, listener })
        };
        open().map_err(|error: io::Error| {
            let cure = match error.kind() {
                io::ErrorKind::AddrInUse => "; choose another port, or 0 for a free one",
                io::ErrorKind::AddrNotAvailable => "; give an address of this host",
                _ => "",
            };
            let problem = format!("cannot listen at {}: {error}{cure}", forward.address);
            Failure::config(field, problem)
        })
    }

    /// The socket, which a process that closes others keeps.
    pub(crate) fn listener(&self) -> &TcpListener {
        &self.listener
    }
}

impl Forwarding {
    /// Serves the forwards in threads of their own, until this process ends.
    ///
    /// # Errors
    /// The host has no thread.
    pub(crate) fn start(agent: &Agent, vm: &Arc<VmDir>, all: Vec<Listening>) -> Result<Self, Failure> {
        let (places, ready) = (Arc::<Places>::default(), Arc::new(Once::new()));
        let mut listeners = Vec::with_capacity(all.len());
        for Listening { forward, listener } in all {
            let served = Arc::new(Served {
                line: forward.line(vm.name()),
                port: forward.port,
                agent: agent.clone(),
                vm: Arc::clone(vm),
                ready: Arc::clone(&ready),
                told: Mutex::default(),
            });
            let (listener, places) = (Arc::new(listener), Arc::clone(&places));
            listeners.push(Arc::clone(&listener));
            threads::spawn("accept", "to accept connections", move || served.accept(&listener, &places))?;
        }
        Ok(Self { listeners, places })
    }

    /// Lets go of the ports. Waits a moment for clients that take the last bytes of an ended VM.
    pub(crate) fn finish(&self) {
        // A socket that does not listen any more leaves its address to others.
        for listener in &self.listeners {
            // It cannot fail for one that listens.
            let _ = shutdown(listener, Shutdown::Both);
        }
        self.places.await_free(TO_FINISH);
    }
}

/// Binds an address, and waits a moment if it is in use.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let end = Instant::now() + TO_OPEN;
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => sleep(STEP),
            bound => return bound,
        }
    }
}

impl Served {
    fn accept(self: &Arc<Self>, listener: &TcpListener, places: &Arc<Places>) {
        loop {
            let begun = match listener.accept() {
                Ok((client, _)) => self.begin(client, places.take(MOST)),
                // The VM has ended.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                Err(error) => Err(Failure::system("accept a connection", error)),
            };
            if let Err(failure) = begun {
                self.tell(Some(&failure));
                sleep(AGAIN);
            }
        }
    }

    fn begin(self: &Arc<Self>, client: TcpStream, place: Place) -> Result<(), Failure> {
        let served = Arc::clone(self);
        let body = move || {
            served.serve(&client);
            drop((client, place));
        };
        threads::spawn("forward", "for a connection", body).map(drop)
    }

    fn serve(&self, client: &TcpStream) {
        // If the VM ends before, the call below says so.
        self.ready.call_once(|| drop(self.agent.wait_ready(None, || self.vm.is_alive())));
        match self.agent.connect_to_port(self.port) {
            Ok(guest) => {
                self.tell(None);
                // A side that breaks off ends the connection, which the other side sees.
                let _ = pass(client, guest);
            }
            Err(failure) => self.tell(Some(&failure)),
        }
    }

    /// Tells a failure, unless it is the last one once more. A success ends the last one.
    fn tell(&self, failure: Option<&Failure>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let failure = failure.map(|failure| volt_vmm::report(failure));
        if let Some(failure) = failure.iter().find(|failure| told.as_ref() != Some(*failure)) {
            say(format!("volt-vmm: {}: {failure}", self.line));
        }
        *told = failure;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn at(listener: &TcpListener) -> Forward {
        Forward { address: listener.local_addr().unwrap(), port: 80 }
    }

    #[test]
    fn port_of_a_forwarding_that_ends_is_free_soon() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let forward = at(&held);
        let opener = thread::spawn(move || Listening::open(&forward, "publish"));
        sleep(2 * STEP);
        // Its connections, and so the socket, stay open for a while.
        let client = TcpStream::connect(forward.address).unwrap();
        let accepted = held.accept().unwrap();
        shutdown(&held, Shutdown::Both).unwrap();
        assert_eq!(held.accept().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(opener.join().unwrap().unwrap().forward, forward);
        drop((client, accepted));
    }

    #[test]
    fn port_in_use_is_refused_with_field_and_cure() {
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let forward = at(&held);
        let error = volt_vmm::report(&Listening::open(&forward, "publish").unwrap_err());
        for part in ["publish", &forward.address.to_string(), "in use", "choose another port, or 0"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
