/* Fills memory, and gives as many of its last pages to the balloon as the host asks for.
 *
 *   mib=N        fills N MiB
 *   reporting=1  takes the feature to report free pages
 *
 * Typed: c checks the pages that it keeps, w writes the next generation to them, r reports the second half as
 * free, l looks at that half again. */
#include "guest.h"
#include "virtio.h"

#define INFLATE 0
#define DEFLATE 1
#define REPORT 2          /* the third queue, for a driver that takes no other feature */
#define REPORTING (1 << 5) /* VIRTIO_BALLOON_F_REPORTING */
#define LISTED 1024

static u64 pages, given, reported, generation = 1;
static u64 found_empty, found_first;

static u64 *page_at(u64 index) { return (u64 *)(LOW_START + index * PAGE); }

static u64 kept(void) { return pages - given - reported; }

static void fill(u64 first, u64 count)
{
    for (u64 index = first; index < first + count; index++)
        fill_page(page_at(index), generation);
}

/* Gives a list of pages to one of the two queues that take lists. */
static void list(u32 queue, u64 first, u64 count)
{
    static volatile u32 numbers[LISTED];
    struct part part = {numbers, count * sizeof numbers[0], 0};
    for (u64 at = 0; at < count; at++)
        numbers[at] = (u64)page_at(first + at) / PAGE;
    virtio_ask(queue, &part, 1);
}

/* Checks that pages that were given away are empty or hold the first generation. Then fills them again. */
static void look(u64 first, u64 count)
{
    for (u64 index = first; index < first + count; index++) {
        u64 *page = page_at(index);
        if (page[0]) {
            check_page(page, 1);
            found_first++;
        } else {
            expect("end of an empty page", (u64)page, page[511], 0);
            found_empty++;
        }
    }
    fill(first, count);
}

static void report_found(void)
{
    report("empty", found_empty);
    report("first", found_first);
    found_empty = found_first = 0;
}

static void follow(u64 target)
{
    u64 much = target > given ? target - given : given - target;
    u64 count = much < LISTED ? much : LISTED;
    if (target > given) {
        list(INFLATE, kept() - count, count);
        given += count;
    } else {
        list(DEFLATE, kept(), count);
        look(kept(), count);
        given -= count;
    }
    set(CONFIG + 4, given);
    if (given == target) {
        report_found();
        report("balloon", given);
    }
}

static void report_free(void)
{
    struct part parts[ENTRIES];
    reported = pages / 2;
    for (u64 at = 0; at < ENTRIES; at++) {
        parts[at].at = page_at(kept() + at * (reported / ENTRIES));
        parts[at].length = reported / ENTRIES * PAGE;
        parts[at].flags = WRITE;
    }
    virtio_ask(REPORT, parts, ENTRIES);
    report("reported", reported);
}

static void obey(char order)
{
    if (order == 'c') {
        for (u64 index = 0; index < kept(); index++)
            check_page(page_at(index), generation);
        report("checked", kept());
    } else if (order == 'w') {
        generation++;
        fill(0, kept());
        report("generation", generation);
    } else if (order == 'r') {
        report_free();
    } else if (order == 'l') {
        u64 count = reported;
        reported = 0;
        look(kept() - count, count);
        report_found();
    }
}

void balloon(void)
{
    u32 reporting = option("reporting=", 0);
    pages = option("mib=", 32) << 8;
    fill(0, pages);
    virtio_start(5, reporting ? REPORTING : 0, reporting ? 3 : 2);
    print("ready\n");
    for (;;) {
        u64 target = get(CONFIG);
        if (target != given)
            follow(target);
        obey(typed());
    }
}
