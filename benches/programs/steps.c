// steps OUT PROGRAM ARGUMENT...: runs all threads of a static program one instruction at a time. OUT gets the
// addresses of the instructions, as decimal numbers of the program's file, in the order of their first
// execution. The thread that first writes to standard output stops there; the others go on for a second.
// scripts/order.sh makes the list of functions from the addresses.

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSCALL 0x050f // the instruction's two bytes
#define SECONDS_AFTER 1

// Code of the program, by addresses of its file, and their difference to those of the process.
struct code {
    unsigned long start, end, entry, moved;
};

static void fail(const char *act) {
    perror(act);
    exit(1);
}

static struct code read_code(const char *program) {
    struct stat status;
    int file = open(program, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) != 0)
        fail(program);
    const char *bytes = mmap(NULL, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (bytes == MAP_FAILED)
        fail(program);
    close(file);
    const Elf64_Ehdr *header = (const void *)bytes;
    const Elf64_Phdr *segment = (const void *)(bytes + header->e_phoff);
    struct code code = {.entry = header->e_entry};
    for (int number = 0; number < header->e_phnum; number++, segment++)
        if (segment->p_type == PT_LOAD && segment->p_flags & PF_X) {
            code.start = segment->p_vaddr;
            code.end = segment->p_vaddr + segment->p_memsz;
        }
    return code;
}

// Starts the program, stopped at its first instruction.
static pid_t start(char **command) {
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, 0);
        dup2(null, 1);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(command[0], command);
        fail(command[0]);
    }
    int status;
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status)) {
        fprintf(stderr, "steps: %s does not start\n", command[0]);
        exit(1);
    }
    if (ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL) != 0)
        fail("trace threads");
    return child;
}

static int writes_output(pid_t thread, const struct user_regs_struct *registers) {
    if ((registers->rax != SYS_write && registers->rax != SYS_writev) || registers->rdi != 1)
        return 0;
    return (ptrace(PTRACE_PEEKTEXT, thread, registers->rip, 0) & 0xffff) == SYSCALL;
}

static volatile sig_atomic_t over;

static void end(int signal) {
    (void)signal;
    over = 1;
}

// Steps each stopped thread, and writes each new address to `out`.
static void trace(pid_t child, struct code code, FILE *out) {
    char *seen = calloc(code.end - code.start, 1);
    struct user_regs_struct registers;
    struct sigaction action = {.sa_handler = end};
    // Repeats, because a signal before waitpid does not interrupt it.
    struct itimerval after = {.it_value.tv_sec = SECONDS_AFTER, .it_interval.tv_usec = 100000};
    int status = SIGTRAP << 8 | 0x7f, signal;
    sigaction(SIGALRM, &action, NULL);
    if (seen == NULL || ptrace(PTRACE_GETREGS, child, 0, &registers) != 0)
        fail("begin to trace");
    code.moved = registers.rip - code.entry;
    for (pid_t thread = child;; thread = waitpid(-1, &status, __WALL)) {
        if (over)
            return;
        if (thread < 0 && errno == EINTR)
            continue;
        if (thread < 0 || (thread == child && !WIFSTOPPED(status))) {
            fprintf(stderr, "steps: the program ended before its first output (status %#x)\n", status);
            exit(1);
        }
        if (!WIFSTOPPED(status) || ptrace(PTRACE_GETREGS, thread, 0, &registers) != 0)
            continue; // a thread has ended
        unsigned long at = registers.rip - code.moved;
        if (at >= code.start && at < code.end && !seen[at - code.start]) {
            seen[at - code.start] = 1;
            fprintf(out, "%lu\n", at);
        }
        if (writes_output(thread, &registers)) {
            setitimer(ITIMER_REAL, &after, NULL);
            continue;
        }
        // A new thread begins with a SIGSTOP, which is ptrace's and not the program's.
        signal = WSTOPSIG(status);
        ptrace(PTRACE_SINGLESTEP, thread, 0, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
    }
}

// Keeps this process and the program on one processor, where a switch between them takes a third of the time.
static void stay(void) {
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET(sched_getcpu(), &here);
    if (sched_setaffinity(0, sizeof here, &here) != 0)
        fail("stay on a processor");
}

int main(int count, char **arguments) {
    if (count < 3) {
        fputs("usage: steps OUT PROGRAM ARGUMENT...\n", stderr);
        return 1;
    }
    FILE *out = fopen(arguments[1], "w");
    if (out == NULL)
        fail(arguments[1]);
    stay();
    pid_t child = start(arguments + 2);
    trace(child, read_code(arguments[2]), out);
    kill(child, SIGKILL);
    if (fclose(out) != 0)
        fail(arguments[1]);
    return 0;
}
