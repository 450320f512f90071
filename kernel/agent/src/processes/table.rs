//! All commands.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::time::{Instant, sleep_until};

use super::ended::Ended;
use super::group::Groups;
use super::process::Process;
use crate::connect::{Code, RpcError};
use crate::messages::process::{ProcessInfo, ProcessSelector};
use crate::setup::Setup;

/// Commands that run, and the last ones that ended.
#[derive(Default)]
pub struct Table {
    /// Settings of the agent.
    pub setup: Rc<Setup>,
    /// Control groups of commands.
    pub groups: Groups,
    running: RefCell<BTreeMap<u32, Rc<Process>>>,
    ended: RefCell<Ended>,
    /// Whether a task drops ended commands.
    expires: Cell<bool>,
    /// The main process of the VM. Its tag finds it after its end too.
    main: RefCell<Option<Rc<Process>>>,
}

impl Table {
    /// No commands.
    pub fn new(setup: Rc<Setup>) -> Self {
        Self { setup, groups: Groups::of_init(), ..Self::default() }
    }

    /// Adds a command.
    pub fn add(&self, process: &Rc<Process>) {
        self.running.borrow_mut().insert(process.id(), Rc::clone(process));
    }

    /// Adds the main process.
    pub fn add_main(&self, process: &Rc<Process>) {
        self.add(process);
        *self.main.borrow_mut() = Some(Rc::clone(process));
    }

    /// The main process, running or ended.
    pub fn main(&self) -> Option<Rc<Process>> {
        self.main.borrow().clone()
    }

    /// Whether a command is the main process.
    pub fn is_main(&self, process: &Rc<Process>) -> bool {
        self.main.borrow().as_ref().is_some_and(|main| Rc::ptr_eq(main, process))
    }

    /// Removes an ended command. Keeps its last output for clients that return.
    pub fn finish(&self, process: &Rc<Process>) {
        let mut running = self.running.borrow_mut();
        // A new command may have the same process id.
        if running.get(&process.id()).is_some_and(|found| Rc::ptr_eq(found, process)) {
            running.remove(&process.id());
        }
        if let Some(group) = process.group() {
            self.groups.remove(group);
        }
        if !self.is_main(process) {
            self.ended.borrow_mut().add(process, Instant::now());
        }
    }

    /// Drops ended commands when their time is over, in one task for all.
    pub fn expire_later(self: &Rc<Self>) {
        if self.expires.replace(true) {
            return;
        }
        let table = Rc::clone(self);
        tokio::task::spawn_local(async move {
            loop {
                let next = table.ended.borrow_mut().expire(Instant::now());
                match next {
                    Some(next) => sleep_until(next).await,
                    None => break,
                }
            }
            table.expires.set(false);
        });
    }

    /// Running commands in the order of their process ids.
    pub fn list(&self) -> Vec<ProcessInfo> {
        let running = self.running.borrow();
        running.values().filter(|process| !process.exited()).map(|process| process.info()).collect()
    }

    /// Finds a running command, or the main process.
    pub fn find(&self, selector: Option<&ProcessSelector>) -> Result<Rc<Process>, RpcError> {
        let selector = checked(selector)?;
        if let Some(main) = self.main().filter(|main| selector.tag.is_some() && chosen(main, selector)) {
            return Ok(main);
        }
        let running = self.running.borrow();
        let found = running.values().find(|process| chosen(process, selector));
        found.cloned().ok_or_else(|| not_found(selector))
    }

    /// Finds a command that runs, or ended a while ago.
    pub fn find_any(&self, selector: Option<&ProcessSelector>) -> Result<Rc<Process>, RpcError> {
        self.find(selector).or_else(|error| {
            let selector = checked(selector)?;
            self.ended.borrow().find(|process| chosen(process, selector)).ok_or(error)
        })
    }
}

fn chosen(process: &Process, selector: &ProcessSelector) -> bool {
    match (selector.pid, &selector.tag) {
        (Some(pid), _) => process.id() == pid,
        (None, tag) => process.tag == *tag && tag.is_some(),
    }
}

fn checked(selector: Option<&ProcessSelector>) -> Result<&ProcessSelector, RpcError> {
    match selector {
        Some(selector) if selector.pid.is_some() != selector.tag.is_some() => Ok(selector),
        _ => Err(RpcError::new(Code::InvalidArgument, "process needs exactly one of pid and tag")),
    }
}

