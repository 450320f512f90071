// The floor: the KVM calls of a restore, and nothing else.

#ifndef FLOOR_H
#define FLOOR_H

#include <stdint.h>

// Arguments of the calls, written by benches/restore/digest.rs. The calls follow one another, 8-byte aligned.
struct floor_region {
    uint64_t gpa, len, offset;
};
struct floor_digest {
    uint64_t memory_len;
    uint64_t split_irqchip; // else the kernel's, with its PIT
    uint64_t region_count;
    struct floor_region regions[2];
    uint64_t call_count;
    // struct floor_call calls[]
};
struct floor_call {
    uint32_t on_vcpu; // else on the VM
    uint32_t step;
    uint64_t request;
    uint64_t len;
    // the argument
};

// The steps, in the order of their ends.
enum floor_step {
    FLOOR_VM_CREATE,
    FLOOR_MEMORY_MAP,
    FLOOR_MEMORY_REGISTER,
    FLOOR_IRQCHIP_CREATE,
    FLOOR_VCPU_CREATE,
    FLOOR_PIT_CREATE,
    FLOOR_VCPU_STATE,
    FLOOR_IRQCHIP,
    FLOOR_CLOCK,
    FLOOR_FIRST_BYTE,
    FLOOR_STEPS
};

struct floor_vm {
    int kvm, vm, vcpu;
    void *memory, *run;
    uint64_t memory_len, run_len;
};

// Restores a VM and runs it until the guest's first byte to COM1. Returns the byte, or -1 with errno. Unless
// `ends` is null, writes the end of each step to it, in nanoseconds of the monotonic clock.
int floor_restore(struct floor_vm *vm, int memory, const struct floor_digest *digest, uint64_t *ends);
// Undoes floor_restore.
void floor_close(struct floor_vm *vm);

#endif
