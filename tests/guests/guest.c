/* The small guest of the tests. The first word of its command line names a behaviour; options follow as
 * name=number. */
#include "guest.h"
#include "interrupts.h"
#include "pvh.h"

static const char *command_line;
static u64 top_of_high_memory; /* 0 if no memory lies above 4 GiB */

static int starts_with(const char *text, const char *start)
{
    while (*start)
        if (*text++ != *start++)
            return 0;
    return 1;
}

static int behaviour(const char *name)
{
    u64 length = 0;
    while (name[length])
        length++;
    return starts_with(command_line, name) && (command_line[length] == 0 || command_line[length] == ' ');
}

u64 option(const char *name, u64 otherwise)
{
    for (const char *at = command_line; *at; at++) {
        if (!starts_with(at, name))
            continue;
        while (*at != '=')
            at++;
        u64 number = 0;
        while (*++at >= '0' && *at <= '9')
            number = number * 10 + *at - '0';
        return number;
    }
    return otherwise;
}

/* ---- Memory ---- */

#define PAGES_A_STEP 64
#define HIGH_GIB 4

static u64 directories[HIGH_GIB][512] __attribute__((aligned(4096)));

/* Maps HIGH_GIB more than entry.S, which maps the first 4 GiB. */
static void map_above_4_gib(void)
{
    u64 *pml4, *pdpt;
    __asm__ volatile("mov %%cr3, %0" : "=r"(pml4));
    pdpt = (u64 *)(pml4[0] & ~0xfffUL);
    for (u64 gib = 0; gib < HIGH_GIB; gib++) {
        for (u64 entry = 0; entry < 512; entry++)
            directories[gib][entry] = (4 + gib) << 30 | entry << 21 | 0x83;
        pdpt[4 + gib] = (u64)directories[gib] | 3;
    }
}

/* Returns a page under test. If there is high memory, every second page comes from its top. */
static u64 *page_at(u64 index)
{
    if (!top_of_high_memory)
        return (u64 *)(LOW_START + index * PAGE);
    if (index & 1)
        return (u64 *)(top_of_high_memory - (index / 2 + 1) * PAGE);
    return (u64 *)(LOW_START + index / 2 * PAGE);
}

/* Fills mib= of memory, then checks pages and writes the next generation to them, round after round. With
   wait=1, it touches none of them until a byte is typed. */
static void count(void)
{
    u64 pages = option("mib=", 4) << 8, cursor = 0, generation = 1;
    if (top_of_high_memory)
        map_above_4_gib();
    if (option("wait=", 0)) {
        print("waits\n");
        while (!(inb(COM1 + 5) & 1))
            ;
    }
    for (u64 index = 0; index < pages; index++)
        fill_page(page_at(index), generation);
    print("ready\n");
    for (u64 number = 1;; number++) {
        for (u64 step = 0; step < PAGES_A_STEP; step++) {
            check_page(page_at(cursor), generation);
            fill_page(page_at(cursor), generation + 1);
            if (++cursor == pages) {
                cursor = 0;
                generation++;
            }
        }
        report("count", number);
    }
}

/* Touches mib= of memory, then writes to one page of it every cycles= of the TSC. Every 8192 writes it
 * reports the longest delay beyond those cycles. */
static void churn(void)
{
    u64 pages = option("mib=", 4) << 8, cycles = option("cycles=", 0), longest = 0, written = 0;
    if (top_of_high_memory)
        map_above_4_gib();
    for (u64 index = 0; index < pages; index++)
        *page_at(index) = 1;
    print("ready\n");
    for (u64 last = rdtsc();;) {
        for (u64 index = 0; index < pages; index++) {
            u64 now;
            *(volatile u64 *)page_at(index) += 1;
            while ((now = rdtsc()) - last < cycles)
                ;
            if (now - last - cycles > longest)
                longest = now - last - cycles;
            last = now;
            if (++written % 8192 == 0) {
                report("stall", longest);
                longest = 0;
                last = rdtsc();
            }
        }
    }
}

/* ---- Exits: each read has one right answer. ---- */

