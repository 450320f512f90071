//! Claims of names: a claim makes the directory of a VM, and a VM's process takes it over.
//!
//! ```text
//!   claim (mkdir, lock, files) ──> the VM's process enters ──> runs ──> keep
//!      └── failed start: the directory goes
//! ```
//!
//! Claims and removals hold the lock of the root, so two processes never decide about one name at once.

use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::lock::{self, Part};
use super::name::VmName;
use super::record::{MainOfImage, NewRecord, Record};
use super::root::RunRoot;
use super::vm_dir::{self, VmDir};
use super::{files, outcome};
use crate::failure::Failure;

/// How long the process that opens files for a VM may outlive a start that failed.
const TO_END: Duration = Duration::from_secs(2);
/// Time between two looks whether it has ended.
const STEP: Duration = Duration::from_millis(2);
/// Attempts to make up a name that is free.
const ATTEMPTS: usize = 1000;

/// A claimed name. Dropping it before [`Claim::keep`] removes its directory, unless a VM's process has it.
#[derive(Debug)]
pub(crate) struct Claim {
    root: RunRoot,
    directory: PathBuf,
    pub(crate) record: Record,
    is_kept: bool,
    /// Says that the VM lives, while it starts.
    lock: File,
}

impl RunRoot {
    /// Claims a name, or makes one up.
    ///
    /// # Errors
    /// A VM has the name, alive or ended; or the host refuses the directory. Then no file is left.
    pub(crate) fn claim(&self, name: Option<VmName>, new: NewRecord) -> Result<Claim, Failure> {
        let _lock = self.lock()?;
        let name = match name {
            Some(name) => {
                refuse_name_of_pagers(&name)?;
                self.make(&name).map_err(|error| self.taken(&name, &error))?;
                name
            }
            None => self.make_up()?,
        };
        let directory = self.path().join(name.as_str());
        let claimed = fill(&directory, name, new);
        let (record, lock) = claimed.inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        Ok(Claim { root: self.clone(), directory, record, is_kept: false, lock })
    }

    fn make_up(&self) -> Result<VmName, Failure> {
        for _ in 0..ATTEMPTS {
            let name = VmName::made_up()?;
            match self.make(&name) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(|error| self.taken(&name, &error))?;
                    return Ok(name);
                }
            }
        }
        Err(Failure::run_dir(self.path(), "all names that are made up are taken; give one (--name NAME)"))
    }

    /// Makes the directory of a name. The directory of a VM that a killed process began is replaced.
    fn make(&self, name: &VmName) -> io::Result<()> {
        let path = self.path().join(name.as_str());
        let make = || DirBuilder::new().mode(0o700).create(&path);
        match make() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_abandoned(&path) => {
                // If a file stays, the next line says so.
                let _ = remove(&path);
                make()
            }
            made => made,
        }
    }

    fn taken(&self, name: &VmName, error: &io::Error) -> Failure {
        if error.kind() != ErrorKind::AlreadyExists {
            return Failure::run_dir(&self.path().join(name.as_str()), format!("cannot create it: {error}"));
        }
        let path = self.path().join(name.as_str());
        let is_alive = match VmDir::open(self, name.as_str()) {
            Some(vm) => vm.is_alive(),
            None if is_directory(&path) && vm_dir::is_held(&path) => true,
            None => {
                let path = path.display();
                let problem = format!("{path} is no VM's and has this name; move it, or choose another name");
                return Failure::vm(name.as_str(), problem);
            }
        };
        let (state, cure) = match is_alive {
            true => ("runs", "choose another name"),
            false => ("has ended", "remove it (volt-vmm rm NAME), or choose another name"),
        };
        Failure::vm(name.as_str(), format!("a VM of this name {state}; {cure}"))
    }

    /// Removes the directory of an ended VM. Returns false if another process has removed it; the name may be
    /// another VM's by then.
    ///
    /// # Errors
    /// The VM lives, or the host refuses.
    pub(crate) fn remove(&self, record: &Record) -> Result<bool, Failure> {
        let _lock = self.lock()?;
        let directory = self.path().join(record.name.as_str());
        if vm_dir::read_record(&directory).is_none_or(|found| found.id != record.id) {
            return Ok(false);
        }
        if vm_dir::is_held(&directory) {
            return Err(Failure::vm(record.name.as_str(), "it runs; stop it first, or use rm --force"));
        }
        remove(&directory).map(|()| true)
    }

    /// Waits for the end of a VM, then removes its directory, unless it is another VM's by then. Afterwards
    /// it is gone, also if another process removed it.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn remove_at_end(&self, record: &Record) -> Result<(), Failure> {
        let is_it = |vm: &VmDir| vm.record.id == record.id;
        let open = || VmDir::open(self, record.name.as_str()).filter(is_it);
        let Some(vm) = open() else {
            // Another process has removed its record, and perhaps not yet the rest.
            return self.lock().map(drop);
        };
        vm.wait()?;
        let _lock = self.lock()?;
        match open() {
            Some(vm) if !vm.is_alive() => remove(&self.path().join(record.name.as_str())),
            _ => Ok(()),
        }
    }

    /// Removes directories that killed processes claimed for VMs which never started.
    ///
    /// # Errors
    /// The root cannot be read. A directory that cannot be removed stays.
    pub(crate) fn remove_abandoned(&self) -> Result<(), Failure> {
        let _lock = self.lock()?;
        let entries = fs::read_dir(self.path());
        let entries =
            entries.map_err(|error| Failure::run_dir(self.path(), format!("cannot list it: {error}")))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            // Pagers have directories here too.
            if path.join(files::LOCK).exists() && is_abandoned(&path) {
                let _ = remove(&path);
            }
        }
        Ok(())
    }
}

