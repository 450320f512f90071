/* Options, and memory with known content, for the behaviours of the small guest. */
#pragma once
#include "machine.h"

/* Returns the number of an option such as "mib=", or `otherwise` if the command line lacks it. */
u64 option(const char *name, u64 otherwise);

/* Behaviours from other files. They do not return. */
void random_numbers(void);
void disk(void);
void disk_churn(void);
void disk_read(void);
void records(void);
void net(void);
void metadata(void);
void balloon(void);
void vsock(void);
void ioapic_registers(void);
void ioapic_random(void);
void ioapic_masked(void);
void ioapic_pending(void);
void pair(void);
void stopped(void);
void tell_tsc(void);
void tell_generation(void);
void tell_cpu(void);

static inline void expect(const char *what, u64 where, u64 found, u64 right)
{
    if (found != right)
        wrong(what, where, found);
}

/* ---- Memory: each page holds a word of its address and a generation at its start, end and between ---- */

#define LOW_START 0x1000000UL
#define PAGE 4096UL

static inline u64 word_of(u64 *page, u64 generation)
{
    return ((u64)page ^ generation) * 0x9e3779b97f4a7c15UL | 1;
}

static inline void fill_page(u64 *page, u64 generation)
{
    u64 word = word_of(page, generation);
    page[0] = word;
    page[word >> 32 & 255] = word; /* somewhere in the first half */
    page[511] = word;
}

static inline void check_page(u64 *page, u64 generation)
{
    u64 word = word_of(page, generation);
    if (page[0] != word)
        wrong("memory", (u64)page, page[0]);
    if (page[word >> 32 & 255] != word)
        wrong("memory", (u64)&page[word >> 32 & 255], page[word >> 32 & 255]);
    if (page[511] != word)
        wrong("memory", (u64)&page[511], page[511]);
}
