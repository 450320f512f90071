//! An image that a guest uses without a layer. A snapshot syncs it and records its content and time; a
//! restore compares them.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use rustix::fs::{Timespec, Timestamps, UTIME_OMIT};
use rustix::time::ClockId;

use super::digest;
use super::host_file::HostFile;
use crate::config::DiskContent;
use crate::error::{Error, Result};
use crate::paths;
use crate::sync::lock;

/// The image, opened once more. Its modification time is known from the start.
#[derive(Debug)]
pub struct Image {
    file: HostFile,
    is_written: bool,
    modified: Option<Timestamp>,
    /// The digest at the instant of [`Image::pin_content`], if it took one.
    digest: Option<u64>,
}

/// Modification time of a file: seconds since 1970, and nanoseconds.
type Timestamp = (i64, i64);

impl Image {
    /// Opens the image once more and reads its modification time.
    ///
    /// # Errors
    /// The host refuses to duplicate the descriptor or to read the metadata.
    pub(super) fn of(file: &HostFile, is_written: bool) -> Result<Self> {
        let failed = |source| Error::file("read metadata of disk", file.name(), source);
        let file = file.duplicate().map_err(failed)?;
        let has_time = is_written && !file.is_block_device();
        let modified = has_time.then(|| modified(file.file())).transpose().map_err(failed)?;
        Ok(Self { file, is_written, modified, digest: None })
    }

    /// Returns whether the image is the file at `path`.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        let found = paths::metadata(path);
        let own = self.file.file().metadata();
        found.is_ok_and(|found| own.is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino())))
    }

    /// Makes [`Image::content`] describe this instant, in which the image is not written. The guest may
    /// write before the content is read:
    ///
    /// - The modification time tells a later write apart. Before Linux 6.13 a file's time comes from the
    ///   kernel's tick, so a write in the same tick would not show. A time of this tick therefore becomes
    ///   one within the tick, or seconds before it if the file system does not keep nanoseconds.
    /// - A block device has no time, so its digest is taken.
    ///
    /// # Errors
    /// The host refuses to read the image or its metadata.
    pub fn pin_content(&mut self) -> Result<()> {
        let pinned = match self.modified {
            Some(then) if is_time_of_write(then, tick()) => self.leave_tick(),
            None if self.is_written => self.samples().map(|digest| self.digest = Some(digest)),
            _ => Ok(()),
        };
        pinned.map_err(|source| Error::file("read metadata of disk", self.name(), source))?;
        if let Some((seconds, nanos)) = self.modified
            && nanos % FINEST_ROUNDED == 0
        {
            lock(&RECORDED).record(seconds);
        }
        Ok(())
    }

    /// Gives the file a time that no later write has. If only the file's owner may do that, waits until new
    /// writes get another time.
    fn leave_tick(&mut self) -> io::Result<()> {
        let now = rustix::time::clock_gettime(ClockId::Realtime);
        let unlike_a_tick = (now.tv_sec, now.tv_nsec | 1);
        if self.set_modified(unlike_a_tick)? {
            if let Some((seconds, nanos)) = self.modified.filter(|kept| *kept != unlike_a_tick) {
                // The file system rounds down, and would round the time of a write now to the same value.
                self.set_modified((lock(&RECORDED).take_before(seconds), nanos))?;
            }
            return Ok(());
        }
        while self.modified.is_some_and(|then| is_time_of_write(then, tick())) {
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Sets the modification time, and reads back what the file system made of it. Returns false if only the
    /// file's owner may do that.
    fn set_modified(&mut self, (tv_sec, tv_nsec): Timestamp) -> io::Result<bool> {
        let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: unchanged, last_modification: Timespec { tv_sec, tv_nsec } };
        if rustix::fs::futimens(self.file.file(), &times).is_err() {
            return Ok(false);
        }
        self.modified = Some(modified(self.file.file())?);
        Ok(true)
    }

    /// Reads what a digest in the pause will read, so that the page cache has it.
    ///
    /// # Errors
    /// The host refuses to read the image.
    pub fn warm(&self) -> Result<()> {
        match self.is_written && self.file.is_block_device() {
            true => self.samples().map(drop).map_err(|source| Error::file("read disk", self.name(), source)),
            false => Ok(()),
        }
    }

    fn samples(&self) -> io::Result<u64> {
        digest::of_base(self.file.file(), self.file.len()?)
    }

    /// Returns the name that the user gave.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Returns the content now, or at the instant of [`Image::pin_content`].
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn content(&self) -> Result<DiskContent> {
        self.content_and_digest().map(|(content, _)| content)
    }

    /// Returns the content of a disk with these files.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn content_of_all(images: &[Self]) -> Result<DiskContent> {
        if let [image] = images {
            return image.content();
        }
        let parts = images.iter().map(Self::content_and_digest).collect::<Result<Vec<_>>>()?;
        let (parts, digests): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Ok(DiskContent {
            bytes: parts.iter().map(|part| part.bytes).sum(),
            digest: format!("{:016x}", digest::of_parts(digests)),
            modified: None,
            parts,
        })
    }

    fn content_and_digest(&self) -> Result<(DiskContent, u64)> {
        let found = || -> io::Result<_> {
            let digest = self.digest.map_or_else(|| self.samples(), Ok)?;
            let modified = self.modified.map(|(seconds, nanos)| format!("{seconds}.{nanos:09}"));
            let (bytes, parts) = (self.file.len()?, Vec::new());
            Ok((DiskContent { bytes, digest: format!("{digest:016x}"), modified, parts }, digest))
        };
        found().map_err(|source| Error::file("read disk", self.name(), source))
    }
}