impl Claim {
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a process of the VM is left.
    fn lives(&self) -> bool {
        lock::is_held(&self.lock).unwrap_or(true)
    }

    /// Leaves the removal to the process that made the claim. For the VM's process, which shares the claim.
    pub(crate) fn leave_removal(&mut self) {
        self.is_kept = true;
    }

    /// Leaves the directory to the VM's process. Returns the record as that has it.
    pub(crate) fn keep(mut self) -> Record {
        self.is_kept = true;
        vm_dir::read_record(&self.directory).unwrap_or_else(|| self.record.clone())
    }
}

/// Drops the claims of VMs whose start has failed, once the last of their processes have ended: those that
/// open files have the VMs' locks too, and end last.
pub(crate) fn give_up(claims: Vec<Claim>) {
    let end = Instant::now() + TO_END;
    while claims.iter().any(Claim::lives) && Instant::now() < end {
        sleep(STEP);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let _lock = self.root.lock();
        // A child of a fork may live although its parent was killed before it answered. Another VM may have
        // the name if the directory was removed meanwhile.
        let lives = self.lives();
        let is_another = |record: Record| record.id != self.record.id;
        if !lives && !vm_dir::read_record(&self.directory).is_some_and(is_another) {
            // A file that stays does not keep the name: no record is left.
            let _ = remove(&self.directory);
        }
    }
}

/// Refuses new names that the directory of a group of shared pagers can have beside those of VMs. Children of
/// a VM `group` would get such names.
fn refuse_name_of_pagers(name: &VmName) -> Result<(), Failure> {
    match name.as_str() {
        text if text == "group" || text.starts_with("group-") => {
            let problem = "a name does not begin with `group-`, as those of pagers do, and is not `group`";
            Err(Failure::vm(text, problem))
        }
        _ => Ok(()),
    }
}

/// Removes a directory and the VM's own disks, its record first: without one it is abandoned.
fn remove(directory: &Path) -> Result<(), Failure> {
    let data = vm_dir::read_record(directory).and_then(|record| record.data);
    let _ = fs::remove_file(directory.join(files::RECORD));
    // Disks that stay cost room, and hinder no VM.
    data.into_iter().for_each(|data| drop(fs::remove_dir_all(data)));
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::run_dir(directory, format!("cannot remove it: {error}")))
        }
        _ => Ok(()),
    }
}

