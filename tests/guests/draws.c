/* A program of Linux guests, without a C library: draws random numbers of the kernel in several processes
 * without a pause, and tells those whose calls began after a mark.
 *
 *   draws start FILE       starts the processes, which wait
 *   draws go FILE SECONDS  has them draw for so long, and waits until each has begun
 *   draws mark FILE        marks this moment; each process draws TOLD numbers more
 *   draws tell FILE        waits for these numbers, and prints them
 *   draws tell FILE TSC    has all wait, and prints the first TOLD numbers of each since this TSC
 *   draws clock            prints the time of day in nanoseconds for each line of its input
 *
 * One half of the processes calls getrandom(2), the other half reads /dev/urandom. */
typedef unsigned char u8;
typedef unsigned long u64;

#define PROCESSES 4
#define KEPT (1UL << 18)
#define TOLD 500
#define BYTES 16
#define SECOND 1000000000UL

enum { READ = 0, WRITE = 1, OPEN = 2, MMAP = 9, PAUSE = 34, NANOSLEEP = 35, FORK = 57, EXIT = 60 };
enum { FTRUNCATE = 77, CLOCK_GETTIME = 228, GETRANDOM = 318 };
enum { REALTIME = 0, MONOTONIC = 1 };
enum { READ_WRITE = 2, READ_WRITE_CREATE = 0102, SHARED = 1, PROT_READ_WRITE = 3 };

struct number {
    u64 begun;
    u8 bytes[BYTES];
};

struct process {
    u64 drawn, since_mark, waits;
    struct number kept[KEPT];
};

/* The file. */
struct draws {
    u64 until, mark;    /* until: nanoseconds of the monotonic clock */
    struct process processes[PROCESSES];
};

static long call(long number, long a, long b, long c, long d, long e)
{
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth),
                     "r"(sixth) : "rcx", "r11", "memory");
    return result;
}

static void leave(long status)
{
    for (;;)
        call(EXIT, status, 0, 0, 0, 0);
}

static long checked(long result)
{
    if (result < 0)
        leave(2);
    return result;
}

static u64 tsc(void)
{
    u64 low, high;
    __asm__ volatile("mfence; lfence; rdtsc; lfence" : "=a"(low), "=d"(high) : : "memory");
    return high << 32 | low;
}

static void sleep_a_little(void)
{
    u64 time[2] = { 0, 10000000 };
    call(NANOSLEEP, (long)time, 0, 0, 0, 0);
}

static u64 nanoseconds(long clock)
{
    u64 time[2];
    checked(call(CLOCK_GETTIME, clock, (long)time, 0, 0, 0));
    return time[0] * SECOND + time[1];
}

static void print(const u8 *text, u64 length)
{
    for (u64 done = 0; done < length;)
        done += checked(call(WRITE, 1, (long)text + done, length - done, 0, 0));
}

static struct draws *mapped(const char *path, int flags)
{
    long file = checked(call(OPEN, (long)path, flags, 0600, 0, 0));
    if (flags == READ_WRITE_CREATE)
        checked(call(FTRUNCATE, file, sizeof(struct draws), 0, 0, 0));
    return (struct draws *)checked(call(MMAP, 0, sizeof(struct draws), PROT_READ_WRITE, SHARED, file));
}

static int shall_draw(volatile struct draws *draws, volatile struct process *own)
{
    if (draws->mark)
        return own->since_mark < TOLD;
    return draws->until && ((own->drawn % 64 && !own->waits) || nanoseconds(MONOTONIC) < draws->until);
}

static void draw(volatile struct draws *draws, volatile struct process *own, int reads)
{
    long source = reads ? checked(call(OPEN, (long)"/dev/urandom", 0, 0, 0, 0)) : -1;
    for (;;) {
        if (!shall_draw(draws, own)) {
            own->waits = 1;
            sleep_a_little();
            continue;
        }
        own->waits = 0;
        volatile struct number *number = &own->kept[own->drawn % KEPT];
        u64 begun = tsc();
        long given = reads ? call(READ, source, (long)number->bytes, BYTES, 0, 0)
                           : call(GETRANDOM, (long)number->bytes, BYTES, 0, 0, 0);
        if (given != BYTES)
            leave(3);
        number->begun = begun;
        own->drawn++;
        own->since_mark += draws->mark && begun > draws->mark;
    }
}

static void start(volatile struct draws *draws)
{
    for (int index = 0; index < PROCESSES; index++)
        if (checked(call(FORK, 0, 0, 0, 0, 0)) == 0)
            draw(draws, &draws->processes[index], index % 2);
    print((const u8 *)"started\n", 8);
    for (;;)
        call(PAUSE, 0, 0, 0, 0, 0);
}

static void go(volatile struct draws *draws, u64 seconds)
{
    u64 before[PROCESSES];
    for (int index = 0; index < PROCESSES; index++)
        before[index] = draws->processes[index].drawn;
    draws->until = ~0UL;
    for (int index = 0; index < PROCESSES; index++)
        while (draws->processes[index].drawn == before[index])
            sleep_a_little();
    draws->until = nanoseconds(MONOTONIC) + seconds * SECOND;
}

static void tell_number(volatile struct number *number)
{
    static u8 lines[64 * (2 * BYTES + 1)], *next = lines;
    for (int at = 0; number && at < BYTES; at++) {
        *next++ = "0123456789abcdef"[number->bytes[at] >> 4];
        *next++ = "0123456789abcdef"[number->bytes[at] & 15];
    }
    if (number)
        *next++ = '\n';
    if (!number || next == lines + sizeof lines) {
        print(lines, next - lines);
        next = lines;
    }
}

static void tell(volatile struct draws *draws, u64 from)
{
    if (from != draws->mark)
        draws->until = 0;
    for (int index = 0; index < PROCESSES; index++) {
        volatile struct process *own = &draws->processes[index];
        while (!own->waits || (draws->mark && own->since_mark < TOLD))
            sleep_a_little();
        u64 first = own->drawn > KEPT ? own->drawn - KEPT : 0, told = 0;
        for (u64 at = first; at < own->drawn && told < TOLD; at++)
            if (own->kept[at % KEPT].begun > from) {
                tell_number(&own->kept[at % KEPT]);
                told++;
            }
    }
    tell_number(0);
}

static void tell_clock(void)
{
    for (u8 byte; call(READ, 0, (long)&byte, 1, 0, 0) == 1;) {
        u64 value;
        u8 text[24], *at = text + sizeof text;
        *--at = '\n';
        for (value = nanoseconds(REALTIME); value; value /= 10)
            *--at = '0' + value % 10;
        print(at, text + sizeof text - at);
    }
}

static u64 decimal(const char *text)
{
    u64 value = 0;
    while (*text)
        value = value * 10 + (*text++ - '0');
    return value;
}

__attribute__((used)) void run(long *stack)
{
    char **arguments = (char **)(stack + 1);
    if (stack[0] < 2)
        leave(1);
    if (arguments[1][0] == 'c') {
        tell_clock();
    } else if (arguments[1][0] == 's') {
        start(mapped(arguments[2], READ_WRITE_CREATE));
    } else if (arguments[1][0] == 'g') {
        go(mapped(arguments[2], READ_WRITE), decimal(arguments[3]));
    } else if (arguments[1][0] == 'm') {
        mapped(arguments[2], READ_WRITE)->mark = tsc();
    } else {
        struct draws *draws = mapped(arguments[2], READ_WRITE);
        tell(draws, stack[0] > 3 ? decimal(arguments[3]) : draws->mark);
    }
    leave(0);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall run\n");
