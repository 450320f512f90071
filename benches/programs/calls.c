// calls FILE: counts the system calls of its parent, in all threads, from now on. FILE gets 1024 counts of 64
// bits, by the numbers of the calls. Returns once it counts. The process that counts ends with the parent.
//
// It runs in a guest as a command, whose parent is the agent. It leaves the control group of commands: frozen
// with them, it would hold the agent at its next call.

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 1024
#define CALL_STOP (SIGTRAP | 0x80)
#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE)

static void fail(const char *act) {
    perror(act);
    exit(1);
}

static uint64_t *map(const char *path) {
    size_t size = CALLS * sizeof(uint64_t);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, size) != 0)
        fail(path);
    uint64_t *counts = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counts == MAP_FAILED)
        fail(path);
    close(file);
    return counts;
}

static void leave_group(void) {
    int file = open("/sys/fs/cgroup/cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, "0", 1) != 1)
        fail("leave the control group");
    close(file);
}

// Follows all threads of the process. Linux adds new ones.
static void follow(pid_t process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *tasks = opendir(path);
    if (tasks == NULL)
        fail(path);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        int thread = atoi(task->d_name);
        if (thread == 0)
            continue;
        if (ptrace(PTRACE_SEIZE, thread, 0, OPTIONS) != 0 || ptrace(PTRACE_INTERRUPT, thread, 0, 0) != 0)
            fail("follow a thread");
    }
    closedir(tasks);
}

static void count(uint64_t *counts) {
    int status;
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status))
            continue;
        int signal = WSTOPSIG(status);
        struct __ptrace_syscall_info info;
        if (signal == CALL_STOP && ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0 &&
            info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr < CALLS)
            counts[info.entry.nr]++;
        // Stops of ptrace's own are no signals.
        int is_own = signal == CALL_STOP || status >> 16 != 0;
        ptrace(PTRACE_SYSCALL, thread, 0, is_own ? 0 : signal);
    }
}

int main(int arguments, char **words) {
    int ready[2];
    char byte = 0;
    if (arguments != 2 || pipe(ready) != 0)
        return 2;
    uint64_t *counts = map(words[1]);
    pid_t parent = getppid();
    if (fork() != 0) {
        close(ready[1]);
        return read(ready[0], &byte, 1) == 1 ? 0 : 1;
    }
    leave_group();
    setsid();
    follow(parent);
    if (write(ready[1], &byte, 1) != 1)
        return 1;
    // The command ends for the agent once its streams are closed.
    for (int file = 0; file < 3; file++)
        close(file);
    count(counts);
    return 0;
}
