//! The server: it accepts connections, and routes requests.

mod agent;
mod body;
mod control;
mod init;
mod listener;
mod metrics;
mod port;
mod route;
mod volt;

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::Builder;
use tokio::net::UnixStream;
use tokio::runtime;
use tokio::task::{LocalSet, spawn_local};

use crate::farewell::{Line, TellsEnd};
use crate::limits;
use crate::options::Options;
use agent::Agent;
use listener::Listener;

/// Threads that wait for disks. They end when they have no work.
const THREADS: usize = 64;

/// Their stacks.
const STACK: usize = 256 << 10;

/// Buffers of a connection.
const BUFFER: usize = 64 << 10;

/// Serves until the process ends.
pub fn run(options: Options) -> io::Result<()> {
    limits::raise();
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(THREADS)
        .thread_stack_size(STACK)
        .build()?;
    LocalSet::new().block_on(&runtime, async move {
        let listener = Listener::bind(&options.listen)?;
        let agent = Agent::new(options)?;
        if let Some(main) = agent.main.clone() {
            spawn_local(async move {
                if let Err(error) = main.attend().await {
                    eprintln!("volt-agent: the link to process 1 is broken: {error}");
                }
            });
        }
        if let Some(number) = agent.options.control_fd {
            control::start(number, agent.options.upper_fd)?;
        }
        accept_all(&listener, |stream| serve(Rc::clone(&agent), stream)).await;
        Ok(())
    })
}

/// Serves all connections of a listener.
async fn accept_all<S: Future<Output = ()> + 'static>(listener: &Listener, serve: impl Fn(UnixStream) -> S) {
    loop {
        match listener.accept().await {
            Ok(stream) => drop(spawn_local(serve(stream))),
            Err(error) => {
                eprintln!("volt-agent: cannot accept a connection: {error}");
                // Without free descriptors, the next attempt fails too.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// Runs tasks of connections in this thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        spawn_local(async move {
            task.await;
        });
    }
}

async fn serve(agent: Rc<Agent>, stream: UnixStream) {
    let line = Rc::new(Line::new(&agent.farewell));
    let other_name = stream.as_fd().try_clone_to_owned();
    let farewell = Rc::clone(&agent.farewell);
    let service = service_fn({
        let line = Rc::clone(&line);
        move |request: Request<Incoming>| {
            let (agent, line) = (Rc::clone(&agent), Rc::clone(&line));
            if request.uri().path() == volt_job::start::PATH {
                line.set_tells();
            }
            async move {
                let reply = route::respond(agent, request).await;
                if reply.extensions().get::<TellsEnd>().is_some() {
                    line.set_tells();
                }
                Ok::<_, Infallible>(reply)
            }
        }
    });
    let mut server = Builder::new(Local);
    server.http1().max_buf_size(BUFFER);
    server.http2().max_send_buf_size(BUFFER).initial_stream_window_size(BUFFER as u32 * 4);
    let mut connection = pin!(server.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // It fails when the client breaks the connection, which is the client's matter.
    tokio::select! {
        _ = connection.as_mut() => {}
        () = farewell.said() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
    if let (true, Ok(other_name)) = (line.tells(), other_name) {
        let _ = await_close(other_name).await;
    }
}

/// Waits until the client closes its side, since it has taken all by then.
async fn await_close(stream: OwnedFd) -> io::Result<()> {
    let stream = UnixStream::from_std(stream.into())?;
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 256]) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}
