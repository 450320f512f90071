// Lower bound for any program: writes one byte and exits.

#include <unistd.h>

int main(void) {
    return write(1, ".", 1) != 1;
}
