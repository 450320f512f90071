#include "floor.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void step_done(uint64_t *ends, enum floor_step step) {
    if (ends) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        ends[step] = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    }
}

static int set_state(const struct floor_vm *vm, const struct floor_digest *digest, uint64_t *ends) {
    const char *at = (const char *)(digest + 1);
    for (uint64_t n = 0; n < digest->call_count; n++) {
        const struct floor_call *call = (const struct floor_call *)at;
        int done = ioctl(call->on_vcpu ? vm->vcpu : vm->vm, call->request, call->len ? call + 1 : 0);
        // KVM_KVMCLOCK_CTRL fails for a guest without kvmclock.
        if (done < 0 && !(call->request == KVM_KVMCLOCK_CTRL && errno == EINVAL))
            return -1;
        at += sizeof *call + ((call->len + 7) & ~(uint64_t)7);
        step_done(ends, call->step);
    }
    return 0;
}

int floor_restore(struct floor_vm *vm, int memory, const struct floor_digest *digest, uint64_t *ends) {
    *vm = (struct floor_vm){.kvm = -1, .vm = -1, .vcpu = -1, .memory = MAP_FAILED, .run = MAP_FAILED};
    uint64_t identity_map = 0xfffbc000;
    if ((vm->kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC)) < 0 ||
        (vm->vm = ioctl(vm->kvm, KVM_CREATE_VM, 0)) < 0 ||
        ioctl(vm->vm, KVM_SET_IDENTITY_MAP_ADDR, &identity_map) < 0 ||
        ioctl(vm->vm, KVM_SET_TSS_ADDR, 0xfffbd000) < 0)
        return -1;
    step_done(ends, FLOOR_VM_CREATE);

    vm->memory_len = digest->memory_len;
    vm->memory = mmap(0, vm->memory_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, memory, 0);
    if (vm->memory == MAP_FAILED)
        return -1;
    step_done(ends, FLOOR_MEMORY_MAP);

    for (uint32_t slot = 0; slot < digest->region_count; slot++) {
        const struct floor_region *region = &digest->regions[slot];
        struct kvm_userspace_memory_region to = {
            .slot = slot,
            .guest_phys_addr = region->gpa,
            .memory_size = region->len,
            .userspace_addr = (uintptr_t)vm->memory + region->offset,
        };
        if (ioctl(vm->vm, KVM_SET_USER_MEMORY_REGION, &to) < 0)
            return -1;
    }
    step_done(ends, FLOOR_MEMORY_REGISTER);

    struct kvm_enable_cap split = {.cap = KVM_CAP_SPLIT_IRQCHIP, .args = {24}};
    if ((digest->split_irqchip ? ioctl(vm->vm, KVM_ENABLE_CAP, &split)
                               : ioctl(vm->vm, KVM_CREATE_IRQCHIP, 0)) < 0)
        return -1;
    step_done(ends, FLOOR_IRQCHIP_CREATE);

    int run_len = ioctl(vm->kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (run_len < 0 || (vm->vcpu = ioctl(vm->vm, KVM_CREATE_VCPU, 0)) < 0)
        return -1;
    vm->run_len = (uint64_t)run_len;
    vm->run = mmap(0, vm->run_len, PROT_READ | PROT_WRITE, MAP_SHARED, vm->vcpu, 0);
    if (vm->run == MAP_FAILED)
        return -1;
    step_done(ends, FLOOR_VCPU_CREATE);

    struct kvm_pit_config pit = {.flags = KVM_PIT_SPEAKER_DUMMY};
    if (!digest->split_irqchip && ioctl(vm->vm, KVM_CREATE_PIT2, &pit) < 0)
        return -1;
    step_done(ends, FLOOR_PIT_CREATE);

    if (set_state(vm, digest, ends) < 0)
        return -1;

    const struct kvm_run *run = vm->run;
    for (;;) {
        if (ioctl(vm->vcpu, KVM_RUN, 0) < 0)
            return -1;
        if (run->exit_reason != KVM_EXIT_IO) {
            errno = EPROTO;
            return -1;
        }
        if (run->io.direction == KVM_EXIT_IO_OUT && run->io.port == 0x3f8)
            return *((const unsigned char *)run + run->io.data_offset);
    }
}

void floor_close(struct floor_vm *vm) {
    if (vm->run != MAP_FAILED)
        munmap(vm->run, vm->run_len);
    if (vm->vcpu >= 0)
        close(vm->vcpu);
    if (vm->vm >= 0)
        close(vm->vm);
    if (vm->kvm >= 0)
        close(vm->kvm);
    if (vm->memory != MAP_FAILED)
        munmap(vm->memory, vm->memory_len);
}
