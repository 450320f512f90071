//! The system calls that can fail, by side: those that write, and those that read.

use super::fault::Faults;

/// Which calls are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Calls that make, change or remove something: files, descriptors, mappings, threads.
    Writes,
    /// Calls that read files, memory and the state of KVM, and waits.
    Reads,
}

/// A watched call.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) number: libc::c_long,
    pub(super) name: &'static str,
    pub(super) when: When,
    pub(super) object: Object,
    pub(super) faults: Faults,
}

/// The condition on a call's arguments, which the kernel checks.
#[derive(Clone, Copy, Debug)]
pub(super) enum When {
    Always,
    /// Argument N has one of these bits.
    Has(u32, u32),
    /// Argument N has none of these bits.
    Lacks(u32, u32),
    /// Argument N is one of these.
    Is(u32, &'static [u32]),
    /// An `mmap` of a descriptor, shared or private.
    MapsFile {
        shared: bool,
    },
    /// An `openat2` whose flags have one of the bits of `WRITING`, or none. The kernel's filter cannot read
    /// them.
    Opens {
        writes: bool,
    },
    /// Any ioctl of KVM but those that run a vCPU or interrupt it.
    Kvm,
}

/// The object of a call, which the injector looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// The path in argument N.
    Path(usize),
    /// The descriptor in argument N, if it is a file, directory or memfd. Others do not count.
    File(usize),
    /// The descriptor in argument N, if it is a socket. Others do not count.
    Socket(usize),
    /// The descriptor in argument N.
    Descriptor(usize),
    /// No object.
    Process,
}

/// `O_WRONLY | O_RDWR | O_CREAT | O_TMPFILE`.
pub(super) const WRITING: u32 =
    (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TMPFILE) as u32 & !(libc::O_DIRECTORY as u32);
/// Requests of `fcntl` that lock, seal or duplicate.
const FCNTL: &[u32] = &[
    libc::F_SETLK as u32,
    libc::F_OFD_SETLK as u32,
    libc::F_SETLEASE as u32,
    libc::F_ADD_SEALS as u32,
    libc::F_DUPFD_CLOEXEC as u32,
];
/// Requests of userfaultfd (`UFFDIO_*`: API, REGISTER, UNREGISTER, WAKE, COPY, ZEROPAGE, WRITEPROTECT,
/// CONTINUE), `FICLONE` and `FICLONERANGE`.
const WRITING_IOCTLS: &[u32] = &[
    0xc018_aa3f,
    0xc020_aa00,
    0x8010_aa01,
    0x8010_aa02,
    0xc028_aa03,
    0xc020_aa04,
    0xc018_aa06,
    0xc020_aa07,
    0x4004_9409,
    0x4020_940d,
];
/// `MADV_DONTNEED`, `MADV_REMOVE`, `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`.
const MADVISE: &[u32] = &[4, 9, 22, 23];

const fn call(number: libc::c_long, name: &'static str, object: Object, faults: Faults) -> Watched {
    Watched { number, name, when: When::Always, object, faults }
}

const fn only(when: When, call: Watched) -> Watched {
    Watched { when, ..call }
}

use Faults::{Errors, Thread, Transfer, Wait};
use Object::{Descriptor, File, Path, Process, Socket};
use When::{Has, Is, Kvm, Lacks, MapsFile};

