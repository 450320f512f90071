/* Time in a guest: the TSC, and the flags of the hypervisor's clock. */
#include "guest.h"

#define MSR_KVM_SYSTEM_TIME_NEW 0x4b564d01
#define ENABLED 1
#define GUEST_STOPPED 2

/* struct pvclock_vcpu_time_info (Linux, arch/x86/include/asm/pvclock-abi.h). */
struct pvclock {
    u32 version, padding;
    u64 tsc_timestamp, system_time;
    u32 multiplier;
    u8 shift;
    volatile u8 flags;
    u8 padding_2[2];
} __attribute__((packed));

static struct pvclock clock __attribute__((aligned(64)));

/* Counts how often its clock says that it was stopped, and reports the count for each typed byte. */
void stopped(void)
{
    u64 times = 0;
    wrmsr(MSR_KVM_SYSTEM_TIME_NEW, (u64)&clock | ENABLED);
    print("ready\n");
    for (;;) {
        /* This read leaves KVM_RUN, which updates the clock on its return. It precedes the read of the flag,
         * because a question comes after the pause. */
        char asked = typed();
        if (clock.flags & GUEST_STOPPED) {
            clock.flags &= ~GUEST_STOPPED;
            times++;
        }
        if (asked)
            report("stopped", times);
    }
}

/* Reports the TSC, in thousands of cycles, for each typed byte, and notices if it goes back. */
void tell_tsc(void)
{
    u64 last = rdtsc();
    print("ready\n");
    for (;;) {
        u64 now = rdtsc();
        if (now < last)
            wrong("tsc", last, now);
        last = now;
        if (typed())
            report("tsc", now / 1000);
    }
}
