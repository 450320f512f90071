//! Watches over directories, by inotify.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::statfs;
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::entry::describe;
use crate::connect::{Code, RpcError};
use crate::descriptor::register;
use crate::messages::filesystem::{FilesystemEvent, WatchRequest};
use crate::users::Names;

const CREATE: i32 = 1;
const WRITE: i32 = 2;
const REMOVE: i32 = 3;
const RENAME: i32 = 4;
const CHMOD: i32 = 5;

/// Magic numbers of file systems whose server changes files without inotify's events: NFS, CIFS, SMB, SMB2,
/// FUSE.
const NETWORK: [u32; 5] = [0x6969, 0xff53_4d42, 0x517b, 0xfe53_4d42, 0x6573_5546];

/// Most changes that one call takes. Its thread serves all other calls too.
const MOST: usize = 1000;

/// Names that are read with the first change of a call.
type LazyNames = OnceCell<Names>;

/// A watch over one directory, or all below it too.
pub struct Watcher {
    inotify: AsyncFd<OwnedFd>,
    root: PathBuf,
    recursive: bool,
    include_entry: bool,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<i32, PathBuf>,
    /// Events that no client has yet.
    found: VecDeque<FilesystemEvent>,
    /// The kernel's queue was full.
    lost: bool,
}

impl Watcher {
    /// Begins to watch.
    pub fn new(root: PathBuf, request: &WatchRequest) -> Result<Self, RpcError> {
        let act = format!("watch {}", root.display());
        let failed = |error: io::Error| RpcError::of_file(&act, &error);
        if !fs::metadata(&root).map_err(failed)?.is_dir() {
            let message = format!("cannot {act}: it is no directory");
            return Err(RpcError::new(Code::InvalidArgument, message));
        }
        let magic = statfs(&root).map_err(|error| failed(error.into()))?.f_type;
        if !request.allow_network_mounts && NETWORK.contains(&(magic as u32)) {
            let message = format!("cannot {act}: it is on a network mount; set allow_network_mounts");
            return Err(RpcError::new(Code::InvalidArgument, message));
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let inotify = register(inotify).map_err(failed)?;
        let (recursive, include_entry) = (request.recursive, request.include_entry);
        let watcher = Self { inotify, root, recursive, include_entry, state: RefCell::default() };
        watcher.add(&watcher.root, None).map_err(failed)?;
        Ok(watcher)
    }

    /// Adds a directory, and those below it if the watch is recursive. With names, the directory is new, and
    /// what is in it counts as made now.
    fn add(&self, directory: &Path, is_new: Option<&LazyNames>) -> io::Result<()> {
        self.add_one(directory)?;
        let mut pending = Vec::new();
        if self.recursive {
            pending.push(fs::read_dir(directory)?);
        }
        while let Some(entries) = pending.pop() {
            for entry in entries.flatten() {
                let path = entry.path();
                if let Some(event) = is_new.and_then(|names| self.event(&path, CREATE, names)) {
                    self.state.borrow_mut().found.push_back(event);
                }
                // A directory may disappear in the meantime.
                if entry.file_type().is_ok_and(|kind| kind.is_dir())
                    && self.add_one(&path).is_ok()
                    && let Ok(below) = fs::read_dir(&path)
                {
                    pending.push(below);
                }
            }
        }
        Ok(())
    }

    fn add_one(&self, directory: &Path) -> rustix::io::Result<()> {
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(self.inotify.get_ref(), directory, flags)?;
        self.state.borrow_mut().directories.insert(watch, directory.to_owned());
        Ok(())
    }

    /// Takes the next changes. No changes means that there are none until now.
    ///
    /// After more changes than the kernel keeps, an error takes the place of the lost ones, once.
    pub fn take(&self) -> Result<Vec<FilesystemEvent>, RpcError> {
        let names = LazyNames::new();
        let mut events = Vec::new();
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = Reader::new(self.inotify.get_ref(), &mut buffer);
        loop {
            let found = self.state.borrow_mut().found.pop_front_if(|_| events.len() < MOST);
            if let Some(found) = found {
                events.push(found);
                continue;
            }
            // The reader takes the content of its buffer along.
            if reader.is_buffer_empty() && (events.len() == MOST || self.state.borrow().lost) {
                break;
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
            self.translate(event.wd(), event.events(), name.as_deref(), &names);
        }
        if events.is_empty() && std::mem::take(&mut self.state.borrow_mut().lost) {
            let why =
                "changes came faster than they were read, and some are lost: look at the directory again";
            return Err(RpcError::new(Code::ResourceExhausted, why));
        }
        Ok(events)
    }

    /// Adds the events of a change to those that were found.
    fn translate(&self, watch: i32, what: ReadFlags, name: Option<&str>, names: &LazyNames) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.state.borrow_mut().lost = true;
            return;
        }
        if what.contains(ReadFlags::IGNORED) {
            self.state.borrow_mut().directories.remove(&watch);
            return;
        }
        let Some(directory) = self.state.borrow().directories.get(&watch).cloned() else { return };
        // A directory's own events come from its parent's watch too, but for the root.
        if name.is_none() && directory != self.root {
            return;
        }
        let path = name.map_or_else(|| directory.clone(), |name| directory.join(name));
        let kinds = [
            (ReadFlags::CREATE | ReadFlags::MOVED_TO, CREATE),
            (ReadFlags::MODIFY, WRITE),
            (ReadFlags::DELETE | ReadFlags::DELETE_SELF, REMOVE),
            (ReadFlags::MOVED_FROM, RENAME),
            (ReadFlags::ATTRIB, CHMOD),
        ];
        for (flags, kind) in kinds {
            if what.intersects(flags) {
                let event = self.event(&path, kind, names);
                self.state.borrow_mut().found.extend(event);
            }
        }
        if self.recursive && what.contains(ReadFlags::ISDIR) {
            if what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                // It may disappear in the meantime.
                let _ = self.add(&path, Some(names));
            } else if what.contains(ReadFlags::MOVED_FROM) {
                self.forget(&path);
            }
        }
    }

    /// Removes the watches of a directory that moved away, whose paths are wrong now.
    fn forget(&self, path: &Path) {
        self.state.borrow_mut().directories.retain(|&watch, directory| {
            let stays = !directory.starts_with(path);
            if !stays {
                // The kernel may have removed it.
                let _ = inotify::remove_watch(self.inotify.get_ref(), watch);
            }
            stays
        });
    }

    fn event(&self, path: &Path, kind: i32, names: &LazyNames) -> Option<FilesystemEvent> {
        let name = path.strip_prefix(&self.root).ok()?.to_string_lossy().into_owned();
        let entry = self.include_entry.then(|| describe(path, names.get_or_init(Names::read)).ok()).flatten();
        Some(FilesystemEvent { name, r#type: kind, entry })
    }

    /// Waits for changes.
    pub async fn changed(&self) -> io::Result<()> {
        let mut ready = self.inotify.readable().await?;
        // The caller reads until nothing is left, and the next event makes it ready again.
        ready.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::{Scratch, in_small_thread};

    /// Watches a directory, in a runtime as the agent has it.
    fn watching<T>(root: &Path, recursive: bool, work: impl FnOnce(&Watcher) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let request = WatchRequest { recursive, ..Default::default() };
        runtime.block_on(async { work(&Watcher::new(root.to_owned(), &request).unwrap()) })
    }

    fn names(watcher: &Watcher) -> Vec<String> {
        watcher.take().unwrap().into_iter().map(|event| event.name).collect()
    }

    #[test]
    fn many_changes_come_in_several_takes_and_in_order() {
        let scratch = Scratch::new();
        let wanted: Vec<_> = (0..2500).map(|number| number.to_string()).collect();
        let mut found = Vec::new();
        watching(&scratch.path(""), false, |watcher| {
            wanted.iter().for_each(|name| fs::create_dir(scratch.path(name)).unwrap());
            loop {
                let part = names(watcher);
                assert!(part.len() < 1300, "{}", part.len());
                if part.is_empty() {
                    break;
                }
                found.extend(part);
            }
        });
        assert_eq!(found, wanted);
    }

    #[test]
    fn lost_changes_are_an_error_once_and_after_those_that_came() {
        let scratch = Scratch::new();
        fs::write(scratch.path("a"), "").unwrap();
        fs::write(scratch.path("b"), "").unwrap();
        let most: usize =
            fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
        watching(&scratch.path(""), false, |watcher| {
            for number in 0..most + 10 {
                // The kernel joins changes of one kind and one file.
                let name = if number % 2 == 0 { "a" } else { "b" };
                fs::set_permissions(scratch.path(name), PermissionsExt::from_mode(0o600)).unwrap();
            }
            let mut seen = 0;
            let error = loop {
                match watcher.take() {
                    Ok(events) => seen += events.len(),
                    Err(error) => break error,
                }
                assert!(seen <= most);
            };
            assert_eq!((seen, error.code), (most, Code::ResourceExhausted));
            fs::create_dir(scratch.path("later")).unwrap();
            assert_eq!((names(watcher), names(watcher)), (vec!["later".to_owned()], vec![]));
        });
    }

    #[test]
    fn deep_tree_is_watched_on_a_small_stack() {
        let scratch = Scratch::new();
        let deep = scratch.deep("tree");
        let tree = scratch.path("tree");
        in_small_thread(move || {
            watching(&tree, true, |watcher| {
                fs::write(deep.join("file"), "").unwrap();
                assert!(names(watcher)[0].ends_with("d/d/file"));
            });
        });
    }
}
