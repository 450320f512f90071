// What any program costs: one byte, as soon as there is a process.

#include <unistd.h>

int main(void) {
    return write(1, ".", 1) != 1;
}
