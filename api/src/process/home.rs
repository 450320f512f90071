//! The run directory of this process's VM, if it has a name.
//!
//! All files are open before the process confines itself. Afterwards it only writes to open descriptors.

use std::fs::File;
use std::io::{PipeWriter, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use volt_job::Ended;
use volt_vmm::{Console, Ending, Vm};

use crate::failure::Failure;
use crate::messages::harmless;
use crate::process::exit::Status;
use crate::process::main_process::MainProcess;
use crate::process::vm_slot::DEFAULT_ID;
use crate::run_dir::outcome::{self, Cause, EndOfVm};
use crate::run_dir::record::{MainOfImage, Record};
use crate::run_dir::{claim, files, sudden_end};
use crate::serial::log::SerialLog;
use crate::serial::port::{self, Port};

/// See the module.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) record: Record,
    directory: PathBuf,
    port: Port,
    /// Present if the VM runs an image.
    main: OnceLock<MainProcess>,
    /// The main process of a snapshot.
    restored: OnceLock<MainOfImage>,
    config: Mutex<Option<File>>,
    /// Absent once the outcome is recorded.
    outcome: Mutex<Option<File>>,
    /// Tells the starting process that the VM runs.
    started: Mutex<Option<PipeWriter>>,
    /// Says that the VM lives.
    _life: File,
}

static HOME: OnceLock<Home> = OnceLock::new();

/// Returns the run directory of this process.
pub(crate) fn get() -> Option<&'static Home> {
    HOME.get()
}

/// Returns the name of this process's VM, or the default one.
pub(crate) fn name() -> String {
    get().map_or_else(|| DEFAULT_ID.to_owned(), |home| home.record.name.to_string())
}

/// Returns the receiver of the guest's serial output.
pub(crate) fn console() -> Console {
    get().map_or_else(Console::stdout, |home| Console::to(home.port.writer()))
}

/// Takes over a claimed directory for this process, whose messages go to its log from now on. `first` is a
/// client of the serial port from the start, and `started` gets a byte once the VM runs.
///
/// # Errors
/// The directory is another process's, or the host refuses.
pub(crate) fn enter(
    directory: &Path,
    first: Option<UnixStream>,
    started: Option<PipeWriter>,
) -> Result<&'static Home, Failure> {
    let (record, life) = claim::enter(directory)?;
    let failed = |error| Failure::run_dir(directory, format!("cannot open its files: {error}"));
    let open = |name: &str| File::options().write(true).open(directory.join(name)).map_err(failed);
    let messages = File::options().append(true).open(directory.join(files::LOG)).map_err(failed)?;
    rustix::stdio::dup2_stderr(&messages).map_err(|errno| failed(errno.into()))?;
    let [newer, older] = files::SERIAL_LOGS.map(|name| directory.join(name));
    let log = SerialLog::begin([&newer, &older]).map_err(failed)?;
    let listener = port::listen(&directory.join(files::SERIAL))?;
    let port = Port::new(log, listener, first).map_err(failed)?;
    let main = match record.main {
        Some(_) => OnceLock::from(MainProcess::open(directory)?),
        None => OnceLock::new(),
    };
    let (config, outcome) = (open(files::CONFIG)?, open(files::OUTCOME)?);
    sudden_end::expect(&outcome);
    Ok(HOME.get_or_init(|| Home {
        record,
        directory: directory.to_owned(),
        port,
        main,
        restored: OnceLock::new(),
        config: Mutex::new(Some(config)),
        outcome: Mutex::new(Some(outcome)),
        started: Mutex::new(started),
        _life: life,
    }))
}

/// The default paths of the sockets of devices.
impl Home {
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn vsock(&self) -> PathBuf {
        self.directory.join(files::VSOCK)
    }

    pub(crate) fn console_device(&self) -> PathBuf {
        self.directory.join(files::CONSOLE)
    }
}

/// The main process of a VM that runs an image.
impl Home {
    /// Takes over the main process of a snapshot, before this process confines itself.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn take_main(&self, main: MainOfImage) -> Result<(), Failure> {
        if self.main.get().is_some() {
            return Ok(());
        }
        claim::add_main(&self.directory, &main)?;
        let _ = self.main.set(MainProcess::open(&self.directory)?);
        let _ = self.restored.set(main);
        Ok(())
    }

    /// Starts to listen to its reports. [`Home::vm_runs`] does so too.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(crate) fn hear_main(&self) -> Result<(), Failure> {
        self.main.get().map_or(Ok(()), MainProcess::start)
    }

    /// Calls `act` once the main process has given a sign of life, or was silent for so long.
    pub(crate) fn at_first_sign_of_main(&self, longest: Duration, act: impl FnOnce() + Send + 'static) {
        if let Some(main) = self.main.get() {
            main.at_first_sign(longest, act);
        }
    }

    /// Its description.
    pub(crate) fn main_of_image(&self) -> Option<&MainOfImage> {
        self.record.main.as_ref().or(self.restored.get())
    }
}

