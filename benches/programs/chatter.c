// The guest that is restored. It activates all virtio devices that it finds, prints that it is ready, then
// sends bytes without pause. The first byte after a restore therefore comes within a few instructions.
#include "../../tests/guests/virtio.h"

static volatile struct virtqueue all_queues[SLOT_COUNT][QUEUES];

static void activate(u32 slot) {
    device = (volatile u32 *)(SLOTS + slot * SLOT_LENGTH);
    if (get(0x00) != 0x74726976)
        return;
    set(0x70, 3);
    set(0x24, 1);
    set(0x20, 1); // VIRTIO_F_VERSION_1 and nothing else
    set(0x70, 11);
    for (u32 number = 0; number < QUEUES; number++) {
        set(0x30, number);
        if (get(0x34) == 0)
            break;
        volatile struct virtqueue *queue = &all_queues[slot][number];
        set(0x38, ENTRIES);
        set_address(0x80, queue->table);
        set_address(0x90, &queue->available);
        set_address(0xa0, &queue->used);
        set(0x44, 1);
    }
    set(0x70, 15);
    if (get(0x70) != 15)
        wrong("virtio status", slot, get(0x70));
}

void guest_main(void) {
    for (u32 slot = 0; slot < SLOT_COUNT; slot++)
        activate(slot);
    print("ready\n");
    for (;;)
        outb(COM1, '.');
}
