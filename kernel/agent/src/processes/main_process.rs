//! The main process of the VM, which process 1 starts on behalf of a client.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::Pid;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::timeout;
use volt_job::{Ended, StartMain, start};

use super::attach::attach;
use super::process::{Process, Reader};
use super::pump::pump_all;
use super::table::Table;
use super::{end, log};
use crate::descriptor::register;
use crate::farewell::Farewell;
use crate::link::{self, Running, ToAgent, ToInit};
use crate::messages::process::ProcessConfig;
use crate::streams::Ours;

/// How long the first client may take to come after the end, and then all clients to take the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why no main process has started.
pub enum Refused {
    /// There is one.
    Taken,
    /// It did not start.
    NotStarted(Ended),
    /// Process 1 does not answer.
    Broken(io::Error),
}

/// The link to process 1.
pub struct MainProcess {
    commands: Rc<Table>,
    farewell: Rc<Farewell>,
    link: Rc<AsyncFd<OwnedFd>>,
    starting: RefCell<Option<oneshot::Sender<Result<u32, Ended>>>>,
    drained: RefCell<Vec<oneshot::Receiver<()>>>,
    /// Sends the output to the host.
    log: RefCell<Option<JoinHandle<()>>>,
    /// Whether no client follows the process from its start.
    detached: Cell<bool>,
    /// Whether process 1 executes the image's init. The end of the link then tells that it has.
    becomes_init: Cell<bool>,
}

impl MainProcess {
    /// Takes the agent's end of the link.
    pub fn new(link: OwnedFd, commands: &Rc<Table>, farewell: &Rc<Farewell>) -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self {
            commands: Rc::clone(commands),
            farewell: Rc::clone(farewell),
            link: Rc::new(register(link)?),
            starting: RefCell::default(),
            drained: RefCell::default(),
            log: RefCell::default(),
            detached: Cell::default(),
            becomes_init: Cell::default(),
        }))
    }

    /// Starts the main process. Returns its process id.
    pub async fn start(&self, start: StartMain) -> Result<u32, Refused> {
        let answer = {
            let mut starting = self.starting.borrow_mut();
            if starting.is_some() || self.commands.main().is_some() || self.becomes_init.get() {
                return Err(Refused::Taken);
            }
            self.detached.set(start.detached);
            self.send(&ToInit::Start(Box::new(start))).map_err(Refused::Broken)?;
            let (answer, awaited) = oneshot::channel();
            *starting = Some(answer);
            awaited
        };
        match answer.await {
            Ok(result) => result.map_err(Refused::NotStarted),
            Err(_) => Err(Refused::Broken(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Serves messages of process 1. A call that waits for an answer fails with the link.
    pub async fn attend(&self) -> io::Result<()> {
        let result = self.serve().await;
        if self.becomes_init.get() {
            self.answer(Ok(1));
        }
        self.starting.take();
        result
    }

    async fn serve(&self) -> io::Result<()> {
        while let Some((message, descriptors)) = self.receive().await? {
            match message {
                ToAgent::Running(running) => {
                    let pid = running.pid;
                    self.adopt(*running, descriptors)?;
                    self.answer(Ok(pid));
                }
                ToAgent::BecomesInit => self.becomes_init.set(true),
                ToAgent::NotStarted(ended) => {
                    self.answer(Err(ended));
                    self.part().await?;
                }
                ToAgent::Ended(ended) => {
                    self.end(&ended).await;
                    self.part().await?;
                }
            }
        }
        Ok(())
    }

    fn send(&self, message: &ToInit) -> io::Result<()> {
        link::send(self.link.get_ref(), message, &[])
    }

    async fn receive(&self) -> io::Result<Option<(ToAgent, Vec<OwnedFd>)>> {
        loop {
            let mut ready = self.link.readable().await?;
            if let Ok(received) = ready.try_io(|link| link::receive(link.get_ref())) {
                return received;
            }
        }
    }

    fn answer(&self, result: Result<u32, Ended>) {
        if let Some(starting) = self.starting.borrow_mut().take() {
            // The client may have left.
            let _ = starting.send(result);
        }
    }

    fn adopt(&self, running: Running, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let Running { pid, process } = running;
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "process 1 sent too little");
        let ours = Ours::of(process.terminal, descriptors).ok_or_else(wrong)?;
        let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(wrong)?;
        let link = Rc::clone(&self.link);
        // Without this, the duplicate of process 1 would keep the standard input open.
        let close = move || drop(link::send(link.get_ref(), &ToInit::CloseStdin, &[]));
        let (input, outputs) = attach(ours, Some(Box::new(close)))?;
        let process = Process::new(pid, config(process), Some(start::TAG.to_owned()), input);
        self.commands.add_main(&process);
        *self.log.borrow_mut() = Some(spawn_local(log::send(Reader::of_log(Rc::clone(&process), Some(0)))));
        *self.drained.borrow_mut() = pump_all(&process, outputs);
        Ok(())
    }

    async fn end(&self, ended: &Ended) {
        let Some(main) = self.commands.main() else { return };
        main.set_exited();
        let drained = self.drained.take();
        let all = async {
            for pump in drained {
                // Each pump drops its side without a message.
                let _ = pump.await;
            }
        };
        // A client that reads nothing holds the output back.
        let _ = timeout(PATIENCE, all).await;
        main.set_end(end::of_main(ended));
        self.commands.finish(&main);
        // The process may end before its starter's second call arrives.
        let followed = async {
            loop {
                let changed = main.changed();
                if main.has_been_followed() {
                    return;
                }
                changed.await;
            }
        };
        if !self.detached.get() {
            let _ = timeout(PATIENCE, followed).await;
        }
    }

    /// Waits until all clients know the end, and tells process 1.
    async fn part(&self) -> io::Result<()> {
        let _ = timeout(PATIENCE, self.farewell.say()).await;
        let log = self.log.take();
        if let Some(log) = log {
            let _ = timeout(PATIENCE, log).await;
        }
        self.send(&ToInit::Told)
    }
}

fn config(process: volt_job::job::Process) -> ProcessConfig {
    let mut argv = process.argv.into_iter();
    let pair =
        |entry: &String| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    ProcessConfig {
        cmd: argv.next().unwrap_or_default(),
        args: argv.collect(),
        envs: process.env.iter().filter_map(pair).collect(),
        cwd: Some(process.cwd),
    }
}
