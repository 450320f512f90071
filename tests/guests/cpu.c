/* The CPU as a guest sees it. */
#include "guest.h"

/* Reports the registers of leaf= and index= of CPUID, and the MSR msr=, for each typed byte. Numbers are
 * decimal; an MSR of 0 is left out. */
void tell_cpu(void)
{
    u32 leaf = option("leaf=", 0), index = option("index=", 0), msr = option("msr=", 0);
    print("ready\n");
    for (;;) {
        u32 eax = leaf, ebx, ecx = index, edx;
        if (!typed())
            continue;
        __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
        report("eax", eax);
        report("ebx", ebx);
        report("ecx", ecx);
        report("edx", edx);
        if (msr)
            report("msr", rdmsr(msr));
    }
}