fn not_found(selector: &ProcessSelector) -> RpcError {
    let name = match (&selector.pid, &selector.tag) {
        (Some(pid), _) => format!("pid {pid}"),
        (None, tag) => format!("tag {}", tag.as_deref().unwrap_or_default()),
    };
    RpcError::new(Code::NotFound, format!("no command with {name} runs"))
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;
    use crate::messages::process::ProcessConfig;
    use crate::processes::end;
    use crate::processes::input::Input;
    use crate::processes::process::Reader;

    fn process(pid: i32, tag: Option<&str>) -> Rc<Process> {
        let input = Input::pipe(None, None);
        Process::new(Pid::from_raw(pid).unwrap(), ProcessConfig::default(), tag.map(str::to_owned), input)
    }

    fn selector(pid: Option<u32>, tag: Option<&str>) -> ProcessSelector {
        ProcessSelector { pid, tag: tag.map(str::to_owned) }
    }

    #[test]
    fn selector_finds_by_pid_or_tag() {
        let table = Table::default();
        table.add(&process(7, None));
        table.add(&process(8, Some("main")));
        assert_eq!(table.find(Some(&selector(Some(7), None))).unwrap().id(), 7);
        assert_eq!(table.find(Some(&selector(None, Some("main")))).unwrap().id(), 8);
        let code =
            |wanted: Option<ProcessSelector>| table.find(wanted.as_ref()).err().map(|error| error.code);
        assert_eq!(code(Some(selector(Some(9), None))), Some(Code::NotFound));
        assert_eq!(code(Some(selector(None, Some("")))), Some(Code::NotFound));
        assert_eq!(code(Some(selector(None, None))), Some(Code::InvalidArgument));
        assert_eq!(code(Some(selector(Some(7), Some("main")))), Some(Code::InvalidArgument));
        assert_eq!(code(None), Some(Code::InvalidArgument));
    }

    #[test]
    fn ended_command_is_found_by_clients_that_return() {
        let table = Table::default();
        let seven = selector(Some(7), None);
        let ended = process(7, None);
        table.add(&ended);
        let reader = Reader::new(Rc::clone(&ended), Some(0));
        ended.set_end(end::of(Err(std::io::ErrorKind::Other.into())));
        table.finish(&ended);
        drop(reader);
        table.finish(&process(9, None));
        assert!(table.find(Some(&seven)).is_err());
        assert!(Rc::ptr_eq(&table.find_any(Some(&seven)).unwrap(), &ended));
    }

    #[test]
    fn main_process_is_found_by_its_tag_after_its_end() {
        let table = Table::default();
        let (main, other) = (process(7, Some("main")), process(3, Some("main")));
        table.add(&other);
        table.add_main(&main);
        let by_tag = selector(None, Some("main"));
        assert_eq!(table.find(Some(&by_tag)).unwrap().id(), 7);
        assert_eq!(table.list().len(), 2);
        main.set_exited();
        assert_eq!(
            table.list().iter().map(|info| info.pid).collect::<Vec<_>>(),
            [3],
            "its output may remain"
        );
        main.set_end(end::of(Err(std::io::ErrorKind::Other.into())));
        table.finish(&main);
        assert_eq!(table.find(Some(&by_tag)).unwrap().id(), 7);
        assert_eq!(table.list().iter().map(|info| info.pid).collect::<Vec<_>>(), [3]);
        assert_eq!(table.find(Some(&by_tag)).unwrap().signal(15).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn client_begins_at_its_offset_or_at_the_end_or_with_all_after_a_new_agent() {
        let process = process(7, None);
        process.push(crate::processes::ring::Source::Stdout, b"output");
        for (asked, begins) in [(None, 6), (Some(2), 2), (Some(6), 6), (Some(7), 0)] {
            assert_eq!(Reader::new(Rc::clone(&process), asked).offset(), begins, "{asked:?}");
        }
    }

    #[test]
    fn slow_client_holds_output_back_until_it_leaves() {
        let process = process(7, None);
        let reader = Reader::new(Rc::clone(&process), None);
        process.push(crate::processes::ring::Source::Stdout, &vec![0; 300 << 10]);
        assert!(!process.has_room());
        while reader.take().is_some() {}
        assert!(process.has_room());
        assert_eq!(reader.offset(), 300 << 10);
        process.push(crate::processes::ring::Source::Stdout, &vec![0; 300 << 10]);
        drop(reader);
        assert!(process.has_room());
    }
}