static WRITES: &[Watched] = &[
    only(Has(1, WRITING), call(libc::SYS_open, "open", Path(0), Errors)),
    only(Has(2, WRITING), call(libc::SYS_openat, "openat", Path(1), Errors)),
    only(When::Opens { writes: true }, call(libc::SYS_openat2, "openat2", Path(1), Errors)),
    call(libc::SYS_creat, "creat", Path(0), Errors),
    call(libc::SYS_mkdir, "mkdir", Path(0), Errors),
    call(libc::SYS_mkdirat, "mkdirat", Path(1), Errors),
    call(libc::SYS_rename, "rename", Path(1), Errors),
    call(libc::SYS_renameat, "renameat", Path(3), Errors),
    call(libc::SYS_renameat2, "renameat2", Path(3), Errors),
    call(libc::SYS_link, "link", Path(1), Errors),
    call(libc::SYS_linkat, "linkat", Path(3), Errors),
    call(libc::SYS_symlink, "symlink", Path(1), Errors),
    call(libc::SYS_symlinkat, "symlinkat", Path(2), Errors),
    call(libc::SYS_unlink, "unlink", Path(0), Errors),
    call(libc::SYS_unlinkat, "unlinkat", Path(1), Errors),
    call(libc::SYS_rmdir, "rmdir", Path(0), Errors),
    call(libc::SYS_chmod, "chmod", Path(0), Errors),
    call(libc::SYS_fchmod, "fchmod", File(0), Errors),
    call(libc::SYS_fchmodat, "fchmodat", Path(1), Errors),
    call(libc::SYS_truncate, "truncate", Path(0), Errors),
    call(libc::SYS_ftruncate, "ftruncate", File(0), Errors),
    call(libc::SYS_fallocate, "fallocate", File(0), Errors),
    call(libc::SYS_write, "write", File(0), Transfer),
    call(libc::SYS_pwrite64, "pwrite", File(0), Transfer),
    call(libc::SYS_writev, "writev", File(0), Transfer),
    call(libc::SYS_pwritev, "pwritev", File(0), Transfer),
    call(libc::SYS_pwritev2, "pwritev2", File(0), Transfer),
    call(libc::SYS_copy_file_range, "copy_file_range", File(2), Transfer),
    call(libc::SYS_sendfile, "sendfile", File(0), Transfer),
    call(libc::SYS_fsync, "fsync", File(0), Errors),
    call(libc::SYS_fdatasync, "fdatasync", File(0), Errors),
    call(libc::SYS_sync_file_range, "sync_file_range", File(0), Errors),
    call(libc::SYS_syncfs, "syncfs", File(0), Errors),
    call(libc::SYS_msync, "msync", Process, Errors),
    call(libc::SYS_flock, "flock", File(0), Errors),
    only(Is(1, FCNTL), call(libc::SYS_fcntl, "fcntl", Descriptor(0), Errors)),
    call(libc::SYS_memfd_create, "memfd_create", Process, Errors),
    only(MapsFile { shared: true }, call(libc::SYS_mmap, "mmap", File(4), Errors)),
    call(libc::SYS_mremap, "mremap", Process, Errors),
    only(Is(2, MADVISE), call(libc::SYS_madvise, "madvise", Process, Errors)),
    only(Is(1, WRITING_IOCTLS), call(libc::SYS_ioctl, "ioctl", Descriptor(0), Errors)),
    call(libc::SYS_userfaultfd, "userfaultfd", Process, Errors),
    call(libc::SYS_sendmsg, "sendmsg", Socket(0), Errors),
    call(libc::SYS_socket, "socket", Process, Errors),
    call(libc::SYS_socketpair, "socketpair", Process, Errors),
    call(libc::SYS_bind, "bind", Socket(0), Errors),
    call(libc::SYS_listen, "listen", Socket(0), Errors),
    call(libc::SYS_connect, "connect", Socket(0), Errors),
    call(libc::SYS_pipe2, "pipe2", Process, Errors),
    call(libc::SYS_eventfd2, "eventfd2", Process, Errors),
    call(libc::SYS_epoll_create1, "epoll_create1", Process, Errors),
    call(libc::SYS_signalfd4, "signalfd4", Process, Errors),
    call(libc::SYS_timerfd_create, "timerfd_create", Process, Errors),
    call(libc::SYS_pidfd_open, "pidfd_open", Process, Errors),
    call(libc::SYS_io_uring_setup, "io_uring_setup", Process, Errors),
    call(libc::SYS_clone, "clone", Process, Thread),
    call(libc::SYS_clone3, "clone3", Process, Thread),
    call(libc::SYS_fork, "fork", Process, Thread),
    call(libc::SYS_vfork, "vfork", Process, Thread),
];

static READS: &[Watched] = &[
    only(Lacks(1, WRITING), call(libc::SYS_open, "open", Path(0), Errors)),
    only(Lacks(2, WRITING), call(libc::SYS_openat, "openat", Path(1), Errors)),
    only(When::Opens { writes: false }, call(libc::SYS_openat2, "openat2", Path(1), Errors)),
    call(libc::SYS_read, "read", File(0), Transfer),
    call(libc::SYS_pread64, "pread", File(0), Transfer),
    call(libc::SYS_readv, "readv", File(0), Transfer),
    call(libc::SYS_preadv, "preadv", File(0), Transfer),
    call(libc::SYS_preadv2, "preadv2", File(0), Transfer),
    call(libc::SYS_lseek, "lseek", File(0), Errors),
    call(libc::SYS_stat, "stat", Path(0), Errors),
    call(libc::SYS_lstat, "lstat", Path(0), Errors),
    call(libc::SYS_fstat, "fstat", File(0), Errors),
    call(libc::SYS_newfstatat, "fstatat", Path(1), Errors),
    call(libc::SYS_statx, "statx", Path(1), Errors),
    call(libc::SYS_statfs, "statfs", Path(0), Errors),
    call(libc::SYS_fstatfs, "fstatfs", File(0), Errors),
    call(libc::SYS_getdents64, "getdents64", File(0), Errors),
    call(libc::SYS_readlink, "readlink", Path(0), Errors),
    call(libc::SYS_readlinkat, "readlinkat", Path(1), Errors),
    only(MapsFile { shared: false }, call(libc::SYS_mmap, "mmap", File(4), Errors)),
    only(Kvm, call(libc::SYS_ioctl, "ioctl", Descriptor(0), Errors)),
    call(libc::SYS_recvmsg, "recvmsg", Socket(0), Errors),
    call(libc::SYS_accept4, "accept4", Socket(0), Errors),
    call(libc::SYS_poll, "poll", Process, Wait),
    call(libc::SYS_ppoll, "ppoll", Process, Wait),
    call(libc::SYS_epoll_wait, "epoll_wait", Process, Wait),
    call(libc::SYS_epoll_pwait, "epoll_pwait", Process, Wait),
    call(libc::SYS_wait4, "wait4", Process, Wait),
    call(libc::SYS_waitid, "waitid", Process, Wait),
];

impl Side {
    pub(super) fn calls(self) -> &'static [Watched] {
        match self {
            Self::Writes => WRITES,
            Self::Reads => READS,
        }
    }

    pub(super) fn find(self, number: i32) -> Option<&'static Watched> {
        self.calls().iter().find(|call| call.number == libc::c_long::from(number))
    }
}