fn modified(file: &File) -> io::Result<Timestamp> {
    file.metadata().map(|found| (found.mtime(), found.mtime_nsec()))
}

/// Modification times that snapshots of this process recorded, of any image.
static RECORDED: Mutex<RecordedTimes> = Mutex::new(RecordedTimes(Vec::new()));

/// Seconds that snapshots recorded as times of images, as found or as given. The image may have been written
/// between two snapshots of one second. The seconds are a few ranges in order: the earliest ranges swallow
/// the gaps between them.
#[derive(Debug)]
struct RecordedTimes(Vec<(i64, i64)>);

impl RecordedTimes {
    const MAX_RANGES: usize = 64;

    fn record(&mut self, second: i64) {
        let (mut first, mut last) = (second, second);
        self.0.retain(|range| {
            let is_near = range.0 <= last + 1 && first - 1 <= range.1;
            if is_near {
                (first, last) = (first.min(range.0), last.max(range.1));
            }
            !is_near
        });
        let at = self.0.partition_point(|range| range.0 < first);
        self.0.insert(at, (first, last));
        if self.0.len() > Self::MAX_RANGES {
            let (first, _) = self.0.remove(0);
            self.0[0].0 = first;
        }
    }

    /// Records and returns a time that was not recorded: two seconds before `second` or, if that is
    /// recorded, an earlier even second. FAT keeps even seconds.
    fn take_before(&mut self, second: i64) -> i64 {
        let ranges = self.0.iter().rev();
        let time = ranges.fold(second - 2, |time, (first, last)| match time > *last {
            true => time,
            false => time.min((first - 2) & !1),
        });
        self.record(time);
        time
    }
}

/// Nanoseconds to which file systems round times down: 100 ns (NTFS, SMB), microseconds, 10 ms (exFAT), and
/// the seconds of ext4 with inodes of 128 bytes and of FAT.
const ROUNDED_TO: [i128; 6] = [1, 100, 1000, 10_000_000, 1_000_000_000, 2_000_000_000];

/// The least step above one: a time that is not a multiple was not rounded.
const FINEST_ROUNDED: i64 = 100;

/// Returns whether a write in this tick gives a file the time `then` on some file system.
fn is_time_of_write(time: Timestamp, tick: Timestamp) -> bool {
    let nanos = |(seconds, nanos): Timestamp| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    ROUNDED_TO.iter().any(|step| nanos(tick) / step * step == nanos(time))
}

