//! Snapshots, restores, forks and rewinds of VMs whose connections are busy, and many clones that use their
//! networks at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, scope};
use std::time::Duration;

use volt_tests::streams::each_stream;
use volt_tests::{needs, wait_until};

use super::network::Net;
use super::runs::IMAGE;

const FAR: &str = "192.0.2.77";
/// Between two reads of the server.
const BETWEEN_READS: Duration = Duration::from_millis(100);
/// Most bytes of each read that the server sends back.
const SENT_BACK: usize = 16;
/// Clones at once. The lab has memory for fewer: passt takes 30 MiB and more.
const CLONES: usize = 100;
const CLONES_IN_LAB: usize = 24;

/// A server that reads slowly, and sends back the beginning of what it reads.
#[derive(Default)]
struct Echo {
    connections: Mutex<Vec<Arc<Connection>>>,
    has_ended: AtomicBool,
}

struct Connection {
    stream: TcpStream,
    bytes: AtomicU64,
    has_ended: AtomicBool,
}

impl Echo {
    /// Serves connections, each in a thread, until [`Self::end`].
    fn serve(&self, listener: &TcpListener) {
        scope(|scope| {
            each_stream(listener, &self.has_ended, |stream| {
                let (bytes, has_ended) = Default::default();
                let connection = Arc::new(Connection { stream, bytes, has_ended });
                self.connections.lock().unwrap().push(Arc::clone(&connection));
                scope.spawn(move || connection.echo(&self.has_ended));
            });
        });
    }

    fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    fn connection(&self, at: usize) -> Arc<Connection> {
        Arc::clone(&self.connections.lock().unwrap()[at])
    }

    /// Waits until connection `at` is there and busy.
    fn await_busy(&self, at: usize) {
        wait_until("a guest connects", || self.count() > at);
        let connection = self.connection(at);
        let before = connection.bytes.load(Ordering::SeqCst);
        wait_until("its connection is busy", || connection.bytes.load(Ordering::SeqCst) > before + (1 << 14));
    }

    /// Sends a word on each connection that has not ended: `word-0`, `word-1`…
    fn say_words(&self) {
        let ended = self.ended();
        for at in (0..self.count()).filter(|at| !ended.contains(at)) {
            (&self.connection(at).stream).write_all(format!("word-{at}\n").as_bytes()).unwrap();
        }
    }

    fn ended(&self) -> Vec<usize> {
        (0..self.count()).filter(|at| self.connection(*at).has_ended.load(Ordering::SeqCst)).collect()
    }
}

impl Connection {
    /// Sends back what comes until the guest ends it, or the server.
    fn echo(&self, has_ended: &AtomicBool) {
        let mut stream = &self.stream;
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut part = vec![0; 1 << 12];
        loop {
            let len = match stream.read(&mut part) {
                Ok(len @ 1..) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock && !has_ended.load(Ordering::SeqCst) => {
                    continue;
                }
                _ => break,
            };
            // Slowly, so that both sides wait for room all the time.
            thread::sleep(BETWEEN_READS);
            self.bytes.fetch_add(len as u64, Ordering::SeqCst);
            // Little: a client that blocks in its own write reads nothing meanwhile.
            if stream.write_all(&part[..len.min(SENT_BACK)]).is_err() {
                break;
            }
        }
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

/// Ends the server, also when the test fails.
struct End<'a>(&'a Echo);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
    }
}

