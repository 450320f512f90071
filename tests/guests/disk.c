/* Writes sectors of a virtio disk and reads them back, each with what follows from its number and a generation; what the
 * generation before left is checked first. */
#include "guest.h"
#include "virtio.h"

#define SECTOR_WORDS 64

void disk(void)
{
    static volatile u64 data[SECTOR_WORDS], back[SECTOR_WORDS];
    static volatile struct {
        u32 kind, reserved;
        u64 sector;
    } request;
    static volatile u8 status;
    u64 sectors = option("sectors=", 64), generation = option("generation=", 1);
    struct part write[] = {{&request, 16, 0}, {data, sizeof data, 0}, {&status, 1, WRITE}};
    struct part read[] = {{&request, 16, 0}, {back, sizeof back, WRITE}, {&status, 1, WRITE}};
    virtio_start(2, 0, 1);
    print("ready\n");
    for (u64 number = 1;; number++) {
        u64 sector = number % sectors;
        for (int at = 0; at < SECTOR_WORDS; at++)
            data[at] = (sector * SECTOR_WORDS + at) ^ (generation << 48) ^ (number << 32);
        request.kind = 1;
        request.sector = sector;
        status = 0xff;
        virtio_ask(0, write, 3);
        if (status)
            wrong("disk write", sector, status);
        request.kind = 0;
        status = 0xff;
        virtio_ask(0, read, 3);
        if (status)
            wrong("disk read", sector, status);
        for (int at = 0; at < SECTOR_WORDS; at++)
            if (back[at] != data[at])
                wrong("disk data", sector, back[at]);
        report("sector", number);
    }
}
