// The guest that answers requests. Its initrd is memory of a real guest. For each typed byte it visits
// stretches of that memory: it reads a word of each page, writes a word to every fourth, and reports a
// checksum of the reads.
#include "../../tests/guests/pvh.h"

#define PAGE 512 // words
#define STRETCHES 64
#define LENGTH 64 // pages of a stretch

static u64 respond(volatile u64 *memory, u64 pages)
{
    u64 sum = 0, place = 1;
    for (u32 stretch = 0; stretch < STRETCHES; stretch++) {
        place = place * 6364136223846793005UL + 1442695040888963407UL;
        u64 first = (place >> 33) % (pages - LENGTH);
        for (u64 page = first; page < first + LENGTH; page++) {
            sum = (sum << 7 | sum >> 57) + memory[page * PAGE + (page & 255)];
            if (page % 4 == 0)
                memory[page * PAGE + 256 + (page & 255)] ^= sum;
        }
    }
    return sum;
}

void guest_main(struct start_info *info)
{
    struct module *initrd = (struct module *)info->module_list;
    print("ready\n");
    for (;;)
        if (typed())
            report("answer", respond((volatile u64 *)initrd->start, initrd->length / 4096));
}
