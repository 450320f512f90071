/* Finds the generation device in the ACPI tables, and prints its id and clock at the start and after each
 * interrupt. */
#include "guest.h"
#include "interrupts.h"

#define TABLES 0xe0000UL
#define TABLES_END 0xfe000UL
#define DWORD_PREFIX 0x0c
#define FIXED_MEMORY 0x86
#define INTERRUPT 0x89
#define VECTOR_GENERATION 0x36

/* struct vmclock_abi (Linux, include/uapi/linux/vmclock-abi.h). */
struct vm_clock {
    u32 magic, size;
    u16 version;
    u8 counter, time;
    volatile u32 sequence;
    volatile u64 marker, flags;
    u8 others[72];
    volatile u64 generation;
} __attribute__((packed));
_Static_assert(sizeof(struct vm_clock) == 112, "the size that Linux has");

static volatile u64 notified;

__attribute__((interrupt)) static void on_generation(struct frame *frame)
{
    woken(frame);
    notified++;
    APIC(APIC_EOI) = 0;
}

/* Returns the place after `text` in the tables, or null. */
static const u8 *after(const char *text)
{
    for (const u8 *at = (u8 *)TABLES; at < (u8 *)TABLES_END; at++) {
        u64 length = 0;
        while (text[length] && at[length] == (u8)text[length])
            length++;
        if (!text[length])
            return at + length;
    }
    return 0;
}

/* Returns the 32-bit number that comes `skip` bytes after the next byte `tag`. */
static u32 number_at(const u8 *at, u8 tag, u64 skip)
{
    while (*at != tag)
        at++;
    at += 1 + skip;
    return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24;
}

static void tell(volatile u64 *id, struct vm_clock *clock)
{
    expect("magic", 0, clock->magic, 0x4b4c4356);
    expect("size", 4, clock->size, 4096);
    expect("version", 8, clock->version, 1);
    expect("counter", 10, clock->counter, 0xff);
    expect("odd sequence", clock->sequence, clock->sequence & 1, 0);
    expect("flags", 24, clock->flags, 0x300);
    u64 words[] = {id[0], id[1], clock->marker, clock->generation};
    print("generation");
    for (int at = 0; at < 4; at++) {
        put(' ');
        print_hex(words[at]);
    }
    put(' ');
    print_number(clock->sequence);
    put('\n');
}

void tell_generation(void)
{
    const u8 *address = after("VM_Gen_Counter");
    u64 told = 0;
    if (!address) {
        print("no generation device\n");
        for (;;)
            sleep();
    }
    volatile u64 *id = (u64 *)(u64)number_at(after("ADDR"), DWORD_PREFIX, 0);
    struct vm_clock *clock = (struct vm_clock *)(u64)number_at(after("AMZNC10C"), FIXED_MEMORY, 3);
    /* The power button has an event device, too, of another name. */
    u32 pin = number_at(after("GED_"), INTERRUPT, 4);
    handle(VECTOR_GENERATION, on_generation);
    enable_interrupts(0);
    redirect(pin, VECTOR_GENERATION, 0);
    tell(id, clock);
    print("ready\n");
    for (;;) {
        while (notified == told)
            sleep();
        told = notified;
        tell(id, clock);
    }
}