/// Whether nothing of a directory is kept for its user, and no process holds its lock: it has no whole
/// record, or that of a VM which never started or is removed at its end. A record that the host does not let
/// this process read protects the directory, and so does an entry that no VM's process makes. The root is
/// locked, so no claim is half done.
fn is_abandoned(directory: &Path) -> bool {
    let is_free = match fs::read(directory.join(files::RECORD)) {
        // A crash of the host can tear it.
        Ok(_) => {
            vm_dir::read_record(directory).is_none_or(|record| record.pid.is_none() || record.removed_at_end)
        }
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    is_directory(directory) && is_free && has_only_own_files(directory) && !vm_dir::is_held(directory)
}

/// Whether a path is a directory, and no link to one.
fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Whether all entries of a directory are files that the directory of a VM has.
fn has_only_own_files(directory: &Path) -> bool {
    let is_own = |entry: io::Result<DirEntry>| {
        let Ok(entry) = entry else { return false };
        let is_known = entry.file_name().to_str().is_some_and(files::is_known);
        is_known && entry.file_type().is_ok_and(|kind| !kind.is_dir())
    };
    fs::read_dir(directory).is_ok_and(|mut entries| entries.all(is_own))
}

/// Makes all files of a VM's directory, and locks it. The VM's process opens them before it confines itself.
fn fill(directory: &Path, name: VmName, new: NewRecord) -> Result<(Record, File), Failure> {
    let record = Record::begin(name, directory, new)?;
    let made = || {
        let lock = create(directory, files::LOCK)?;
        lock::hold(&lock, Part::Claim)?;
        let of_main = record.main.iter().flat_map(|_| files::MAIN_LOGS);
        for name in files::SERIAL_LOGS.into_iter().chain([files::LOG, files::CONFIG]).chain(of_main) {
            create(directory, name)?;
        }
        outcome::reserve(&create(directory, files::OUTCOME)?)?;
        vm_dir::write_record(directory, &record)?;
        Ok(lock)
    };
    let lock = made().map_err(|error: io::Error| {
        Failure::run_dir(directory, format!("cannot write its files: {error}"))
    })?;
    Ok((record, lock))
}

/// Takes over a claimed directory for this process. Returns its record and the lock, which is held until the
/// process ends.
///
/// # Errors
/// Another process has it, or the host refuses.
pub(crate) fn enter(directory: &Path) -> Result<(Record, File), Failure> {
    let failed = |error: io::Error| Failure::run_dir(directory, format!("cannot take it over: {error}"));
    let lock = File::options().read(true).write(true).open(directory.join(files::LOCK)).map_err(failed)?;
    if !lock::hold(&lock, Part::Life).map_err(failed)? {
        return Err(Failure::run_dir(directory, "another VM's process has it"));
    }
    let missing = || failed(io::Error::from(ErrorKind::NotFound));
    let mut record = vm_dir::read_record(directory).ok_or_else(missing)?;
    record.pid = Some(std::process::id());
    vm_dir::write_record(directory, &record).map_err(failed)?;
    Ok((record, lock))
}

fn create(directory: &Path, name: &str) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(directory.join(name))
}

