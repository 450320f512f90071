/* The IOAPIC: its registers, and edges at a pin that is open, masked, or open while interrupts are off. */
#include "guest.h"
#include "interrupts.h"
#include "virtio.h"

static volatile u64 interrupts;

__attribute__((interrupt)) static void on_interrupt(struct frame *frame)
{
    woken(frame);
    interrupts++;
    APIC(APIC_EOI) = 0;
}

__attribute__((interrupt)) static void on_virtio(struct frame *frame)
{
    woken(frame);
    interrupts++;
    set(0x64, get(0x60));
    APIC(APIC_EOI) = 0;
}

/* Takes pending interrupts. A KVM that emulates instructions checks for interrupts only after an exit. */
static void let_in(void)
{
    __asm__ volatile("sti" ::: "memory");
    for (int times = 0; times < 8; times++)
        inb(SCRATCH);
    __asm__ volatile("cli" ::: "memory");
}

static void wait_for_typing(void)
{
    while (!typed())
        ;
}

void ioapic_registers(void)
{
    u32 version = ioapic_get(IOAPIC_VERSION);
    expect("last pin", IOAPIC_VERSION, version >> 16, 23);
    expect("id", IOAPIC_ID, ioapic_get(IOAPIC_ID), 0);
    ioapic_set(IOAPIC_ID, 0x5000000);
    expect("id", IOAPIC_ID, ioapic_get(IOAPIC_ID), 0x5000000);
    expect("arbitration id", 2, ioapic_get(2), 0x5000000);
    ioapic_set(IOAPIC_VERSION, 0);
    expect("version", IOAPIC_VERSION, ioapic_get(IOAPIC_VERSION), version);
    for (u32 pin = 0; pin < 24; pin++) {
        expect("masked", pin, ioapic_get(IOAPIC_PIN(pin)), IOAPIC_MASKED);
        expect("destination", pin, ioapic_get(IOAPIC_PIN(pin) + 1), 0);
        /* Level-triggered, active low; the other bits of 0xf000 are read-only. */
        redirect(pin, IOAPIC_MASKED | 0xf000 | (0x40 + pin), pin);
    }
    for (u32 pin = 0; pin < 24; pin++) {
        expect("pin", pin, ioapic_get(IOAPIC_PIN(pin)), IOAPIC_MASKED | 0xa000 | (0x40 + pin));
        expect("destination", pin, ioapic_get(IOAPIC_PIN(pin) + 1), pin << 24);
    }
    expect("selected", IOAPIC_SELECT, IOAPIC(IOAPIC_SELECT), IOAPIC_PIN(23) + 1);
    /* Without a PIT, a guest that waits for a bit of its gate finds the bit set. */
    if (!has_pics())
        expect("PIT", 0x61, inb(0x61), 0xff);
    print("ready\n");
    for (u64 round = 1;; round++) {
        /* The window still shows the register selected last. */
        expect("window", round, IOAPIC(IOAPIC_WINDOW), 23 << 24);
        for (u32 pin = 0; pin < 24; pin++)
            expect("pin", pin, ioapic_get(IOAPIC_PIN(pin)), IOAPIC_MASKED | 0xa000 | (0x40 + pin));
        ioapic_set(IOAPIC_PIN(23) + 1, 23 << 24);
        report("round", round);
    }
}

/* Draws random numbers, and sleeps until each has come.
 *
 *   entry=N        sets bits of the redirection entry: 32768 is level-triggered, 256 lowest priority, 2048
 *                  logical
 *   destination=N  sets the destination of the redirection entry */
void ioapic_random(void)
{
    static volatile u64 drawn[8];
    struct part part = {drawn, sizeof drawn, WRITE};
    virtio_start(4, 0, 1);
    handle(VECTOR_VIRTIO, on_virtio);
    enable_interrupts(0);
    APIC(APIC_LOGICAL_ID) = 1 << 24;
    redirect(PIN_VIRTIO, VECTOR_VIRTIO | option("entry=", 0), option("destination=", 0));
    print("ready\n");
    for (u64 number = 1;; number++) {
        u64 before = interrupts;
        u16 head;
        u32 length;
        virtio_give(0, 0, &part, 1);
        while (interrupts == before)
            sleep();
        /* An interrupt that a restore repeats may be early. */
        while (!virtio_take(0, &head, &length))
            ;
        report("drawn", number);
    }
}

static void listen(u32 entry)
{
    handle(VECTOR_COM1, on_interrupt);
    enable_interrupts(0);
    outb(COM1 + 1, 1); /* an interrupt for each byte received */
    outb(COM1 + 4, 8);
    redirect(PIN_COM1, entry, 0);
    print("ready\n");
}

/* Shows that an edge at a masked pin is lost, before and after a snapshot. */
void ioapic_masked(void)
{
    listen(VECTOR_COM1 | IOAPIC_MASKED);
    for (int times = 0; times < 2; times++) {
        wait_for_typing();
        let_in();
        report("masked", interrupts);
    }
    redirect(PIN_COM1, VECTOR_COM1, 0);
    let_in();
    report("unmasked", interrupts);
    for (;;) {
        sleep();
        wait_for_typing();
        report("taken", interrupts);
    }
}

/* Keeps an interrupt pending in the local APIC while interrupts are off. More typing, which raises no
 * interrupt, lets the guest take it. */
void ioapic_pending(void)
{
    listen(VECTOR_COM1);
    wait_for_typing();
    while (!(APIC(APIC_REQUESTED + VECTOR_COM1 / 32 * 16) >> VECTOR_COM1 % 32 & 1))
        ;
    outb(COM1 + 1, 0);
    report("pending", interrupts);
    wait_for_typing();
    let_in();
    report("taken", interrupts);
    power_off();
}
