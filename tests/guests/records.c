/* Writes numbered records to a virtio disk, each to the sector of a slot, and flushes after every fourth.
 * "synced N" promises every record up to N.
 *
 *   slots=N   uses N slots
 *   stride=N  puts slots N sectors apart
 *   paced=1   waits for typing after each flush
 *   check=1   reads all slots instead, and reports the record in each; 0 is the image's original content
 *   verify=1  reads each slot before it overwrites it, and compares it with the record written there */
#include "guest.h"
#include "virtio.h"

#define SECTOR_WORDS 64
#define MOST_SLOTS 256
#define BLOCK_FLUSH (1u << 9) /* VIRTIO_BLK_F_FLUSH */
#define READ_REQUEST 0
#define WRITE_REQUEST 1
#define FLUSH_REQUEST 4

static volatile u64 data[SECTOR_WORDS];
static volatile struct {
    u32 kind, reserved;
    u64 sector;
} request;
static volatile u8 status;

static void ask(u32 kind, u64 sector)
{
    struct part parts[] = {
        {&request, 16, 0}, {data, sizeof data, kind == READ_REQUEST ? WRITE : 0}, {&status, 1, WRITE}};
    struct part flush[] = {{&request, 16, 0}, {&status, 1, WRITE}};
    request.kind = kind;
    request.sector = kind == FLUSH_REQUEST ? 0 : sector;
    status = 0xff;
    if (kind == FLUSH_REQUEST)
        virtio_ask(0, flush, 2);
    else
        virtio_ask(0, parts, 3);
    if (status)
        wrong("disk request", kind, status);
}

static u64 word_at(u64 number, u64 sector, u64 at) { return number << 32 | (sector * SECTOR_WORDS + at); }

/* Returns the number of the record that a sector holds. */
static u64 record_at(u64 sector)
{
    ask(READ_REQUEST, sector);
    u64 number = data[0] >> 32;
    for (u64 at = 0; at < SECTOR_WORDS; at++)
        if (data[at] != word_at(number, sector, at))
            wrong("record", sector * SECTOR_WORDS + at, data[at]);
    return number;
}

void records(void)
{
    static u64 last[MOST_SLOTS];
    u64 slots = option("slots=", 64), stride = option("stride=", 8), verify = option("verify=", 0);
    u64 paced = option("paced=", 0);
    if (slots > MOST_SLOTS)
        wrong("too many slots", 0, slots);
    virtio_start(2, BLOCK_FLUSH, 1);
    if (option("check=", 0)) {
        for (u64 slot = 0; slot < slots; slot++)
            report("record", record_at(slot * stride));
        print("checked\n");
        power_off();
    }
    print("ready\n");
    for (u64 number = 1;; number++) {
        u64 slot = number * 7 % slots, sector = slot * stride;
        if (verify) {
            u64 found = record_at(sector);
            if (found != last[slot])
                wrong("record on disk", last[slot], found);
        }
        for (u64 at = 0; at < SECTOR_WORDS; at++)
            data[at] = word_at(number, sector, at);
        ask(WRITE_REQUEST, sector);
        last[slot] = number;
        if (number % 4)
            continue;
        ask(FLUSH_REQUEST, 0);
        report("synced", number);
        while (paced && !typed())
            ;
    }
}
