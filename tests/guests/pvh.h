/* The start information of a PVH guest: Xen's struct hvm_start_info
 * (xen/include/public/arch-x86/hvm/start_info.h). */
#pragma once
#include "machine.h"

struct start_info {
    u32 magic, version, flags, modules;
    u64 module_list, command_line, rsdp, memory_map;
    u32 memory_map_entries, reserved;
};

/* An entry of the memory map. */
struct memory {
    u64 start, length;
    u32 kind, reserved;
};

/* A file that was loaded for the guest. The first one is the initrd. */
struct module {
    u64 start, length, command_line, reserved;
};