/// Returns the time that a write gets now, before Linux 6.13.
fn tick() -> Timestamp {
    let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::super::host_file::OpenMode;
    use super::super::testing::{Ext4InSeconds, LoopDevice, Random, TestDir, pattern};
    use super::*;
    use crate::config::FileRef;
    use std::os::unix::fs::FileExt;

    /// Gives a file the time that a write in this tick has before Linux 6.13.
    fn write_in_tick(file: &File, (tv_sec, tv_nsec): Timestamp) {
        let time = Timespec { tv_sec, tv_nsec };
        rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time }).unwrap();
    }

    #[test]
    fn write_in_the_tick_of_the_pause_changes_the_content() {
        let dir = TestDir::new();
        let path = dir.file("image", &[1; 4096]);
        let file = HostFile::open("disk0", &FileRef::Path(path), OpenMode::Write).unwrap();
        // A tick that ends in between makes the attempt void.
        let tried = (0..10_000).any(|_| {
            let tick_before = tick();
            write_in_tick(file.file(), tick_before);
            let mut image = Image::of(&file, true).unwrap();
            image.pin_content().unwrap();
            if tick() != tick_before {
                return false;
            }
            let then = image.content().unwrap();
            let again = Image::of(&file, true).unwrap().content().unwrap();
            assert_eq!(then.difference(&again, false), None, "no write since");
            write_in_tick(file.file(), tick_before);
            let now = Image::of(&file, true).unwrap().content().unwrap();
            assert!(then.difference(&now, false).is_some(), "{then:?} and {now:?}");
            true
        });
        assert!(tried, "a tick ended during each attempt");
    }

    /// ext4 with inodes of 128 bytes keeps seconds.
    #[test]
    fn write_in_the_second_of_the_pause_changes_the_content_if_the_file_system_keeps_seconds() {
        let Some(coarse) = Ext4InSeconds::mount() else {
            return crate::testing::skip("mounting an ext4 takes root");
        };
        let path = coarse.0.file("disk", &[1; 4096]);
        let file = HostFile::open("disk0", &FileRef::Path(path), OpenMode::Write).unwrap();
        // A second that ends in between makes the attempt void.
        let tried = (0..100).any(|_| {
            let (second, _) = tick();
            file.file().write_all_at(&[2; 512], 512).unwrap();
            let mut image = Image::of(&file, true).unwrap();
            image.pin_content().unwrap();
            let then = image.content().unwrap();
            let again = Image::of(&file, true).unwrap().content().unwrap();
            assert_eq!(then.difference(&again, false), None, "no write since");
            file.file().write_all_at(&[2; 512], 512).unwrap();
            let now = Image::of(&file, true).unwrap().content().unwrap();
            if tick().0 != second {
                return false;
            }
            assert!(then.difference(&now, false).is_some(), "{then:?} and {now:?}");
            true
        });
        assert!(tried, "a second ended during each attempt");
    }

    #[test]
    fn contents_of_a_second_differ_if_a_write_lies_between_them() {
        let Some(coarse) = Ext4InSeconds::mount() else {
            return crate::testing::skip("mounting an ext4 takes root");
        };
        let path = coarse.0.file("disk", &[1; 4096]);
        let file = HostFile::open("disk0", &FileRef::Path(path), OpenMode::Write).unwrap();
        // A second that ends in between makes the attempt void.
        let tried = (0..100).any(|_| {
            let (second, _) = tick();
            let written = || {
                file.file().write_all_at(&[2; 512], 512).unwrap();
                let mut image = Image::of(&file, true).unwrap();
                image.pin_content().unwrap();
                image.content().unwrap()
            };
            let all = [written(), written(), written()];
            if tick().0 != second {
                return false;
            }
            for (one, other) in [(0, 1), (1, 2), (0, 2)] {
                assert!(all[one].difference(&all[other], false).is_some(), "{all:?}");
            }
            true
        });
        assert!(tried, "a second ended during each attempt");
    }

    /// The first snapshot leaves the time as it is, which is the time that the second one would give.
    #[test]
    fn contents_of_a_second_differ_if_the_first_keeps_the_time() {
        let Some(coarse) = Ext4InSeconds::mount() else {
            return crate::testing::skip("mounting an ext4 takes root");
        };
        let path = coarse.0.file("disk", &[1; 4096]);
        let file = HostFile::open("disk0", &FileRef::Path(path), OpenMode::Write).unwrap();
        // A second that ends in between makes the attempt void.
        let tried = (0..100).any(|_| {
            let (second, _) = tick();
            file.file().write_all_at(&[2; 512], 512).unwrap(); // samples do not differ
            write_in_tick(file.file(), (second - 2, 0));
            let pinned = || {
                let mut image = Image::of(&file, true).unwrap();
                image.pin_content().unwrap();
                image.content().unwrap()
            };
            let first = pinned();
            file.file().write_all_at(&[2; 512], 512).unwrap();
            let second_one = pinned();
            if tick().0 != second {
                return false;
            }
            assert_eq!(
                first.modified,
                Some(format!("{}.000000000", second - 2)),
                "the time is not of this tick"
            );
            assert!(first.difference(&second_one, false).is_some(), "{first:?} and {second_one:?}");
            true
        });
        assert!(tried, "a second ended during each attempt");
    }

    #[test]
    fn given_times_differ() {
        let mut recorded = RecordedTimes(Vec::new());
        // The last second: the host's clock was set back.
        let seconds = [3_000_000_000, 3_000_000_000, 3_000_000_001, 3_000_000_001, 2_999_999_000];
        let mut given: Vec<_> =
            seconds.iter().map(|second| (recorded.take_before(*second), *second)).collect();
        assert!(given.iter().all(|(time, second)| *time <= second - 2));
        given.sort_unstable();
        assert!(given.windows(2).all(|pair| pair[0].0 < pair[1].0), "{given:?}");
    }

    /// Compares with a set: times that were found and given, in any order, more of them than are kept apart.
    #[test]
    fn given_time_was_not_recorded_before() {
        let (mut recorded, mut all) = (RecordedTimes(Vec::new()), std::collections::BTreeSet::new());
        let mut random = Random(2);
        for now in (0..3000).map(|step| step / 3) {
            if random.below(2) == 0 {
                let age = 1 << random.below(12);
                let found = now - 2 - random.below(age) as i64;
                recorded.record(found);
                all.insert(found);
            } else {
                let given = recorded.take_before(now);
                assert!(given <= now - 2 && all.insert(given), "{given} is recorded: {recorded:?}");
            }
            assert!(recorded.0.len() <= RecordedTimes::MAX_RANGES);
            assert!(recorded.0.windows(2).all(|pair| pair[0].1 < pair[1].0), "{recorded:?}");
        }
    }

    /// An image that was last written years ago must not make the given time years old.
    #[test]
    fn given_time_is_recent_after_an_old_one_was_recorded() {
        let mut recorded = RecordedTimes(Vec::new());
        recorded.record(1_000_000_000);
        assert_eq!(
            [(); 3].map(|()| recorded.take_before(3_000_000_000)),
            [2_999_999_998, 2_999_999_996, 2_999_999_994]
        );
    }

    #[test]
    fn rounded_time_of_a_write_is_recognized() {
        let tick = (1_000_001, 123_456_789);
        for nanos in [123_456_789, 123_456_700, 123_456_000, 120_000_000, 0] {
            assert!(is_time_of_write((1_000_001, nanos), tick), "{nanos}");
        }
        assert!(is_time_of_write((1_000_000, 0), tick), "FAT");
        for other in [(1_000_001, 123_456_788), (1_000_000, 123_456_789), (999_999, 0)] {
            assert!(!is_time_of_write(other, tick), "{other:?}");
        }
    }

    #[test]
    fn content_pinned_twice_is_the_same() {
        let dir = TestDir::new();
        let path = dir.file("image", &[1; 4096]);
        let file = HostFile::open("disk0", &FileRef::Path(path), OpenMode::Write).unwrap();
        for _ in 0..100 {
            write_in_tick(file.file(), tick());
            let pinned = || {
                let mut image = Image::of(&file, true).unwrap();
                image.pin_content().unwrap();
                image.content().unwrap()
            };
            assert_eq!(pinned(), pinned());
        }
    }

    #[test]
    fn content_of_a_block_device_is_that_of_the_pin() {
        let dir = TestDir::new();
        let Some(device) = LoopDevice::over(&dir.file("image", &pattern(1 << 20, 3))) else {
            return crate::testing::skip("a loop device takes root");
        };
        let file = HostFile::open("disk0", &FileRef::Path(device.0.clone()), OpenMode::Write).unwrap();
        let before = Image::of(&file, true).unwrap().content().unwrap();
        let mut image = Image::of(&file, true).unwrap();
        image.pin_content().unwrap();
        file.file().write_all_at(&[7; 512], 0).unwrap();
        let kept = image.content().unwrap();
        assert_eq!(kept, before);
        let now = Image::of(&file, true).unwrap().content().unwrap();
        assert!(kept.difference(&now, false).is_some());
    }
}
