// The guest that is restored: says that it is ready, then sends one byte after another, so that the first byte after a
// restore is all but the first instruction.

static void send(unsigned char byte) {
    __asm__ volatile("outb %0, %1" : : "a"(byte), "Nd"((unsigned short)0x3f8));
}

void guest_main(void) {
    for (const char *text = "ready\n"; *text; text++)
        send((unsigned char)*text);
    for (;;)
        send('.');
}
