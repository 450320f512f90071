//! Files that the workloads use. The list is made before, so that no workload has to look for them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use volt_benches::{OrSay, Result};

/// Where the guest has the ext4 file system.
pub const NATIVE: &str = "/native";
/// Memory of the guest, where no workload runs.
const PLAN: &str = "/dev/shm/plan";
/// The archive for the workload that unpacks one.
pub const ARCHIVE: &str = "/dev/shm/archive";
/// Programs to execute.
const PROGRAMS: usize = 100;
/// Files below the most directories.
const DEEPEST: usize = 500;
/// Large files.
const LARGEST: usize = 8;

/// See the module. Paths are absolute.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Directories of the root that are in the image.
    pub tops: Vec<PathBuf>,
    pub python: Vec<PathBuf>,
    pub deepest: Vec<PathBuf>,
    pub largest: Vec<(PathBuf, u64)>,
    /// All files that have content.
    pub files: Vec<PathBuf>,
    pub programs: Vec<PathBuf>,
}

impl Plan {
    /// Makes the plan and the archive, and writes both.
    ///
    /// # Errors
    /// The image has too few files or programs.
    pub fn make() -> Result<Self> {
        let mut plan = Self { tops: tops()?, ..Self::default() };
        let mut files = Vec::new();
        for top in &plan.tops {
            list(top, &mut files)?;
        }
        files.retain(|(_, size)| *size > 0);
        files.sort_unstable();
        plan.python = files.iter().map(|(path, _)| path).filter(|path| is_python(path)).cloned().collect();
        let mut deepest: Vec<_> = files.iter().map(|(path, _)| path.clone()).collect();
        deepest.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
        deepest.truncate(DEEPEST);
        plan.deepest = deepest;
        plan.largest = files.clone();
        plan.largest.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        plan.largest.truncate(LARGEST);
        plan.files = files.into_iter().map(|(path, _)| path).collect();
        plan.programs = programs()?;
        if plan.deepest.len() < DEEPEST || plan.python.len() < DEEPEST {
            return Err("the image has too few files".to_owned());
        }
        let directory = plan.python[0].parent().ok_or("a file without a directory")?;
        archive(directory)?;
        fs::write(PLAN, serde_json::to_vec(&plan).or_say("write the plan")?).or_say("write the plan")?;
        Ok(plan)
    }

    /// Reads the plan.
    ///
    /// # Errors
    /// There is none.
    pub fn read() -> Result<Self> {
        serde_json::from_slice(&fs::read(PLAN).or_say("read the plan")?).or_say("read the plan")
    }
}

fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// Directories that are of the root's own file system. Those of overlayfs all have its device.
fn tops() -> Result<Vec<PathBuf>> {
    let root = fs::symlink_metadata("/").or_say("look at the root")?;
    let mut tops = Vec::new();
    for entry in fs::read_dir("/").or_say("list the root")? {
        let path = entry.or_say("list the root")?.path();
        let found = fs::symlink_metadata(&path).or_say("look at the root")?;
        if found.is_dir() && found.dev() == root.dev() {
            tops.push(path);
        }
    }
    tops.sort_unstable();
    Ok(tops)
}

fn list(directory: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<()> {
    for entry in fs::read_dir(directory).or_say("list a directory")? {
        let path = entry.or_say("list a directory")?.path();
        let found = fs::symlink_metadata(&path).or_say("look at a file")?;
        if found.is_dir() {
            list(&path, files)?;
        } else if found.is_file() {
            files.push((path, found.size()));
        }
    }
    Ok(())
}

/// Programs that print their version.
fn programs() -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    for directory in ["/bin", "/usr/bin"] {
        for entry in fs::read_dir(directory).or_say("list programs")? {
            let path = entry.or_say("list programs")?.path();
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let is_elf = || fs::read(&path).is_ok_and(|content| content.starts_with(b"\x7fELF"));
            if metadata.is_file() && inodes.insert(metadata.ino()) && is_elf() {
                found.insert(path);
            }
        }
    }
    let mut programs = Vec::new();
    for path in found {
        if programs.len() < PROGRAMS && execute(&path, &null()?)? {
            programs.push(path);
        }
    }
    match programs.len() {
        PROGRAMS => Ok(programs),
        fewer => Err(format!("the image has {fewer} programs that know --version; {PROGRAMS} are needed")),
    }
}

/// The file that has nothing, and takes everything.
///
/// # Errors
/// There is none.
pub fn null() -> Result<File> {
    File::options().read(true).write(true).open("/dev/null").or_say("open /dev/null")
}

/// Executes a program. Returns whether it succeeded.
///
/// # Errors
/// It does not start.
pub fn execute(program: &Path, null: &File) -> Result<bool> {
    let streams = || Ok::<_, String>(Stdio::from(null.try_clone().or_say("open /dev/null once more")?));
    let mut command = Command::new(program);
    command.arg("--version").stdin(streams()?).stdout(streams()?).stderr(streams()?);
    Ok(command.status().or_say(&format!("execute {}", program.display()))?.success())
}

/// Makes an archive of a directory.
fn archive(directory: &Path) -> Result<()> {
    let parent = directory.parent().ok_or("an archive of the root")?;
    let name = directory.file_name().ok_or("an archive of the root")?;
    let status = Command::new("tar").arg("-cf").arg(ARCHIVE).arg("-C").arg(parent).arg(name).status();
    if status.or_say("run tar")?.success() { Ok(()) } else { Err("tar failed".to_owned()) }
}
