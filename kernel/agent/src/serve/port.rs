//! The call that leads to a TCP port of the VM.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use volt_job::port::PROTOCOL;

use super::agent::{Agent, TUNNELS};
use crate::farewell::{Farewell, Line};
use crate::query::Query;
use crate::reply::{Failure, Reply, empty};
use crate::tunnel::one_way;

/// How long a program may take to accept a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the host may take the last bytes of programs that ended with the main process.
const GRACE: Duration = Duration::from_millis(100);

/// Connects to a port, and makes the client's connection carry its bytes.
pub async fn open(agent: &Agent, mut request: Request<Incoming>) -> Result<Reply, Failure> {
    let port = port_of(request.uri().query().unwrap_or_default())?;
    let asked = request.headers().get(UPGRADE).is_some_and(|protocol| protocol == PROTOCOL);
    if !asked || request.version() != Version::HTTP_11 {
        let why = format!("ask in HTTP/1.1, with Connection: Upgrade and Upgrade: {PROTOCOL}");
        return Err(Failure::new(StatusCode::UPGRADE_REQUIRED, why));
    }
    let Ok(place) = Arc::clone(&agent.tunnels).try_acquire_owned() else {
        let why = format!("{TUNNELS} connections lead to ports already; close some");
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let server = connect(port).await?;
    let upgrade = hyper::upgrade::on(&mut request);
    let farewell = Rc::clone(&agent.farewell);
    // The VM ends once the last bytes have left.
    let line = Line::new(&farewell);
    line.set_tells();
    spawn_local(async move {
        if let Ok(client) = upgrade.await {
            pass(TokioIo::new(client), server, &farewell).await;
        }
        drop((line, place));
    });
    let mut reply = empty(StatusCode::SWITCHING_PROTOCOLS);
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    reply.headers_mut().insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(reply)
}

fn port_of(query: &str) -> Result<u16, Failure> {
    let query = Query::parse(query);
    let text = query.get("port").unwrap_or_default();
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        let why = format!("port is {text:?}; give a number from 1 to {}", u16::MAX);
        Failure::new(StatusCode::BAD_REQUEST, why)
    })
}

async fn connect(port: u16) -> Result<TcpStream, Failure> {
    let failed = |why: String| Failure::new(StatusCode::BAD_GATEWAY, why);
    let attempt = async {
        match connect_to((Ipv4Addr::LOCALHOST, port).into()).await {
            Ok(stream) => Ok(stream),
            // A system without IPv6 has a reason that tells less than the first one.
            Err(first) => connect_to((Ipv6Addr::LOCALHOST, port).into()).await.map_err(|_| first),
        }
    };
    match timeout(PATIENCE, attempt).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(failed(format!("no program listens at TCP port {port}")))
        }
        Ok(Err(error)) => Err(failed(format!("cannot connect to TCP port {port}: {error}"))),
        Err(_) => {
            let seconds = PATIENCE.as_secs();
            Err(failed(format!("the program at TCP port {port} accepts no connection within {seconds} s")))
        }
    }
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    // A port that the kernel also gives to clients can be connected with itself.
    if stream.local_addr()? == address {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn pass(client: impl AsyncRead + AsyncWrite, server: TcpStream, farewell: &Farewell) {
    let (from_client, to_client) = split(client);
    let (from_server, to_server) = server.into_split();
    let answered = Notify::new();
    let answer = async {
        let passed = one_way(from_server, to_client).await;
        answered.notify_one();
        passed
    };
    let last = async {
        farewell.said().await;
        answered.notified().await;
        sleep(GRACE).await;
    };
    tokio::select! {
        // A side that broke off breaks the other one's connection too.
        _ = async { tokio::try_join!(answer, one_way(from_client, to_server)) } => {}
        () = last => {}
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[test]
    fn port_is_a_number_that_tcp_has() {
        assert_eq!(port_of("port=80").unwrap(), 80);
        for query in ["", "port=", "port=0", "port=65536", "port=http"] {
            assert_eq!(port_of(query).unwrap_err().status, StatusCode::BAD_REQUEST, "{query}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn listener_of_either_family_is_reached_and_a_free_port_refused() {
        let addresses: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
        for address in addresses {
            // Some hosts have no IPv6.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let port = listener.local_addr().unwrap().port();
            connect(port).await.unwrap();
            drop(listener);
            let failure = connect(port).await.unwrap_err();
            assert_eq!(failure.status, StatusCode::BAD_GATEWAY);
            assert_eq!(failure.message, format!("no program listens at TCP port {port}"));
        }
    }
    #[tokio::test(flavor = "current_thread")]
    async fn last_bytes_arrive_before_the_farewell_ends_though_the_client_stays() {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let server = connect(listener.local_addr().unwrap().port()).await.unwrap();
        let (mut program, _) = listener.accept().await.unwrap();
        let answer = vec![7; 300_000];
        program.write_all(&answer).await.unwrap();
        drop(program);
        let (mut client, near) = duplex(1000);
        let farewell = Rc::new(Farewell::default());
        let line = Line::new(&farewell);
        line.set_tells();
        let said = Cell::new(false);
        tokio::join!(
            async {
                pass(near, server, &farewell).await;
                drop(line);
            },
            async {
                farewell.say().await;
                said.set(true);
            },
            async {
                sleep(2 * GRACE).await;
                assert!(!said.get());
                let mut found = Vec::new();
                client.read_to_end(&mut found).await.unwrap();
                assert!(found == answer, "{} bytes", found.len());
            },
        );
        assert!(said.get());
    }
}
