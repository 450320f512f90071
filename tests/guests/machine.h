/* The machine of a small guest: ports, registers, the serial console. There is no C library, no SSE, and no
 * instruction that a KVM which emulates ring 0 lacks. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define COM1 0x3f8
#define LINE_STATUS (COM1 + 5)
#define SCRATCH (COM1 + 7)
#define LINE_STATUS_EMPTY 0x60 /* nothing to send and nothing received */

static inline void outb(u16 port, u8 value)
{
    __asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

/* Reads a port. The value starts as a wrong answer, so that a lost read shows. */
static inline u8 inb(u16 port)
{
    u32 value = 0x5a5a5a5a;
    __asm__ volatile("inb %1, %b0" : "+a"(value) : "Nd"(port) : "memory");
    return value;
}

static inline u16 inw(u16 port)
{
    u32 value = 0x5a5a5a5a;
    __asm__ volatile("inw %1, %w0" : "+a"(value) : "Nd"(port) : "memory");
    return value;
}

static inline u32 inl(u16 port)
{
    u32 value = 0x5a5a5a5a;
    __asm__ volatile("inl %1, %0" : "+a"(value) : "Nd"(port) : "memory");
    return value;
}

static inline u64 rdmsr(u32 index)
{
    u32 low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index));
    return (u64)high << 32 | low;
}

static inline void wrmsr(u32 index, u64 value)
{
    __asm__ volatile("wrmsr" ::"c"(index), "a"((u32)value), "d"((u32)(value >> 32)));
}

static inline u64 rdtsc(void)
{
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (u64)high << 32 | low;
}

/* Sleeps until the next interrupt. */
static inline void sleep(void) { __asm__ volatile("sti\n hlt\n cli" ::: "memory"); }

static inline void put(char c)
{
    while (!(inb(LINE_STATUS) & 0x20))
        ;
    outb(COM1, c);
}

static inline void print(const char *text)
{
    while (*text)
        put(*text++);
}

static inline void print_number(u64 number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = '0' + number % 10;
    while (number /= 10);
    while (count)
        put(digits[--count]);
}

static inline void print_hex(u64 number)
{
    print("0x");
    for (int shift = 60; shift >= 0; shift -= 4)
        put("0123456789abcdef"[number >> shift & 15]);
}

/* Returns a byte typed on the console, or 0. */
static inline char typed(void) { return inb(LINE_STATUS) & 1 ? inb(COM1) : 0; }

/* Copies words, then the rest: an emulator takes as long for a byte as for a word. `to` may lie before `from`
 * in the same buffer. */
static inline void copy(volatile void *to, const volatile void *from, u64 length)
{
    u64 words = length / 8, rest = length % 8;
    __asm__ volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words)::"memory");
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(rest)::"memory");
}

/* Prints a line with a name and a number. */
static inline void report(const char *name, u64 number)
{
    print(name);
    put(' ');
    print_number(number);
    put('\n');
}

__attribute__((noreturn)) static inline void power_off(void)
{
    outb(0x600, 0x34); /* ACPI's sleep control register: sleep type 5, sleep enable */
    for (;;)
        __asm__ volatile("cli\n hlt");
}

/* Raises an exception with an empty IDT. */
__attribute__((noreturn)) static inline void triple_fault(void)
{
    struct {
        u16 limit;
        u64 base;
    } __attribute__((packed)) none = {0, 0};
    __asm__ volatile("lidt %0\n ud2" ::"m"(none));
    for (;;)
        ;
}

/* Prints a line that every test notices, and powers off. */
__attribute__((noreturn)) static inline void wrong(const char *what, u64 where, u64 found)
{
    print("\nWRONG ");
    print(what);
    put(' ');
    print_hex(where);
    print(" found ");
    print_hex(found);
    put('\n');
    power_off();
}
