/* A polling driver for one virtio-mmio device (virtio 1.2, sections 2.7 and 4.2). */
#pragma once
#include "machine.h"

#define SLOTS 0xd0000000UL
#define SLOT_LENGTH 0x1000UL
#define SLOT_COUNT 16
#define QUEUES 3
#define ENTRIES 8
#define CONFIG 0x100

#define NEXT 1
#define WRITE 2

struct part {
    volatile void *at;
    u32 length, flags; /* WRITE if the device writes the part */
};

struct virtqueue {
    struct {
        u64 at;
        u32 length;
        u16 flags, next;
    } table[ENTRIES] __attribute__((aligned(16)));
    struct {
        u16 flags, index, ring[ENTRIES], used_event;
    } available __attribute__((aligned(16)));
    struct {
        u16 flags, index;
        struct {
            u32 head, length;
        } ring[ENTRIES];
        u16 available_event;
    } used __attribute__((aligned(16)));
};

static volatile struct virtqueue queues[QUEUES];
static volatile u32 *device;

static inline u32 get(u32 offset) { return device[offset / 4]; }
static inline void set(u32 offset, u32 value) { device[offset / 4] = value; }

static inline void set_address(u32 offset, volatile void *at)
{
    set(offset, (u32)(u64)at);
    set(offset + 4, (u32)((u64)at >> 32));
}

/* Finds the device of this kind and sets it up, with all that it offers of `features`, which are those in the
 * lower half. */
static inline void virtio_start(u32 kind, u32 features, u32 queue_count)
{
    u64 slot = 0;
    for (;; slot++) {
        device = (volatile u32 *)(SLOTS + slot * SLOT_LENGTH);
        if (slot == SLOT_COUNT)
            wrong("no virtio device of kind", slot, kind);
        if (get(0x00) == 0x74726976 && get(0x08) == kind)
            break;
    }
    set(0x70, 0);
    set(0x70, 3);
    set(0x14, 0);
    set(0x24, 0);
    set(0x20, get(0x10) & features);
    set(0x24, 1);
    set(0x20, 1); /* VIRTIO_F_VERSION_1 */
    set(0x70, 11);
    if (get(0x70) != 11)
        wrong("virtio features", 0x70, get(0x70));
    for (u32 number = 0; number < queue_count; number++) {
        set(0x30, number);
        set(0x38, ENTRIES);
        set_address(0x80, queues[number].table);
        set_address(0x90, &queues[number].available);
        set_address(0xa0, &queues[number].used);
        set(0x44, 1);
    }
    set(0x70, 15);
}

/* Gives the device a chain, which uses the descriptors from `head` on. */
static inline void virtio_give(u32 number, u16 head, const struct part *parts, u32 count)
{
    volatile struct virtqueue *queue = &queues[number];
    for (u32 at = 0; at < count; at++) {
        queue->table[head + at].at = (u64)parts[at].at;
        queue->table[head + at].length = parts[at].length;
        queue->table[head + at].flags = parts[at].flags | (at + 1 < count ? NEXT : 0);
        queue->table[head + at].next = head + at + 1;
    }
    u16 index = queue->available.index;
    queue->available.ring[index % ENTRIES] = head;
    __asm__ volatile("" ::: "memory");
    queue->available.index = index + 1;
    __asm__ volatile("" ::: "memory");
    set(0x50, number);
}

/* Takes a chain that the device has used, if any: sets its head and the length that the device wrote. */
static inline int virtio_take(u32 number, u16 *head, u32 *length)
{
    static u16 taken[QUEUES];
    volatile struct virtqueue *queue = &queues[number];
    if (queue->used.index == taken[number]) {
        if (get(0x70) & 0x40)
            wrong("virtio device wants a reset", 0x70, get(0x70));
        return 0;
    }
    __asm__ volatile("" ::: "memory");
    u16 slot = taken[number]++ % ENTRIES;
    *head = queue->used.ring[slot].head;
    *length = queue->used.ring[slot].length;
    return 1;
}

/* Gives the device a chain and waits until it is used. Returns the length that the device wrote. */
static inline u32 virtio_ask(u32 number, const struct part *parts, u32 count)
{
    u16 head;
    u32 length;
    virtio_give(number, 0, parts, count);
    while (!virtio_take(number, &head, &length))
        ;
    return length;
}