static void ports(void)
{
    static u8 buffer[64];
    volatile u8 *nothing = (u8 *)0xd0000000;
    print("ready\n");
    for (u64 round = 1;; round++) {
        expect("inb", 0x300, inb(0x300), 0xff);
        expect("inw", 0x300, inw(0x300), 0xffff);
        expect("inl", 0x300, inl(0x300), 0xffffffff);
        expect("line status", LINE_STATUS, inb(LINE_STATUS), LINE_STATUS_EMPTY);
        expect("power status", 0x601, inb(0x601), 0);

        u8 mark = round;
        for (int i = 0; i < 16; i++)
            buffer[i] = mark + i;
        void *at = buffer;
        u64 times = 16;
        __asm__ volatile("rep outsb" : "+S"(at), "+c"(times) : "d"(SCRATCH) : "memory");
        expect("rep outsb", (u64)at, times, 0);
        expect("scratch", SCRATCH, inb(SCRATCH), (u8)(mark + 15));
        at = buffer + 16;
        times = 24;
        __asm__ volatile("rep insb" : "+D"(at), "+c"(times) : "d"(SCRATCH) : "memory");
        expect("rep insb", (u64)at, times, 0);
        for (int i = 16; i < 40; i++)
            expect("rep insb", i, buffer[i], (u8)(mark + 15));

        expect("mmio 1", (u64)nothing, *nothing, 0xff);
        expect("mmio 2", (u64)nothing, *(volatile u16 *)nothing, 0xffff);
        expect("mmio 4", (u64)nothing, *(volatile u32 *)nothing, 0xffffffff);
        expect("mmio 8", (u64)nothing, *(volatile u64 *)nothing, ~0UL);
        *(volatile u64 *)(nothing + 64) = round;
        report("round", round);
    }
}

/* ---- Registers ---- */

/* Gives each of the sixteen general registers its own value, and loops until one has changed. No register is
 * free, so the loop prints with two of the values (al = 'r', dx = COM1). */
static void registers(void)
{
    __asm__ volatile(
        ".pushsection .data\n .balign 8\n"
        "held: .quad 0x1111222233334472, 0x2222333344445555, 0x3333444455556666, 0x44445555666603f8\n"
        "      .quad 0x5555666677778888, 0x6666777788889999, 0x777788889999aaaa, 0x88889999aaaabbbb\n"
        "      .quad 0x9999aaaabbbbcccc, 0xaaaabbbbccccdddd, 0xbbbbccccddddeeee, 0xccccddddeeeeffff\n"
        "      .quad 0xddddeeeeffff0000, 0xeeeeffff00001111, 0xffff000011112222, 0x0000111122223333\n"
        "saved_stack: .quad 0\n"
        "rounds: .quad 0\n"
        ".popsection\n"
        "mov %%rsp, saved_stack\n"
        "mov held+0, %%rax\n mov held+8, %%rbx\n mov held+16, %%rcx\n mov held+24, %%rdx\n"
        "mov held+32, %%rsi\n mov held+40, %%rdi\n mov held+48, %%rbp\n mov held+56, %%rsp\n"
        "mov held+64, %%r8\n mov held+72, %%r9\n mov held+80, %%r10\n mov held+88, %%r11\n"
        "mov held+96, %%r12\n mov held+104, %%r13\n mov held+112, %%r14\n mov held+120, %%r15\n"
        "1:\n"
        "cmp held+0, %%rax\n jne 2f\n cmp held+8, %%rbx\n jne 2f\n cmp held+16, %%rcx\n jne 2f\n"
        "cmp held+24, %%rdx\n jne 2f\n cmp held+32, %%rsi\n jne 2f\n cmp held+40, %%rdi\n jne 2f\n"
        "cmp held+48, %%rbp\n jne 2f\n cmp held+56, %%rsp\n jne 2f\n cmp held+64, %%r8\n jne 2f\n"
        "cmp held+72, %%r9\n jne 2f\n cmp held+80, %%r10\n jne 2f\n cmp held+88, %%r11\n jne 2f\n"
        "cmp held+96, %%r12\n jne 2f\n cmp held+104, %%r13\n jne 2f\n cmp held+112, %%r14\n jne 2f\n"
        "cmp held+120, %%r15\n jne 2f\n"
        "incq rounds\n testq $1023, rounds\n jnz 1b\n"
        "outb %%al, %%dx\n"
        "jmp 1b\n"
        "2: mov saved_stack, %%rsp\n" ::
            : "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
              "memory");
    wrong("register", 0, 0);
}

