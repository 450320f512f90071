/* Two vCPUs write to the same pages at the same time, each to its own half, and check what they wrote. The
 * second also checks the order of the first one's writes. This reveals a page from another instant than the
 * rest. */
#include "guest.h"
#include "interrupts.h"

#define APIC_ICR_LOW 0x300
#define APIC_ICR_HIGH 0x310
#define INIT 0x4500
#define STARTUP 0x4600
#define SECOND_PAGE 0x8000UL
#define PAGES_A_STEP 64

extern const u8 second_vcpu[], second_vcpu_end[];

/* Each counter has its own page. The first vCPU writes `early` before `late`, so `late` is never ahead. */
static volatile u64 early[512] __attribute__((aligned(4096)));
static volatile u64 late[512] __attribute__((aligned(4096)));
static volatile u64 steps_of_second[512] __attribute__((aligned(4096)));
static volatile u64 wrong_place, wrong_value;
static u64 pages;

struct writer {
    u64 half, cursor, generation;
};

static u64 *half_of(struct writer *writer, u64 index)
{
    return (u64 *)(LOW_START + index * PAGE) + writer->half * 256;
}

static void write_half(struct writer *writer, u64 index, u64 generation)
{
    u64 *half = half_of(writer, index), word = word_of(half, generation);
    half[0] = word;
    half[word >> 32 & 127] = word;
    half[255] = word;
}

/* Checks and rewrites PAGES_A_STEP pages. Returns the address of a wrong word, or null. */
static u64 *step(struct writer *writer)
{
    for (u64 page = 0; page < PAGES_A_STEP; page++) {
        u64 *half = half_of(writer, writer->cursor), word = word_of(half, writer->generation);
        if (half[0] != word)
            return half;
        if (half[word >> 32 & 127] != word)
            return &half[word >> 32 & 127];
        if (half[255] != word)
            return &half[255];
        write_half(writer, writer->cursor, writer->generation + 1);
        if (++writer->cursor == pages) {
            writer->cursor = 0;
            writer->generation++;
        }
    }
    return 0;
}

static void fill(struct writer *writer)
{
    for (u64 index = 0; index < pages; index++)
        write_half(writer, index, writer->generation);
}

/* Leaves a wrong word for the first vCPU to report, since only that one uses the serial port. */
void second_main(void)
{
    struct writer writer = {1, 0, 1};
    fill(&writer);
    for (;;) {
        u64 *bad = step(&writer), now = late[0];
        __asm__ volatile("" ::: "memory");
        if (early[0] < now)
            bad = (u64 *)&early[0];
        if (bad) {
            wrong_value = *bad;
            wrong_place = (u64)bad;
            return;
        }
        steps_of_second[0]++;
    }
}

static void start_second(void)
{
    copy((void *)SECOND_PAGE, second_vcpu, (u64)(second_vcpu_end - second_vcpu));
    APIC(APIC_SPURIOUS) = 0x1ff;
    APIC(APIC_ICR_HIGH) = 1 << 24;
    APIC(APIC_ICR_LOW) = INIT;
    APIC(APIC_ICR_HIGH) = 1 << 24;
    APIC(APIC_ICR_LOW) = STARTUP | SECOND_PAGE >> 12;
}

void pair(void)
{
    struct writer writer = {0, 0, 1};
    pages = option("mib=", 4) << 8;
    fill(&writer);
    start_second();
    while (!steps_of_second[0])
        ;
    print("ready\n");
    for (u64 number = 1, seen = 0;; number++) {
        u64 *bad = step(&writer);
        if (bad)
            wrong("first", (u64)bad, *bad);
        if (wrong_place)
            wrong("second", wrong_place, wrong_value);
        early[0]++;
        __asm__ volatile("" ::: "memory");
        late[0]++;
        u64 other = steps_of_second[0];
        if (other < seen)
            wrong("steps of second", seen, other);
        seen = other;
        if (number % 16 == 0) {
            report("first", number);
            report("second", other);
        }
    }
}
