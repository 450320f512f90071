/* Draws random numbers from a virtio device, and notices a number that repeats its predecessor. */
#include "guest.h"
#include "virtio.h"

void random_numbers(void)
{
    static volatile u64 drawn[8];
    struct part part = {drawn, sizeof drawn, WRITE};
    u64 last = 0;
    virtio_start(4, 0, 1);
    print("ready\n");
    for (u64 number = 1;; number++) {
        for (int at = 0; at < 8; at++)
            drawn[at] = 0;
        u32 length = virtio_ask(0, &part, 1);
        if (length != sizeof drawn)
            wrong("random length", number, length);
        for (int at = 0; at < 8; at++) {
            if (drawn[at] == last)
                wrong("random number", number, drawn[at]);
            last = drawn[at];
        }
        report("drawn", number);
        print_hex(last);
        put('\n');
    }
}