/* MSRs with values to keep. They include MTRRs, which KVM's own list of MSRs lacks. */
static const struct {
    u32 index;
    u64 value;
} msrs[] = {
    {0x174, 0x10},                      /* IA32_SYSENTER_CS */
    {0x175, 0x56789000},                /* IA32_SYSENTER_ESP: 32 bits on AMD and its emulation */
    {0x176, 0x81234560},                /* IA32_SYSENTER_EIP */
    {0x200, 0xc0000006},                /* IA32_MTRR_PHYSBASE0 */
    {0x201, 0x0000000fc0000800},        /* IA32_MTRR_PHYSMASK0 */
    {0x250, 0x0606060606060600},        /* IA32_MTRR_FIX64K_00000 */
    {0x26f, 0x0505050505050505},        /* IA32_MTRR_FIX4K_F8000 */
    {0x277, 0x0007040600070406},        /* IA32_PAT */
    {0xc0000081, 0x0023001000000000},   /* IA32_STAR */
    {0xc0000082, 0xffffffff82345670},   /* IA32_LSTAR */
    {0xc0000084, 0x47700},              /* IA32_FMASK */
    {0xc0000100, 0x7f1234567000},       /* IA32_FS_BASE */
    {0xc0000101, 0xffff888012345000},   /* IA32_GS_BASE */
    {0xc0000102, 0x7f7654321000},       /* IA32_KERNEL_GS_BASE */
};
#define MSRS (sizeof msrs / sizeof msrs[0])

#define EACH_DEBUG_REGISTER(act) act(0) act(1) act(2) act(3)

static u64 fpu[2][64] __attribute__((aligned(64)));

