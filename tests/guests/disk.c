/* Writes sectors of a virtio disk and reads them back, each with what follows from its number and a generation; what the
 * generation before left is checked first.
 *
 *   check=N        first looks whether sectors 1 to N hold what an earlier run of `disk until=N` wrote
 *   takes-flush=1  takes the feature to flush, and never flushes: the device may keep what is written
 *   stride=N       sectors from one to the next that is written
 *   until=N        ends after so many sectors: ending=1 powers off, 2 resets, 3 faults three times, 0 spins */
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

__attribute__((noreturn)) static void end(u64 how)
{
    print("done\n");
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
    virtio_start(2, option("takes-flush=", 0) ? FLUSH : 0, 1);
    print("ready\n");
    for (u64 number = 1; number <= check; number++) {
        u64 sector = number % sectors * stride;
        read_sector(sector);
        for (int at = 0; at < SECTOR_WORDS; at++)
            if (back[at] != word_on_disk(sector, at, generation, number))
                wrong("kept disk data", number, back[at]);
    }
    if (check)
        report("kept", check);
    for (u64 number = 1;; number++) {
        u64 sector = number % sectors * stride;
        for (int at = 0; at < SECTOR_WORDS; at++)
            data[at] = word_on_disk(sector, at, generation, number);
        write_sector(sector);
        read_sector(sector);
        for (int at = 0; at < SECTOR_WORDS; at++)
            if (back[at] != data[at])
                wrong("disk data", sector, back[at]);
        report("sector", number);
        if (number == until)
            end(option("ending=", 0));
    }
}
