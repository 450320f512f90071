# Entry of the small guests. PVH starts in 32-bit protected mode without paging (Xen's docs/misc/pvh.pandoc).
# The entry maps the first 4 GiB one to one, switches to 64-bit mode and calls guest_main(start_info).

    .section .note.pvh, "a", @note
    .long 4, 4, 18                  # name "Xen", a 32-bit entry address, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long start

    .text
    .code32
    .globl start
start:
    movl $stack_top, %esp
    movl %ebx, %edi                 # struct hvm_start_info, the first argument
    movl $pml4, %eax
    movl %eax, %cr3
    movl $0x20, %eax                # PAE
    movl %eax, %cr4
    movl $0xc0000080, %ecx          # EFER: long mode
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl $0x80000001, %eax          # paging, protected mode
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmp $8, $long_mode
    .code64
long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    call guest_main
1:  hlt
    jmp 1b

# Entry of a second vCPU, which switches from real mode straight to 64-bit mode. It runs as a copy at
# second_vcpu_page, an address that a SIPI can name.
    .set second_vcpu_page, 0x8000
    .globl second_vcpu, second_vcpu_end
    .code16
second_vcpu:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movl $pml4, %eax
    movl %eax, %cr3
    movl $0x20, %eax
    movl %eax, %cr4
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    lgdtl second_vcpu_page + (gdt_pointer_near - second_vcpu)
    movl $0x80000001, %eax
    movl %eax, %cr0
    ljmpl $8, $second_long_mode
gdt_pointer_near:
    .word gdt_pointer - gdt - 1
    .long gdt
second_vcpu_end:
    .code64
second_long_mode:
    movl $16, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $second_stack_top, %esp
    .weak second_main /* only guests that start a second vCPU have it */
    call second_main
1:  hlt
    jmp 1b

    .data
    .balign 4096
pml4:
    .quad pdpt + 3
    .fill 511, 8, 0
pdpt:
    .quad pd + 3, pd + 0x1003, pd + 0x2003, pd + 0x3003
    .fill 508, 8, 0
pd:                                 # present, writable, 2 MiB
    .set address, 0
    .rept 2048
    .quad address + 0x83
    .set address, address + 0x200000
    .endr
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 64-bit code
    .quad 0x00cf93000000ffff        # data
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .long gdt

    .bss
    .balign 16
    .skip 16384
stack_top:
    .skip 16384
second_stack_top:
    .section .note.GNU-stack, "", @progbits
