//! State of the agent.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::descriptor::inherited;
use crate::farewell::Farewell;
use crate::filesystem::watchers::Watchers;
use crate::kept::Kept;
use crate::options::Options;
use crate::processes::main_process::MainProcess;
use crate::processes::table::Table;
use crate::setup::Setup;

/// Most connections to ports at once.
pub const TUNNELS: usize = 512;

/// The agent. All of it lives in one thread.
pub struct Agent {
    /// The command line.
    pub options: Options,
    /// Settings of `/init`.
    pub setup: Rc<Setup>,
    /// Commands.
    pub commands: Rc<Table>,
    /// The link to process 1, if the VM's main process is the host's to start.
    pub main: Option<Rc<MainProcess>>,
    /// Connections whose clients hear of the main process's end.
    pub farewell: Rc<Farewell>,
    /// Places of connections to ports.
    pub tunnels: Arc<Semaphore>,
    /// Watchers that clients poll.
    pub watchers: Watchers,
    /// Ticks in use and all ticks at the last `/metrics`.
    pub last_ticks: Cell<(u64, u64)>,
}

impl Agent {
    /// An agent without commands and settings.
    pub fn new(options: Options) -> io::Result<Rc<Self>> {
        let setup = match options.settings_fd {
            Some(number) => Setup::kept(Kept::new(inherited(number)?))?,
            None => Setup::default(),
        };
        let setup = Rc::new(setup);
        let commands = Rc::new(Table::new(Rc::clone(&setup)));
        let farewell = Rc::<Farewell>::default();
        let link = options.init_fd.map(inherited).transpose()?;
        let main = link.map(|link| MainProcess::new(link, &commands, &farewell)).transpose()?;
        Ok(Rc::new(Self {
            options,
            commands,
            main,
            farewell,
            tunnels: Arc::new(Semaphore::new(TUNNELS)),
            watchers: Watchers::new(Rc::clone(&setup)),
            setup,
            last_ticks: Cell::default(),
        }))
    }
}
