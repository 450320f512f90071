/* Writes sectors of a virtio disk and reads them back. The data follows from the sector, the number of the
 * write, and a generation.
 *
 *   sectors=N      goes round N sectors
 *   generation=N   writes data of generation N
 *   again=1        checks a sector's last data before it writes the sector again; a disk that is older or
 *                  newer than memory fails this
 *   check=N        first checks the data that an earlier run of `disk until=N` wrote
 *   takes-flush=1  takes the feature to flush, but never flushes: the device may cache writes
 *   stride=N       writes every Nth sector
 *   until=N        ends after N writes
 *   ending=N       ends so: 0 spins, 1 powers off, 2 resets, 3 triple-faults, 4 resets the disk during
 *                  a flush when something is typed, 5 gives the disk memory that is not there and spins */
#include "guest.h"
#include "virtio.h"

#define SECTOR_WORDS 64
#define FLUSH (1 << 9)

static volatile u64 data[SECTOR_WORDS], back[SECTOR_WORDS];
static volatile struct {
    u32 kind, reserved;
    u64 sector;
} request;
static volatile u8 status;

static u64 word_on_disk(u64 sector, int at, u64 generation, u64 number)
{
    return (sector * SECTOR_WORDS + at) ^ (generation << 48) ^ (number << 32);
}

static void write_sector(u64 sector)
{
    struct part write[] = {{&request, 16, 0}, {data, sizeof data, 0}, {&status, 1, WRITE}};
    request.kind = 1;
    request.sector = sector;
    status = 0xff;
    virtio_ask(0, write, 3);
    if (status)
        wrong("disk write", sector, status);
}

static void read_sector(u64 sector)
{
    struct part read[] = {{&request, 16, 0}, {back, sizeof back, WRITE}, {&status, 1, WRITE}};
    request.kind = 0;
    request.sector = sector;
    status = 0xff;
    virtio_ask(0, read, 3);
    if (status)
        wrong("disk read", sector, status);
}

static void expect_on_disk(const char *what, u64 sector, u64 generation, u64 number)
{
    read_sector(sector);
    for (int at = 0; at < SECTOR_WORDS; at++)
        if (back[at] != word_on_disk(sector, at, generation, number))
            wrong(what, number, back[at]);
}

/* Resets the device during a flush. Both wait for typing. The reset returns once the flush has ended. */
static void reset_while_flushing(void)
{
    struct part flush[] = {{&request, 16, 0}, {&status, 1, WRITE}};
    while (!typed())
        ;
    request.kind = 4;
    request.sector = 0;
    virtio_give(0, 0, flush, 2);
    while (!typed())
        ;
    print("resets\n");
    set(0x70, 0);
}

__attribute__((noreturn)) static void end(u64 how)
{
    print("done\n");
    if (how == 4)
        reset_while_flushing();
    if (how == 5) {
        struct part bad[] = {{&request, 16, 0}, {(void *)0xfffffffff000, 512, WRITE}, {&status, 1, WRITE}};
        virtio_give(0, 0, bad, 3);
    }
    if (how == 1)
        power_off();
    if (how == 2)
        outb(0x64, 0xfe);
    if (how == 3)
        triple_fault();
    for (;;)
        __asm__ volatile("");
}

void disk(void)
{
    u64 sectors = option("sectors=", 64), generation = option("generation=", 1);
    u64 check = option("check=", 0), until = option("until=", 0), stride = option("stride=", 1);
    u64 again = option("again=", 0);
    virtio_start(2, option("takes-flush=", 0) ? FLUSH : 0, 1);
    print("ready\n");
    for (u64 number = 1; number <= check; number++) {
        u64 sector = number % sectors * stride;
        expect_on_disk("kept disk data", sector, generation, number);
    }
    if (check)
        report("kept", check);
    for (u64 number = 1;; number++) {
        u64 sector = number % sectors * stride;
        if (again && number > sectors)
            expect_on_disk("disk data of the last round", sector, generation, number - sectors);
        for (int at = 0; at < SECTOR_WORDS; at++)
            data[at] = word_on_disk(sector, at, generation, number);
        write_sector(sector);
        expect_on_disk("disk data", sector, generation, number);
        report("sector", number);
        if (number == until)
            end(option("ending=", 0));
    }
}

/* Writes the first mib= MiB of a disk, then rewrites them in rounds, a MiB every cycles= of the TSC. With
 * filled=1, it first fills the whole MiB that it writes, and reports each request. */
void disk_churn(void)
{
    u64 mib = option("mib=", 64), cycles = option("cycles=", 0), filled = option("filled=", 0);
    struct part write[] = {{&request, 16, 0}, {(volatile void *)LOW_START, 1 << 20, 0}, {&status, 1, WRITE}};
    virtio_start(2, FLUSH, 1);
    request.kind = 1;
    for (u64 at = 0; filled && at < 1 << 20; at += 8)
        *(volatile u64 *)(LOW_START + at) = at * 0x9e3779b97f4a7c15;
    u64 last = rdtsc();
    for (u64 number = 0;; number++) {
        if (number == mib)
            print("ready\n");
        *(volatile u64 *)LOW_START = number;
        request.sector = number % mib << 11;
        status = 0xff;
        virtio_ask(0, write, 3);
        if (status)
            wrong("disk write", request.sector, status);
        if (filled)
            report("churned", number);
        while (number >= mib && rdtsc() - last < cycles)
            ;
        last = rdtsc();
    }
}

/* Reads a disk of sectors= sectors that the host wrote, eight at a time from each sector on, and reports each
 * round. Each word has its number. */
void disk_read(void)
{
    static volatile u64 run[8 * SECTOR_WORDS];
    u64 sectors = option("sectors=", 64);
    struct part read[] = {{&request, 16, 0}, {run, sizeof run, WRITE}, {&status, 1, WRITE}};
    virtio_start(2, 0, 1);
    print("ready\n");
    for (u64 number = 0;; number++) {
        request.kind = 0;
        request.sector = number % (sectors - 7);
        if (number && request.sector == 0)
            report("round", number / (sectors - 7));
        for (int at = 0; at < 8 * SECTOR_WORDS; at++)
            run[at] = ~0ul;
        status = 0xff;
        virtio_ask(0, read, 3);
        if (status)
            wrong("disk read", request.sector, status);
        for (int at = 0; at < 8 * SECTOR_WORDS; at++)
            if (run[at] != request.sector * SECTOR_WORDS + at)
                wrong("disk data", request.sector, run[at]);
    }
}