#[test]
fn busy_connections_survive_snapshots_and_forks_and_end_at_restores_and_rewinds() {
    needs!(kvm, linux, agent, network);
    let net = Net::new();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let listener = far.listen(&format!("{FAR}:90"));
    let idle_listener = far.listen(&format!("{FAR}:91"));
    // A connection that ends is followed by another one, a busy one and an idle one. The idle one begins with
    // a line: passt of 2023 resets connections that are silent from the start on, after 24 s.
    let script = format!(
        "busybox mkfifo /nothing
        while :; do busybox nc {FAR} 91 <>/nothing >>/said & echo x >/nothing; wait; done 2>/dev/null &
        while :; do busybox nc {FAR} 90 </dev/zero >/dev/null 2>&1; done"
    );
    let options =
        ["run", "-d", "--name", "web", "-m", "128M", "--upper", "memory", "--default-deny", "--allow"];
    let allowed = format!("{FAR}:90-91");
    let (echo, idle) = (Echo::default(), Echo::default());
    scope(|scope| {
        let _ends = [End(&echo), End(&idle)];
        scope.spawn(|| echo.serve(&listener));
        scope.spawn(|| idle.serve(&idle_listener));
        net.run(&[&options[..], &[&allowed, IMAGE, "sh", "-c", &script]].concat()).succeeded();
        echo.await_busy(0);
        for name in ["one", "warm"] {
            net.images.names.ok(&format!("snapshot create web {name}"));
            echo.await_busy(0);
        }
        net.run(&["restore", "-d", "--name", "clone", "warm"]).succeeded();
        echo.await_busy(1);
        net.run(&["fork", "web", "--name", "child"]).succeeded();
        echo.await_busy(2);
        echo.await_busy(0);
        assert_eq!((echo.count(), echo.ended()), (3, vec![]));
        net.run(&["rewind", "clone"]).succeeded();
        echo.await_busy(3);
        wait_until("the far sides of the rewound VM's connections end", || {
            echo.ended() == [1] && idle.ended().len() == 1 && idle.count() == 4
        });
        [0, 2, 3].into_iter().for_each(|at| echo.await_busy(at));
        assert_eq!((echo.count(), echo.ended()), (4, vec![1]));
        // The words sent now arrive: the bytes before may have waited on the way.
        idle.say_words();
        for (name, word) in [("web", "word-0"), ("clone", "word-"), ("child", "word-")] {
            let said = || net.run(&["exec", name, "cat", "/said"]).succeeded().stdout.contains(word);
            wait_until("an idle connection carries a word", said);
        }
        for name in ["web", "clone", "child"] {
            net.images.names.ok(&format!("kill {name}"));
        }
        wait_until("passt tells the far sides of VMs that are killed", || echo.ended().len() == 4);
    });
}

#[test]
fn connections_of_many_clones_of_one_address_are_open_at_once() {
    needs!(kvm, linux, agent, network);
    let count = if volt_tests::patience::in_lab() { CLONES_IN_LAB } else { CLONES };
    let net = Net::new();
    let (far, _cable) = net.network.beyond(&[&format!("{FAR}/24")]);
    let listener = far.listen(&format!("{FAR}:90"));
    let options = ["run", "-d", "--name", "web", "-m", "128M", "--upper", "memory", "--net", "user"];
    net.run(&[&options[..], &[IMAGE, "sleep", "100000"]].concat()).succeeded();
    net.images.names.ok("snapshot create web warm");
    net.images.names.ok("kill web");
    let names: Vec<_> = (0..count).map(|number| format!("clone-{number}")).collect();
    let echo = Echo::default();
    scope(|scope| {
        let _end = End(&echo);
        scope.spawn(|| echo.serve(&listener));
        // One after another: a processor that is emulated cannot start commands in all of them at once.
        for name in &names {
            net.run(&["restore", "-d", "--name", name, "warm"]).succeeded();
            let script = format!(
                "busybox ip -4 -o addr show dev eth0 | busybox awk '{{print $4}}'
                busybox mkfifo /words && touch /said
                busybox nc {FAR} 90 <>/words >/said 2>/dev/null & echo {name} >/words
                while ! grep {name} /said; do sleep 0.2; done"
            );
            let reached = net.run(&["exec", name, "sh", "-c", &script]);
            assert_eq!(reached.succeeded().stdout, format!("10.118.111.15/24\n{name}\n"));
        }
        assert_eq!((echo.count(), echo.ended()), (count, vec![]));
        echo.say_words();
        for (number, name) in names.iter().enumerate() {
            let expected = format!("{name}\nword-{number}\n");
            let said = || net.run(&["exec", name, "cat", "/said"]).succeeded().stdout == expected;
            wait_until("a clone's connection carries its word", said);
        }
    });
    for name in &names {
        net.images.names.ok(&format!("kill {name}"));
    }
    wait_until("all passts end", || net.passts().is_empty());
}