/// Notes that the VM has the main process of a snapshot, and makes the files of its output. For the VM's
/// process.
///
/// # Errors
/// The host refuses.
pub(crate) fn add_main(directory: &Path, main: &MainOfImage) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::run_dir(directory, format!("cannot add to its files: {error}"));
    let mut record =
        vm_dir::read_record(directory).ok_or_else(|| failed(io::Error::from(ErrorKind::NotFound)))?;
    files::MAIN_LOGS.iter().try_for_each(|name| create(directory, name).map(drop)).map_err(failed)?;
    record.main = Some(main.clone());
    vm_dir::write_record(directory, &record).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::run_dir::listing::all;
    use crate::run_dir::outcome::{Cause, EndOfVm};
    use crate::run_dir::record::Origin;
    use crate::run_dir::root::tests::scratch;

    fn claim(root: &RunRoot, name: &str) -> Result<Claim, Failure> {
        root.claim(Some(name.parse().unwrap()), new())
    }

    fn new() -> NewRecord {
        NewRecord::of(Origin::Kernel("/k".to_owned()))
    }

    #[test]
    fn claimed_name_is_taken_until_it_is_removed() {
        let (_dir, root) = scratch();
        let first = claim(&root, "web").unwrap();
        let error = claim(&root, "web").unwrap_err().to_string();
        assert_eq!(error, "VM web: a VM of this name runs; choose another name");
        assert!(root.remove(&first.record).unwrap_err().to_string().contains("it runs"));
        let record = first.record.clone();
        drop(enter(first.directory()).unwrap());
        first.keep();
        let error = claim(&root, "web").unwrap_err().to_string();
        assert!(error.contains("has ended; remove it (volt-vmm rm NAME)"), "{error}");
        assert!(root.remove(&record).unwrap());
        assert!(all(&root).unwrap().is_empty());
        assert!(!root.remove(&record).unwrap(), "it is gone already");
        drop(claim(&root, "web").unwrap());
        assert!(!root.path().join("web").exists(), "a dropped claim leaves nothing");
    }

    #[test]
    fn last_process_of_a_failed_start_may_end_a_little_later() {
        let (_dir, root) = scratch();
        let failed = claim(&root, "web").unwrap();
        let (_, life) = enter(failed.directory()).unwrap();
        let process = thread::spawn(move || {
            sleep(Duration::from_millis(50));
            drop(life);
        });
        give_up(vec![failed]);
        assert!(!root.path().join("web").exists());
        process.join().unwrap();
    }

    #[test]
    fn one_of_many_claims_of_a_name_succeeds() {
        let (_dir, root) = scratch();
        let begin = Barrier::new(16);
        let claims: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        begin.wait();
                        claim(&root, "web")
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(claims.iter().filter(|claim| claim.is_ok()).count(), 1);
    }

    #[test]
    fn no_claim_is_lost_when_200_race() {
        let (_dir, root) = scratch();
        let claims: Vec<_> = thread::scope(|scope| {
            let claim = |number| {
                let name = (number % 2 == 0).then(|| format!("vm-{number}").parse().unwrap());
                root.claim(name, new()).unwrap()
            };
            let threads: Vec<_> = (0..200).map(|number| scope.spawn(move || claim(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let found = all(&root).unwrap();
        assert!(found.len() == 200 && found.iter().all(VmDir::is_alive), "{}", found.len());
        drop(claims);
        assert!(all(&root).unwrap().is_empty());
    }

    #[test]
    fn dropped_claim_leaves_a_living_vm_and_another_vm_of_the_name() {
        let (_dir, root) = scratch();
        let lives = claim(&root, "web").unwrap();
        let life = enter(lives.directory()).unwrap();
        drop(lives);
        assert!(all(&root).unwrap().iter().any(VmDir::is_alive), "its process goes on");
        drop(life);

        let late = claim(&root, "late").unwrap();
        fs::remove_dir_all(late.directory()).unwrap();
        let other = claim(&root, "late").unwrap();
        drop(late);
        assert!(other.directory().join(files::RECORD).exists());
    }

    #[test]
    fn abandoned_directory_does_not_keep_its_name() {
        let (_dir, root) = scratch();
        let web = root.path().join("web");
        fs::create_dir(&web).unwrap();
        for name in ["log", ".vm.json", "vsock_52"] {
            fs::write(web.join(name), "half").unwrap();
        }
        assert!(all(&root).unwrap().is_empty());
        claim(&root, "web").unwrap();
    }

    #[test]
    fn foreign_file_that_has_the_name_is_kept_and_told() {
        let (dir, root) = scratch();
        let path = root.path().join("web");
        let (log, nested) = (path.join("log"), path.join("vsock"));
        let refused = || {
            let error = claim(&root, "web").unwrap_err().to_string();
            let words = format!("VM web: {} is no VM's and has this name", path.display());
            assert!(error.starts_with(&words), "{error}");
            root.remove_abandoned().unwrap();
            assert!(fs::symlink_metadata(&path).is_ok());
        };
        // A directory of another program, also one with a lock and with a name of a VM's file.
        fs::create_dir(&path).unwrap();
        fs::write(&log, "").unwrap();
        fs::write(path.join("precious"), "").unwrap();
        refused();
        fs::rename(path.join("precious"), path.join(files::LOCK)).unwrap();
        fs::create_dir(&nested).unwrap();
        refused();
        assert!(log.exists() && nested.exists());
        fs::rename(&path, dir.path("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path("elsewhere"), &path).unwrap();
        refused();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        refused();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn new_vm_gets_no_name_of_pagers() {
        let (_dir, root) = scratch();
        for name in ["group", "group-", "group-web"] {
            let error = claim(&root, name).unwrap_err().to_string();
            assert!(error.contains("does not begin with `group-`"), "{error}");
            assert!(!root.path().join(name).exists());
        }
        claim(&root, "groups").unwrap();
    }

    #[test]
    fn removal_leaves_another_vm_that_has_the_name_by_then() {
        let (_dir, root) = scratch();
        let ended = || {
            let claim = claim(&root, "web").unwrap();
            drop(enter(claim.directory()).unwrap());
            claim.keep()
        };
        let first = ended();
        assert!(root.remove(&first).unwrap());
        let second = ended();
        assert!(!root.remove(&first).unwrap());
        assert_eq!(vm_dir::read_record(&root.path().join("web")).unwrap().id, second.id);
    }

    #[test]
    fn claim_of_a_killed_process_keeps_no_name() {
        let (_dir, root) = scratch();
        let leave = |name: &str| drop(claim(&root, name).unwrap().keep());
        leave("web");
        assert!(all(&root).unwrap().is_empty(), "no VM of this claim has started");
        drop(claim(&root, "web").unwrap());
        leave("web");
        let pagers = root.path().join("group-a");
        fs::create_dir(&pagers).unwrap();
        let other = claim(&root, "db").unwrap();
        root.remove_abandoned().unwrap();
        assert!(!root.path().join("web").exists());
        assert!(pagers.exists() && other.directory().exists());
    }

    #[test]
    fn directory_that_is_removed_at_the_end_waits_for_its_vm() {
        let (_dir, root) = scratch();
        let claim = || {
            let claimed = NewRecord { removed_at_end: true, ..new() };
            root.claim(Some("web".parse().unwrap()), claimed)
        };
        let first = claim().unwrap();
        let (record, life) = enter(first.directory()).unwrap();
        first.keep();
        let remover = thread::spawn({
            let (root, record) = (root.clone(), record.clone());
            move || root.remove_at_end(&record).unwrap()
        });
        assert!(claim().is_err() && root.path().join("web").exists());
        drop(life);
        remover.join().unwrap();
        assert!(!root.path().join("web").exists());
        // Without its remover, an ended one does not keep the name.
        let second = claim().unwrap();
        drop(enter(second.directory()).unwrap());
        second.keep();
        let third = claim().unwrap();
        root.remove_at_end(&record).unwrap();
        assert!(third.directory().exists(), "it is another VM's");
    }

    #[test]
    fn vm_lives_as_long_as_the_process_that_entered_it() {
        let (_dir, root) = scratch();
        let claim = claim(&root, "web").unwrap();
        let directory = claim.directory().to_owned();
        let (record, life) = enter(&directory).unwrap();
        assert_eq!(record.pid, Some(std::process::id()));
        assert!(enter(&directory).unwrap_err().to_string().contains("another VM's process"));
        claim.keep();
        let vm = VmDir::open(&root, "web").unwrap();
        assert!(vm.is_alive() && vm.end().is_none());
        drop(life);
        assert_eq!((vm.end().unwrap().status, vm.end().unwrap().cause), (137, Cause::Killed));
        vm.record_end(&EndOfVm::now(0, Cause::Poweroff, "off"));
        vm.record_end(&EndOfVm::now(1, Cause::Failed, "too late"));
        assert_eq!(vm.wait().unwrap().cause, Cause::Poweroff);
    }
}
