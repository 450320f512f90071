/* Interrupts: the IDT, the local APIC, the IOAPIC, and the PICs if there are any. */
#pragma once
#include "machine.h"

#define VECTOR_PIT 0x20
#define VECTOR_COM1 0x24
#define VECTOR_APIC 0x30
#define VECTOR_VIRTIO 0x35

#define APIC(offset) (*(volatile u32 *)(0xfee00000UL + (offset)))
#define APIC_EOI 0xb0
#define APIC_LOGICAL_ID 0xd0
#define APIC_SPURIOUS 0xf0
#define APIC_REQUESTED 0x200 /* 32 vectors every 16 bytes */
#define APIC_TIMER 0x320
#define APIC_INITIAL 0x380
#define APIC_DIVIDE 0x3e0
#define APIC_PERIODIC 0x20000
#define APIC_TSC_DEADLINE 0x40000
#define MSR_TSC_DEADLINE 0x6e0

#define IOAPIC(offset) (*(volatile u32 *)(0xfec00000UL + (offset)))
#define IOAPIC_SELECT 0x00
#define IOAPIC_WINDOW 0x10
#define IOAPIC_ID 0
#define IOAPIC_VERSION 1
#define IOAPIC_PIN(pin) (0x10 + 2 * (pin))
#define IOAPIC_MASKED 0x10000
#define PIN_COM1 4
#define PIN_VIRTIO 5 /* the pin of the first slot */

/* The frame that the processor pushes before it calls a handler (AMD64 Architecture Programmer's Manual,
 * volume 2, section 8.9.3). */
struct frame {
    u64 at, code_segment, flags, stack, stack_segment;
};

static struct {
    u16 low, selector, flags, middle;
    u32 high, reserved;
} idt[256] __attribute__((aligned(16)));

static inline void handle(u8 vector, void (*handler)(struct frame *))
{
    u64 address = (u64)handler;
    idt[vector].low = address;
    idt[vector].middle = address >> 16;
    idt[vector].high = address >> 32;
    idt[vector].selector = 8;
    idt[vector].flags = 0x8e00;
}

/* Returns whether the processor is QEMU's emulation, "QEMU TCG CPU", by its family, model and stepping. */
static inline int is_emulated(void)
{
    u32 signature = 1, other_1, other_2 = 0, other_3;
    __asm__ volatile("cpuid" : "+a"(signature), "=b"(other_1), "+c"(other_2), "=d"(other_3));
    return signature == 0x60fb1;
}

/* Skips a `hlt` that an interrupt came before. The handlers of interrupts that sleep() waits for call this.
 *
 * The shadow of `sti` holds interrupts back until `hlt` sleeps. QEMU's emulation of SVM loses the shadow:
 * #VMEXIT saves the VMCB's INTERRUPT_SHADOW, but VMRUN does not load it. An interrupt may then come before
 * the hlt, which would sleep without end. On other processors nothing is skipped, so that a test notices a
 * snapshot that lost the shadow. */
#define HLT 0xf4
static inline void woken(struct frame *frame)
{
    if (*(u8 *)frame->at == HLT && is_emulated())
        frame->at++;
}

/* Sets up the IDT, the local APIC, and the PICs with all lines masked except those in `open`. Without PICs,
 * the writes to them are lost. */
static inline void enable_interrupts(u8 open)
{
    struct {
        u16 limit;
        u64 base;
    } __attribute__((packed)) pointer = {sizeof idt - 1, (u64)idt};
    __asm__ volatile("lidt %0" ::"m"(pointer));
    outb(0x20, 0x11), outb(0xa0, 0x11);
    outb(0x21, VECTOR_PIT), outb(0xa1, VECTOR_PIT + 8);
    outb(0x21, 4), outb(0xa1, 2);
    outb(0x21, 1), outb(0xa1, 1);
    outb(0x21, ~open), outb(0xa1, 0xff);
    APIC(APIC_SPURIOUS) = 0x1ff;
}

/* Returns whether there are PICs: they keep a mask that is written. */
static inline int has_pics(void)
{
    outb(0x21, 0x5a);
    return inb(0x21) == 0x5a;
}

static inline u32 ioapic_get(u32 number)
{
    IOAPIC(IOAPIC_SELECT) = number;
    return IOAPIC(IOAPIC_WINDOW);
}

static inline void ioapic_set(u32 number, u32 value)
{
    IOAPIC(IOAPIC_SELECT) = number;
    IOAPIC(IOAPIC_WINDOW) = value;
}

/* Sets a pin's redirection entry and its destination. */
static inline void redirect(u32 pin, u32 entry, u32 destination)
{
    ioapic_set(IOAPIC_PIN(pin) + 1, destination << 24);
    ioapic_set(IOAPIC_PIN(pin), entry);
}