static void special(void)
{
    u64 value;
    for (u64 i = 0; i < MSRS; i++)
        wrmsr(msrs[i].index, msrs[i].value);
#define SET_DEBUG(n) __asm__ volatile("mov %0, %%db" #n ::"r"(0x1000UL * (n + 1) + 0xabc0000));
    EACH_DEBUG_REGISTER(SET_DEBUG)
    __asm__ volatile("mov %0, %%cr2" ::"r"(0xcafe0000UL));
    __asm__ volatile("mov %%cr4, %0" : "=r"(value));
    __asm__ volatile("mov %0, %%cr4" ::"r"(value | 0x200)); /* FXSAVE and SSE */
    __asm__ volatile("fxsave %0" : "=m"(fpu[0]));
    for (int i = 20; i < 52; i++) /* xmm0 to xmm15 */
        fpu[0][i] = 0x0123456789abcdefUL * (i + 1);
    __asm__ volatile("fxrstor %0" ::"m"(fpu[0]));
    print("ready\n");
    for (u64 round = 1;; round++) {
        for (u64 i = 0; i < MSRS; i++)
            expect("msr", msrs[i].index, rdmsr(msrs[i].index), msrs[i].value);
#define CHECK_DEBUG(n)                                  \
    __asm__ volatile("mov %%db" #n ", %0" : "=r"(value)); \
    expect("debug register", n, value, 0x1000UL * (n + 1) + 0xabc0000);
        EACH_DEBUG_REGISTER(CHECK_DEBUG)
        __asm__ volatile("mov %%cr2, %0" : "=r"(value));
        expect("cr2", 2, value, 0xcafe0000);
        __asm__ volatile("fxsave %0" : "=m"(fpu[1]));
        for (int i = 20; i < 52; i++)
            expect("xmm", i, fpu[1][i], fpu[0][i]);
        report("round", round);
    }
}

/* ---- Interrupts ---- */

static volatile u64 pit_ticks, apic_ticks, woken_at;
static int com1_through_pic;

__attribute__((interrupt)) static void on_pit(struct frame *frame)
{
    woken(frame);
    pit_ticks++;
    outb(0x20, 0x20);
}

__attribute__((interrupt)) static void on_apic_timer(struct frame *frame)
{
    woken(frame);
    apic_ticks++;
    woken_at = rdtsc();
    APIC(APIC_EOI) = 0;
}

__attribute__((interrupt)) static void on_com1(struct frame *frame)
{
    woken(frame);
    while (inb(LINE_STATUS) & 1)
        put(inb(COM1));
    if (com1_through_pic)
        outb(0x20, 0x20);
    else
        APIC(APIC_EOI) = 0;
}

/* Sets the handlers, and opens these lines of the PICs. */
static void take_interrupts(u8 open)
{
    handle(VECTOR_PIT, on_pit);
    handle(VECTOR_COM1, on_com1);
    handle(VECTOR_APIC, on_apic_timer);
    enable_interrupts(open);
}

/* Runs both timers periodically: neither may stop. */
static void ticks(void)
{
    take_interrupts(1);
    outb(0x43, 0x34); /* channel 0, rate generator, every 20 ms */
    outb(0x40, 23864 & 0xff), outb(0x40, 23864 >> 8);
    APIC(APIC_DIVIDE) = 0xb;
    APIC(APIC_TIMER) = VECTOR_APIC | APIC_PERIODIC;
    APIC(APIC_INITIAL) = 20000000; /* nanoseconds: KVM's APIC bus runs at 1 GHz */
    print("ready\n");
    for (u64 reported = 0;;) {
        sleep();
        if (pit_ticks >= reported + 10 && apic_ticks >= reported + 10) {
            reported += 10;
            report("ticks", reported);
        }
    }
}

/* Sleeps until the TSC has advanced by megacycles= million, and reports how late it woke. Then powers off or,
 * with stay=1, sleeps on. */
static void deadline(void)
{
    u64 until = rdtsc() + option("megacycles=", 1000) * 1000000;
    take_interrupts(0);
    APIC(APIC_TIMER) = VECTOR_APIC | APIC_TSC_DEADLINE;
    __asm__ volatile("mfence" ::: "memory");
    wrmsr(MSR_TSC_DEADLINE, until);
    print("armed\n");
    while (!woken_at)
        sleep();
    if (woken_at < until)
        wrong("early", until, woken_at);
    report("woke", (woken_at - until) / 1000000);
    while (option("stay=", 0))
        sleep();
    power_off();
}

/* Fills mib= of memory, then sleeps, and sends back each typed byte. Interrupts come through the PIC if
 * there is one. */
static void echo(void)
{
    for (u64 index = 0; index < option("mib=", 0) << 8; index++)
        fill_page(page_at(index), 1);
    com1_through_pic = has_pics();
    take_interrupts(1 << PIN_COM1);
    if (!com1_through_pic)
        redirect(PIN_COM1, VECTOR_COM1, 0);
    outb(COM1 + 1, 1); /* an interrupt for each byte received */
    outb(COM1 + 4, 8);
    print("ready\n");
    for (;;)
        sleep();
}

/* Fills mib= of memory, and writes zeros to it once a byte is typed. With again=1, it reads them again and
   again. */
static void erase(void)
{
    u64 pages = option("mib=", 1) << 8;
    for (u64 index = 0; index < pages; index++)
        fill_page(page_at(index), 1);
    print("ready\n");
    while (!(inb(COM1 + 5) & 1))
        ;
    for (u64 index = 0; index < pages; index++)
        for (u64 word = 0; word < PAGE / sizeof(u64); word++)
            ((volatile u64 *)page_at(index))[word] = 0;
    print("erased\n");
    if (option("again=", 0) == 0)
        for (;;)
            __asm__ volatile("hlt");
    for (u64 pass = 1;; pass++) {
        for (u64 index = 0; index < pages; index++)
            if (*(volatile u64 *)page_at(index) != 0)
                wrong("page", index, *(volatile u64 *)page_at(index));
        report("read", pass);
    }
}

/* Prints lines of 1 KiB without end, each with one instruction. */
static void babble(void)
{
    static u8 line[1024];
    for (u64 i = 0; i < sizeof line - 1; i++)
        line[i] = 'x';
    line[sizeof line - 1] = '\n';
    for (;;) {
        void *at = line;
        u64 times = sizeof line;
        __asm__ volatile("rep outsb" : "+S"(at), "+c"(times) : "d"(COM1) : "memory");
    }
}

/* Drives the keyboard, and powers off when a key is pressed. */
static void obey(void)
{
    outb(0x64, 0x60); /* the configuration follows: the keyboard is on, with interrupts */
    outb(0x60, 0x45);
    print("ready\n");
    while (!(inb(0x64) & 1))
        ;
    print("obeying\n");
    power_off();
}

void guest_main(struct start_info *info)
{
    struct memory *map = (struct memory *)info->memory_map;
    command_line = (const char *)info->command_line;
    for (u32 i = 0; i < info->memory_map_entries; i++)
        if (map[i].kind == 1 && map[i].start >= 1UL << 32)
            top_of_high_memory = map[i].start + map[i].length;

    if (behaviour("hello")) {
        print("hello\n");
        power_off();
    } else if (behaviour("booted")) {
        *(volatile unsigned char *)0xc0000000UL = 123;
        print("booted\n");
        if (option("echo=", 0))
            echo();
        power_off();
    } else if (behaviour("reboot")) {
        print("rebooting\n");
        outb(0x64, 0xfe);
    } else if (behaviour("panic")) {
        print("panicking\n");
        u8 understood = inb(0x602); /* pvpanic's register: the events that the machine understands */
        if (understood != 1)
            wrong("pvpanic", 0x602, understood);
        outb(0x602, 2); /* a crash that a guest's second kernel examines */
        outb(0x602, 1); /* a panic */
        print("went on\n");
    } else if (behaviour("triple-fault")) {
        print("faulting\n");
        triple_fault();
    } else if (behaviour("stuck")) {
        print("ready\n");
        for (;;)
            __asm__ volatile("");
    } else if (behaviour("count")) {
        count();
    } else if (behaviour("churn")) {
        churn();
    } else if (behaviour("ports")) {
        ports();
    } else if (behaviour("pair")) {
        pair();
    } else if (behaviour("registers")) {
        registers();
    } else if (behaviour("special")) {
        special();
    } else if (behaviour("ticks")) {
        ticks();
    } else if (behaviour("deadline")) {
        deadline();
    } else if (behaviour("echo")) {
        echo();
    } else if (behaviour("obey")) {
        obey();
    } else if (behaviour("erase")) {
        erase();
    } else if (behaviour("babble")) {
        babble();
    } else if (behaviour("ioapic-registers")) {
        ioapic_registers();
    } else if (behaviour("ioapic-random")) {
        ioapic_random();
    } else if (behaviour("ioapic-masked")) {
        ioapic_masked();
    } else if (behaviour("ioapic-pending")) {
        ioapic_pending();
    } else if (behaviour("stopped")) {
        stopped();
    } else if (behaviour("tsc")) {
        tell_tsc();
    } else if (behaviour("cpu")) {
        tell_cpu();
    } else if (behaviour("generation")) {
        tell_generation();
    } else if (behaviour("random")) {
        random_numbers();
    } else if (behaviour("disk")) {
        disk();
    } else if (behaviour("disk-read")) {
        disk_read();
    } else if (behaviour("disk-churn")) {
        disk_churn();
    } else if (behaviour("records")) {
        records();
    } else if (behaviour("metadata")) {
        metadata();
    } else if (behaviour("net")) {
        net();
    } else if (behaviour("balloon")) {
        balloon();
    } else if (behaviour("vsock")) {
        vsock();
    }
    print("no such behaviour: ");
    print(command_line);
    put('\n');
    power_off();
}
