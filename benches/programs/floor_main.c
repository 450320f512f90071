// The floor as a program: `floor DIGEST MEMORY` restores, writes the guest's first byte and waits to be
// killed.

#include "floor.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments) {
    static _Alignas(4096) char digest[65536];
    struct floor_vm vm;
    if (count != 3)
        return 2;
    int digest_file = open(arguments[1], O_RDONLY | O_CLOEXEC);
    int memory = open(arguments[2], O_RDONLY | O_CLOEXEC);
    ssize_t len = read(digest_file, digest, sizeof digest);
    if (memory < 0 || len <= 0 || len == sizeof digest) {
        perror("floor: cannot read digest or memory");
        return 1;
    }
    int byte = floor_restore(&vm, memory, (const struct floor_digest *)digest, 0);
    if (byte < 0) {
        perror("floor");
        return 1;
    }
    char first = (char)byte;
    if (write(1, &first, 1) != 1)
        return 1;
    pause();
    return 0;
}