impl Home {
    /// Serves the serial port, notes the configuration, and tells the starting process that the VM runs.
    ///
    /// # Errors
    /// The host refuses a thread.
    pub(crate) fn vm_runs(&self, vm: &Arc<Vm>) -> Result<(), Failure> {
        let typing = Arc::clone(vm);
        self.port.start(move |bytes| typing.type_in(bytes).is_ok())?;
        self.hear_main()?;
        if let Some(mut file) = take(&self.config)
            && let Ok(text) = serde_json::to_vec(&vm.config())
        {
            // Readers show less without it.
            let _ = file.write_all(&text);
        }
        Ok(())
    }

    /// Tells the starting process that the VM runs and answers.
    pub(crate) fn tell_started(&self) {
        // A process that has ended since does not want to know.
        take(&self.started).into_iter().for_each(|mut started| drop(started.write_all(&[1])));
    }

    /// Records the end of the guest, then gives clients of the serial port its last output.
    pub(crate) fn vm_has_ended(&self, ending: &volt_vmm::Result<Ending>, by_signal: i32) {
        self.record(&match (ending, self.main_ended(ending)) {
            (_, Some(ended)) => of_main(&ended),
            (Ok(ending), None) => of_ending(*ending, by_signal),
            (Err(error), None) => of_failure(volt_vmm::report(error), Status::of_error(error)),
        });
        self.main.get().into_iter().for_each(MainProcess::finish);
        self.port.finish();
    }

    /// The end of the main process, if that is why the guest powered off.
    pub(crate) fn main_ended(&self, ending: &volt_vmm::Result<Ending>) -> Option<Ended> {
        let main = self.main.get().filter(|_| matches!(ending, Ok(Ending::Poweroff)))?;
        main.ended()
    }

    /// Records the failure of the process, unless an end is recorded already.
    pub(crate) fn failed(&self, failure: &Failure) {
        self.record(&of_failure(volt_vmm::problem(failure), Status::of_failure(failure)));
    }

    /// Records an end of the process that does not wait for its VM.
    pub(crate) fn ends_at_once(&self, by_signal: i32) {
        self.record(&of_ending(Ending::Stopped, by_signal));
    }

    fn record(&self, end: &EndOfVm) {
        // A handler of a signal may write it at this moment.
        if sudden_end::claim().is_none() {
            return;
        }
        if let Some(file) = take(&self.outcome)
            && let Err(error) = outcome::write(&file, end)
        {
            log::warn!("cannot record the end of the VM: {error}");
        }
        sudden_end::written();
    }
}

/// Takes a descriptor, which is closed with the process: the thread of a vCPU may not close one.
fn take<T>(kept: &Mutex<Option<T>>) -> Option<std::mem::ManuallyDrop<T>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner).take().map(std::mem::ManuallyDrop::new)
}

fn of_ending(ending: Ending, by_signal: i32) -> EndOfVm {
    let status = Status::of_ending(ending, by_signal).code();
    let (cause, message) = match ending {
        Ending::Poweroff => (Cause::Poweroff, "the guest powered off".to_owned()),
        Ending::Reboot => (Cause::Reboot, "the guest asked for a reboot".to_owned()),
        Ending::Panicked => (Cause::Panicked, "the guest's kernel panicked".to_owned()),
        Ending::TripleFault => (Cause::TripleFault, "the guest ended in a triple fault".to_owned()),
        Ending::Stopped if by_signal != 0 => (Cause::Signal, format!("signal {by_signal} ended the VM")),
        Ending::Stopped => (Cause::Stopped, "a client of the API ended the VM".to_owned()),
    };
    EndOfVm::now(status, cause, message)
}

fn of_main(ended: &Ended) -> EndOfVm {
    let message = match &ended.error {
        // A guest may have written anything.
        Some(error) => harmless(error).replace('\n', " "),
        None => format!("its main process ended: {ended}"),
    };
    EndOfVm::now(ended.status, Cause::Exited, message)
}

fn of_failure(message: String, status: Status) -> EndOfVm {
    let cause = if status == Status::Crashed { Cause::Crashed } else { Cause::Failed };
    EndOfVm::now(status.code(), cause, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_cause_and_status() {
        let of = |ending, signal| {
            let end = of_ending(ending, signal);
            (end.status, end.cause)
        };
        assert_eq!(of(Ending::Poweroff, 0), (0, Cause::Poweroff));
        assert_eq!(of(Ending::Reboot, 0), (3, Cause::Reboot));
        assert_eq!(of(Ending::Panicked, 0), (7, Cause::Panicked));
        assert_eq!(of(Ending::TripleFault, 0), (4, Cause::TripleFault));
        assert_eq!(of(Ending::Stopped, 0), (0, Cause::Stopped));
        assert_eq!(of(Ending::Stopped, 15), (143, Cause::Signal));
        let main = of_main(&Ended::exit(7));
        assert_eq!(
            (main.status, main.cause, &*main.message),
            (7, Cause::Exited, "its main process ended: exit 7")
        );
        assert_eq!(of_failure("x".to_owned(), Status::Crashed).cause, Cause::Crashed);
        assert_eq!(of_failure("x".to_owned(), Status::Error).status, 1);
    }
}
